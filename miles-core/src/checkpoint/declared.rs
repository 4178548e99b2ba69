//! What `config.json` declares against what is stored.
//!
//! A config that declares codes over weights that are all in high precision describes another checkpoint: vLLM rounds
//! such weights to FP8 without any scale, transformers looks for scales that are not there. Which of the two files is
//! the wrong one cannot be known, so neither is followed.

use super::bind::Binding;
use super::error::CheckpointError;
use crate::model::huggingface::HuggingFaceConfig;

/// Refuses a declared layout that not one tensor has.
pub(super) fn check(config: &HuggingFaceConfig, bindings: &[Binding]) -> Result<(), CheckpointError> {
    let holds_codes = bindings.iter().any(|binding| matches!(binding, Binding::Quantized { .. }));
    match config.layout() {
        Some(layout) if !holds_codes => {
            let (path, format) = (config.path().to_owned(), layout.format().to_string());
            Err(CheckpointError::NothingQuantized { path, format })
        }
        _ => Ok(()),
    }
}
