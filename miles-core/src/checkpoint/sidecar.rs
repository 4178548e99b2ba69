//! Files beside the weights that belong to a model: tokenizer, chat template, generation defaults.

use std::fs;
use std::path::Path;

use super::error::{CheckpointError, io};

/// Files that are copied, byte for byte, where they exist.
pub const SIDECARS: [&str; 11] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
];

pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    for name in SIDECARS {
        let source = from.join(name);
        if source.is_file() {
            let target = to.join(name);
            fs::copy(&source, &target).map_err(io(&target))?;
        }
    }
    Ok(())
}
