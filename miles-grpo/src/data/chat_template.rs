//! Chat templates: the Jinja text that turns messages into the prompt a model was trained on.
//!
//! Templates are written for Python's Jinja. `minijinja` with its Python compatibility runs them; what Hugging Face
//! adds is added here: `raise_exception(message)`, `strftime_now(format)` and the names of special tokens. A run must
//! not depend on the day it is started, so `strftime_now` formats the date that the config names.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind as TemplateErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::DataError;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    fn to_json(&self) -> Value {
        json!({ "role": self.role, "content": self.content })
    }
}

/// A calendar date, written `YYYY-MM-DD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

impl Date {
    /// Reads `YYYY-MM-DD`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits =
            |range: std::ops::Range<usize>| text.get(range).filter(|part| part.bytes().all(|b| b.is_ascii_digit()));
        let is_dashed = text.len() == 10 && text.get(4..5) == Some("-") && text.get(7..8) == Some("-");
        let date = Date {
            year: digits(0..4)?.parse().ok()?,
            month: digits(5..7)?.parse().ok()?,
            day: digits(8..10)?.parse().ok()?,
        };
        (is_dashed && (1..=12).contains(&date.month) && (1..=31).contains(&date.day)).then_some(date)
    }

    /// Python's `strftime` for the directives that chat templates use; `None` for another one. The time is midnight.
    fn format(self, pattern: &str) -> Option<String> {
        let month = MONTHS[usize::from(self.month) - 1];
        let mut text = String::new();
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            match characters.next()? {
                'Y' => text.push_str(&format!("{:04}", self.year)),
                'y' => text.push_str(&format!("{:02}", self.year % 100)),
                'm' => text.push_str(&format!("{:02}", self.month)),
                'd' => text.push_str(&format!("{:02}", self.day)),
                'B' => text.push_str(month),
                'b' => text.push_str(&month[..3]),
                'H' | 'M' | 'S' => text.push_str("00"),
                '%' => text.push('%'),
                _ => return None,
            }
        }
        Some(text)
    }
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// Reads the template of a model directory: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`
    /// (a text, or a list of named ones of which `default` is taken).
    ///
    /// # Errors
    /// [`DataError::NoChatTemplate`] when there is none; an error naming the file or the template's line otherwise.
    pub fn read(dir: &Path, date: Date) -> Result<Self, DataError> {
        let config = read_config(&dir.join("tokenizer_config.json"))?;
        let path = dir.join("chat_template.jinja");
        let source = match fs::read_to_string(&path) {
            Ok(source) => Some(source),
            Err(error) if error.kind() == ErrorKind::NotFound => config.get("chat_template").and_then(default_template),
            Err(source) => return Err(DataError::Io { path, source }),
        };
        let source = source.ok_or_else(|| DataError::NoChatTemplate { dir: dir.to_owned() })?;
        Self::new(source, &config, date)
    }

    /// A template from its text; special tokens are taken from a tokenizer config.
    ///
    /// # Errors
    /// [`DataError::Template`] when the text does not parse.
    pub fn new(source: String, tokenizer_config: &Map<String, Value>, date: Date) -> Result<Self, DataError> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(TemplateErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |pattern: String| {
            let unknown = || Error::new(TemplateErrorKind::InvalidOperation, format!("cannot format `{pattern}`"));
            date.format(&pattern).ok_or_else(unknown)
        });
        environment.add_template_owned(NAME, source)?;
        let special_tokens = ["bos_token", "eos_token", "pad_token", "unk_token"]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), token_text(tokenizer_config.get(key)?)?.into())))
            .collect();
        Ok(ChatTemplate { environment, special_tokens })
    }

    /// The prompt for some messages, ready for the assistant's answer.
    ///
    /// # Errors
    /// [`DataError::Template`] when the template fails or refuses the messages.
    pub fn render(&self, messages: &[Message]) -> Result<String, DataError> {
        let template = self.environment.get_template(NAME)?;
        let mut variables = self.special_tokens.clone();
        variables.insert("messages".to_owned(), messages.iter().map(Message::to_json).collect());
        variables.insert("add_generation_prompt".to_owned(), true.into());
        Ok(template.render(Serde(variables))?)
    }
}

fn read_config(path: &Path) -> Result<Map<String, Value>, DataError> {
    match fs::read(path) {
        Ok(bytes) => miles_core::json::from_slice(&bytes)
            .map_err(|source| DataError::TokenizerConfig { path: path.to_owned(), source }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Map::new()),
        Err(source) => Err(DataError::Io { path: path.to_owned(), source }),
    }
}

fn default_template(value: &Value) -> Option<String> {
    match value {
        Value::String(source) => Some(source.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?;
            default.get("template")?.as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// A special token is written as its text or as an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

const NAME: &str = "chat_template";

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
