//! What can be wrong with data files, tokenizers and chat templates.

use std::path::PathBuf;

/// Why prompts could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A file without a single row.
    #[error("{}: no prompts", path.display())]
    Empty {
        /// File.
        path: PathBuf,
    },
    /// A line that is not a JSON object.
    #[error("{}:{line}: {source}", path.display())]
    MalformedLine {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Cause.
        source: serde_json::Error,
    },
    /// A row without a field that the config names.
    #[error("{}:{line}: the row has no field `{field}` (it has: {})", path.display(), found.join(", "))]
    MissingField {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Field.
        field: String,
        /// Fields of the row.
        found: Vec<String>,
    },
    /// A field of the wrong type.
    #[error("{}:{line}: field `{field}` is {found}, expected {expected}", path.display())]
    WrongType {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Field.
        field: String,
        /// What the field is.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A prompt that leaves no room for its completion.
    #[error(
        "{}:{line}: the prompt has {tokens} tokens; the context of {context_tokens} leaves {room_tokens} beside \
         completions of {max_new_tokens}",
        path.display()
    )]
    PromptTooLong {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Length of the prompt.
        tokens: usize,
        /// Tokens left for prompts.
        room_tokens: usize,
        /// Longest completion.
        max_new_tokens: usize,
        /// Context length.
        context_tokens: usize,
    },
    /// A prompt that encodes to nothing.
    #[error("{}:{line}: the prompt has no tokens", path.display())]
    EmptyPrompt {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// A tokenizer file that cannot be used.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// File.
        path: PathBuf,
        /// Cause.
        source: tokenizers::Error,
    },
    /// A tokenizer that knows more ids than the model.
    #[error("{}: token id {id} is outside the model's vocabulary of {vocab_size}", path.display())]
    TokenOutOfRange {
        /// Tokenizer file.
        path: PathBuf,
        /// The id.
        id: u32,
        /// Vocabulary size of the model.
        vocab_size: usize,
    },
    /// Text or ids that the tokenizer refuses.
    #[error("the tokenizer cannot {operation}: {source}")]
    Tokenize {
        /// `encode` or `decode`.
        operation: &'static str,
        /// Cause.
        source: tokenizers::Error,
    },
    /// A model directory without a chat template.
    #[error("{}: no chat template (neither `chat_template.jinja` nor `chat_template` in `tokenizer_config.json`)", dir.display())]
    NoChatTemplate {
        /// Model directory.
        dir: PathBuf,
    },
    /// A tokenizer config that is not what it should be.
    #[error("{}: {source}", path.display())]
    TokenizerConfig {
        /// File.
        path: PathBuf,
        /// Cause.
        source: serde_json::Error,
    },
    /// A chat template that does not parse or refuses the messages.
    #[error("chat template: {0:#}")]
    Template(#[from] minijinja::Error),
}
