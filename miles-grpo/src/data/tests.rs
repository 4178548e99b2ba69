//! Rows, their refusals, templates, and a tokenizer that does not give back what was sampled.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::{ChatTemplate, DataError, Date, Fields, Message, PromptReader, PromptSet, TextTokenizer};

/// Ids: 0 = `</s>` (special), 1..=10 the digits, 11 = `+`, 12 = `=`, 13 = `a`, 14 = `b`, 15 = `ab` (merged), 16 = `<s>`.
const TOKENIZER: &str = include_str!("../../tests/data/tokenizer.json");

struct Directory {
    dir: tempfile::TempDir,
    tokenizer: TextTokenizer,
}

impl Directory {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), TOKENIZER).unwrap();
        let tokenizer = TextTokenizer::read(dir.path()).unwrap();
        Directory { dir, tokenizer }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn read_with(&self, content: &str, template: Option<&ChatTemplate>) -> Result<PromptSet, DataError> {
        let path = self.file("data.jsonl", content);
        let fields =
            Fields { prompt: "prompt".to_owned(), answer: "answer".to_owned(), messages: "messages".to_owned() };
        let reader = PromptReader {
            tokenizer: &self.tokenizer,
            template,
            fields: &fields,
            context_tokens: 12,
            max_new_tokens: 4,
            vocab_size: 17,
        };
        reader.read(&path)
    }

    fn read(&self, content: &str) -> Result<PromptSet, DataError> {
        self.read_with(content, None)
    }
}

fn template(source: &str) -> ChatTemplate {
    let config = json!({ "eos_token": "</s>", "bos_token": { "content": "<s>" } });
    ChatTemplate::new(source.to_owned(), config.as_object().unwrap(), Date::parse("2024-07-26").unwrap()).unwrap()
}

fn user(content: &str) -> Vec<Message> {
    vec![Message { role: "user".to_owned(), content: content.to_owned() }]
}

#[test]
fn rows_become_prompts_with_special_tokens_and_answers_as_text() {
    let set = Directory::new()
        .read("{\"prompt\":\"1+2=\",\"answer\":3}\n\n{\"prompt\":\"2+2=\",\"answer\":\"4\",\"kind\":\"easy\"}\n")
        .unwrap();
    assert_eq!(set.len(), 2);
    let [first, second] = set.prompts() else { panic!("two prompts") };
    assert_eq!(first.tokens, [16, 2, 11, 3, 12]);
    assert_eq!(first.answer.as_deref(), Some("3"));
    assert_eq!(second.row["kind"], "easy");
}

#[test]
fn a_malformed_line_is_named_by_its_number() {
    let error = Directory::new().read("{\"prompt\":\"1\"}\n\n{\"prompt\":\n").unwrap_err();
    assert!(matches!(error, DataError::MalformedLine { line: 3, .. }), "{error}");
    let error = Directory::new().read("[1]\n").unwrap_err();
    assert!(matches!(error, DataError::MalformedLine { line: 1, .. }), "{error}");
}

#[test]
fn an_empty_file_is_an_error() {
    for content in ["", "\n \n"] {
        assert!(matches!(Directory::new().read(content), Err(DataError::Empty { .. })));
    }
}

#[test]
fn missing_and_mistyped_fields_are_named_with_their_line() {
    let directory = Directory::new();
    let error = directory.read("{\"prompt\":\"1\"}\n{\"question\":\"1\"}").unwrap_err().to_string();
    assert!(error.contains("data.jsonl:2") && error.contains("`prompt`") && error.contains("question"), "{error}");
    let error = directory.read("{\"prompt\":1}").unwrap_err().to_string();
    assert!(error.contains("`prompt` is a number"), "{error}");
    let error = directory.read("{\"prompt\":\"1\",\"answer\":[1]}").unwrap_err().to_string();
    assert!(error.contains("`answer`"), "{error}");
    let error = directory.read("{\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}").unwrap_err().to_string();
    assert!(error.contains("`messages`") && error.contains("chat_template"), "{error}");
}

