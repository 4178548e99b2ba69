//! Prompt rows.

use std::fs;
use std::path::Path;

use miles_core::json;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ChatTemplate, DataError, Message, TextTokenizer};

/// Names of the fields of a data row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Prompt text.
    pub prompt: String,
    /// Expected answer, a text or a number. A row may lack it when the reward does not need it.
    pub answer: String,
    /// Conversation, a list of `{role, content}`; used instead of the prompt in rows that have it.
    pub messages: String,
}

/// One prompt of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Prompt as written in the data (of a conversation: what the user said last).
    pub text: String,
    /// Token ids that completions continue.
    pub tokens: Vec<u32>,
    /// Expected answer.
    pub answer: Option<String>,
    /// The whole row.
    pub row: Map<String, Value>,
}

/// Every prompt of one file, in file order; a prompt's index is its key.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptSet {
    prompts: Vec<Prompt>,
}

impl PromptSet {
    /// The prompts.
    #[must_use]
    pub fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    /// Number of prompts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Whether there is none; a set that was read has at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }
}

/// Reads and encodes prompt files for one model.
#[derive(Debug)]
pub struct PromptReader<'a> {
    /// Encodes.
    pub tokenizer: &'a TextTokenizer,
    /// Renders prompts as conversations; `None` encodes them as they are.
    pub template: Option<&'a ChatTemplate>,
    /// Field names.
    pub fields: &'a Fields,
    /// Context length of the model.
    pub context_tokens: usize,
    /// Longest completion.
    pub max_new_tokens: usize,
    /// Vocabulary size of the model.
    pub vocab_size: usize,
}

impl PromptReader<'_> {
    /// Reads a JSONL file: one object per line, blank lines left out.
    ///
    /// # Errors
    /// [`DataError`] naming file and line: no rows, a malformed line, a missing field, a prompt too long.
    pub fn read(&self, path: &Path) -> Result<PromptSet, DataError> {
        let text = fs::read_to_string(path).map_err(|source| DataError::Io { path: path.to_owned(), source })?;
        let mut prompts = Vec::new();
        for (index, content) in text.lines().enumerate().filter(|(_, content)| !content.trim().is_empty()) {
            let line = Line { path, number: index + 1 };
            let row = json::from_str(content).map_err(|source| line.malformed(source))?;
            prompts.push(self.prompt(line, row)?);
        }
        if prompts.is_empty() {
            return Err(DataError::Empty { path: path.to_owned() });
        }
        Ok(PromptSet { prompts })
    }

    fn prompt(&self, line: Line<'_>, row: Map<String, Value>) -> Result<Prompt, DataError> {
        let answer = match row.get(&self.fields.answer) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            Some(other) => return Err(line.wrong_type(&self.fields.answer, other, "a text or a number")),
        };
        let messages = match (row.get(&self.fields.messages), row.get(&self.fields.prompt)) {
            (Some(messages), _) => Some(self.messages(line, messages)?),
            (None, Some(Value::String(prompt))) if self.template.is_some() => {
                Some(vec![Message { role: "user".to_owned(), content: prompt.clone() }])
            }
            (None, Some(Value::String(_))) => None,
            (None, Some(other)) => return Err(line.wrong_type(&self.fields.prompt, other, "a text")),
            (None, None) => return Err(line.missing(&self.fields.prompt, &row)),
        };
        let (text, tokens) = match (messages, self.template) {
            (Some(messages), Some(template)) => {
                let rendered = template.render(&messages)?;
                let said = messages.iter().rfind(|message| message.role == "user").or(messages.last());
                let text = said.map(|message| message.content.clone()).unwrap_or_default();
                (text, self.tokenizer.encode(&rendered, false)?)
            }
            (Some(_), None) => return Err(line.no_template(&self.fields.messages)),
            (None, _) => {
                let text = row.get(&self.fields.prompt).and_then(Value::as_str).unwrap_or_default().to_owned();
                let tokens = self.tokenizer.encode(&text, true)?;
                (text, tokens)
            }
        };
        self.check(line, &tokens)?;
        Ok(Prompt { text, tokens, answer, row })
    }

    fn messages(&self, line: Line<'_>, value: &Value) -> Result<Vec<Message>, DataError> {
        match Vec::<Message>::deserialize(value) {
            Ok(messages) if !messages.is_empty() => Ok(messages),
            _ => Err(line.wrong_type(&self.fields.messages, value, "a list of {role, content}")),
        }
    }

    fn check(&self, line: Line<'_>, tokens: &[u32]) -> Result<(), DataError> {
        let path = line.path.to_owned();
        let room_tokens = self.context_tokens.saturating_sub(self.max_new_tokens);
        if tokens.is_empty() {
            return Err(DataError::EmptyPrompt { path, line: line.number });
        }
        if tokens.len() > room_tokens {
            return Err(DataError::PromptTooLong {
                path,
                line: line.number,
                tokens: tokens.len(),
                room_tokens,
                max_new_tokens: self.max_new_tokens,
                context_tokens: self.context_tokens,
            });
        }
        self.tokenizer.check_ids(tokens, self.vocab_size)
    }
}

/// Where a row is, for errors.
#[derive(Clone, Copy)]
struct Line<'a> {
    path: &'a Path,
    number: usize,
}

impl Line<'_> {
    fn malformed(self, source: serde_json::Error) -> DataError {
        DataError::MalformedLine { path: self.path.to_owned(), line: self.number, source }
    }

    fn missing(self, field: &str, row: &Map<String, Value>) -> DataError {
        let found = row.keys().cloned().collect();
        DataError::MissingField { path: self.path.to_owned(), line: self.number, field: field.to_owned(), found }
    }

    fn no_template(self, field: &str) -> DataError {
        DataError::WrongType {
            path: self.path.to_owned(),
            line: self.number,
            field: field.to_owned(),
            found: "a conversation",
            expected: "absent unless `data.chat_template` is on",
        }
    }

    fn wrong_type(self, field: &str, value: &Value, expected: &'static str) -> DataError {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "a truth value",
            Value::Number(_) => "a number",
            Value::String(_) => "a text",
            Value::Array(_) => "a list of something else",
            Value::Object(_) => "an object",
        };
        DataError::WrongType { path: self.path.to_owned(), line: self.number, field: field.to_owned(), found, expected }
    }
}
