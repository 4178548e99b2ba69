//! Prompt files of any content, with and without the chat template.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use miles_fuzz::Scratch;
use miles_grpo::data::{ChatTemplate, Date, Fields, PromptReader, TextTokenizer};

struct Model {
    tokenizer: TextTokenizer,
    template: ChatTemplate,
    fields: Fields,
}

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("prompt-rows"));
static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/quickstart");
    let field = str::to_owned;
    Model {
        tokenizer: TextTokenizer::read(&dir).unwrap(),
        template: ChatTemplate::read(&dir, Date::parse("2026-01-01").unwrap()).unwrap(),
        fields: Fields { prompt: field("prompt"), answer: field("answer"), messages: field("messages") },
    }
});

fuzz_target!(|bytes: &[u8]| {
    let path = SCRATCH.fill(&[("train.jsonl", bytes)]).join("train.jsonl");
    let Model { tokenizer, template, fields } = &*MODEL;
    for template in [None, Some(template)] {
        let reader =
            PromptReader { tokenizer, template, fields, context_tokens: 64, max_new_tokens: 16, vocab_size: 40 };
        match reader.read(&path) {
            Ok(prompts) => {
                assert!(!prompts.is_empty());
                for prompt in prompts.prompts() {
                    assert!((1..=48).contains(&prompt.tokens.len()) && prompt.tokens.iter().all(|&id| id < 40));
                    tokenizer.decode(&prompt.tokens).unwrap();
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
