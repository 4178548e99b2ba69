//! `tokenizer.json`, through the `tokenizers` crate.

use std::fs;
use std::path::{Path, PathBuf};

use miles_core::json;

use super::DataError;

/// Encodes prompts, decodes completions.
#[derive(Clone, Debug)]
pub struct TextTokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
}

impl TextTokenizer {
    /// Reads `tokenizer.json` of a model directory.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] naming the file, and a key that it gives twice (of two ids for one token, one would be
    /// lost).
    pub fn read(dir: &Path) -> Result<Self, DataError> {
        let path = dir.join("tokenizer.json");
        let read = || -> Result<tokenizers::Tokenizer, tokenizers::Error> {
            let text = fs::read(&path)?;
            json::check_keys(&text)?;
            tokenizers::Tokenizer::from_bytes(&text)
        };
        match read() {
            Ok(inner) => Ok(TextTokenizer { inner, path }),
            Err(source) => Err(DataError::Tokenizer { path, source }),
        }
    }

    /// Token ids of a text; `special_tokens` adds those that the tokenizer puts around a text of its own accord
    /// (leave it off for rendered chat templates, which contain them).
    ///
    /// # Errors
    /// [`DataError::Tokenize`].
    pub fn encode(&self, text: &str, special_tokens: bool) -> Result<Vec<u32>, DataError> {
        let encoding = self
            .inner
            .encode_fast(text, special_tokens)
            .map_err(|source| DataError::Tokenize { operation: "encode", source })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of a completion, special tokens left out. For rewards and people only: encoding it again need not give
    /// the same ids.
    ///
    /// # Errors
    /// [`DataError::Tokenize`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner.decode(ids, true).map_err(|source| DataError::Tokenize { operation: "decode", source })
    }

    /// Refuses ids that the model has no embedding for.
    ///
    /// # Errors
    /// [`DataError::TokenOutOfRange`] with the first such id.
    pub fn check_ids(&self, ids: &[u32], vocab_size: usize) -> Result<(), DataError> {
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            None => Ok(()),
            Some(&id) => Err(DataError::TokenOutOfRange { path: self.path.clone(), id, vocab_size }),
        }
    }
}