#[test]
fn a_prompt_longer_than_the_context_allows_is_named() {
    let error = Directory::new().read("{\"prompt\":\"1\"}\n{\"prompt\":\"12345678\"}").unwrap_err();
    assert!(matches!(error, DataError::PromptTooLong { line: 2, tokens: 9, room_tokens: 8, .. }), "{error}");
    assert!(Directory::new().read("{\"prompt\":\"1234567\"}").is_ok());
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let directory = Directory::new();
    let error = directory.tokenizer.check_ids(&[1, 17, 18], 17).unwrap_err();
    assert!(matches!(error, DataError::TokenOutOfRange { id: 17, vocab_size: 17, .. }), "{error}");
}

#[test]
fn templates_render_messages_and_plain_prompts_without_doubling_special_tokens() {
    let chat = template(
        "{{ bos_token }}{% for message in messages %}{{ message.content.strip() }}{{ eos_token }}{% endfor %}\
         {% if add_generation_prompt %}={% endif %}",
    );
    assert_eq!(chat.render(&user(" 1+2 ")).unwrap(), "<s>1+2</s>=");
    let rows = "{\"prompt\":\"1+2\"}\n{\"messages\":[{\"role\":\"user\",\"content\":\"1+2\"}],\"answer\":\"3\"}";
    let set = Directory::new().read_with(rows, Some(&chat)).unwrap();
    for prompt in set.prompts() {
        assert_eq!(prompt.tokens, [16, 2, 11, 3, 0, 12]);
        assert_eq!(prompt.text, "1+2");
    }
}

#[test]
fn templates_may_refuse_and_ask_for_the_date() {
    let refusing = template("{{ raise_exception('roles must alternate') }}");
    let error = refusing.render(&user("1")).unwrap_err().to_string();
    assert!(error.contains("roles must alternate"), "{error}");
    assert_eq!(template("{{ strftime_now('%d %b %Y') }}").render(&user("1")).unwrap(), "26 Jul 2024");
    assert!(template("{{ strftime_now('%Q') }}").render(&user("1")).is_err());
}

#[test]
fn dates_are_read_strictly() {
    for text in ["2024-13-01", "2024-1-01", "24-01-01", "2024/01/01", "2024-01-32", "+024-01-01", ""] {
        assert_eq!(Date::parse(text), None, "{text:?}");
    }
}

#[test]
fn templates_are_found_in_either_file_and_their_absence_is_an_error() {
    let directory = Directory::new();
    let date = Date::parse("2024-07-26").unwrap();
    let read = || ChatTemplate::read(directory.dir.path(), date);
    assert!(matches!(read(), Err(DataError::NoChatTemplate { .. })));
    directory.file("tokenizer_config.json", &json!({ "chat_template": "config" }).to_string());
    assert_eq!(read().unwrap().render(&user("1")).unwrap(), "config");
    let named =
        json!({ "chat_template": [{ "name": "tools", "template": "t" }, { "name": "default", "template": "d" }] });
    directory.file("tokenizer_config.json", &named.to_string());
    assert_eq!(read().unwrap().render(&user("1")).unwrap(), "d");
    directory.file("chat_template.jinja", "file");
    assert_eq!(read().unwrap().render(&user("1")).unwrap(), "file");
    directory.file("tokenizer_config.json", "{");
    assert!(matches!(read(), Err(DataError::TokenizerConfig { .. })));
}

/// O18, at the tokenizer: what is decoded and encoded again is not what was sampled.
#[test]
fn decoding_and_encoding_again_is_not_the_identity_here() {
    let directory = Directory::new();
    let sampled = [13, 14, 0];
    let text = directory.tokenizer.decode(&sampled).unwrap();
    assert_eq!(text, "ab");
    assert_eq!(directory.tokenizer.encode(&text, false).unwrap(), [15]);
}
