//! Prompts from JSONL files, as token ids.
//!
//! Text exists at two edges only: prompts are encoded here once, and completions are decoded for rewards. What is
//! trained on is always the sampled ids.

mod chat_template;
mod error;
mod prompts;
mod tokenizer;

pub use chat_template::{ChatTemplate, Date, Message};
pub use error::DataError;
pub use prompts::{Fields, Prompt, PromptReader, PromptSet};
pub use tokenizer::TextTokenizer;

#[cfg(test)]
mod tests;
