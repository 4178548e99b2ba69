//! Typed access to the keys of one JSON object, with errors that name the file and the key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::limits::MAX_EXTENT;
use crate::model::ModelError;

/// One JSON object of a file. A `null` value counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    path: &'a Path,
    /// Objects that this one is nested in, with a trailing dot.
    prefix: &'static str,
    object: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(path: &'a Path, object: &'a Map<String, Value>) -> Self {
        Keys { path, prefix: "", object }
    }

    pub(crate) fn nested(self, prefix: &'static str, object: &'a Map<String, Value>) -> Self {
        Keys { prefix, object, ..self }
    }

    pub(crate) fn has(self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    pub(crate) fn value(self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn object(self, key: &str) -> Result<Option<&'a Map<String, Value>>, ModelError> {
        self.typed(key, "an object", Value::as_object)
    }

    pub(crate) fn text(self, key: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn flag(self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn number(self, key: &str) -> Result<Option<f64>, ModelError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A number above zero.
    pub(crate) fn positive(self, key: &str) -> Result<Option<f64>, ModelError> {
        self.typed(key, "a number above 0", |value| value.as_f64().filter(|number| *number > 0.0))
    }

    /// A count that may be zero.
    pub(crate) fn count(self, key: &str) -> Result<Option<usize>, ModelError> {
        let expected = format!("a whole number from 0 to {MAX_EXTENT}");
        self.typed(key, &expected, |value| as_count(value).filter(|count| *count <= MAX_EXTENT))
    }

    /// A count of at least one.
    pub(crate) fn size(self, key: &str) -> Result<Option<usize>, ModelError> {
        let expected = format!("a whole number from 1 to {MAX_EXTENT}");
        self.typed(key, &expected, |value| as_count(value).filter(|count| (1..=MAX_EXTENT).contains(count)))
    }

    pub(crate) fn required_size(self, key: &str) -> Result<usize, ModelError> {
        self.size(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list of whole numbers, or one number standing for a list of one.
    pub(crate) fn ids(self, key: &str) -> Result<Option<Vec<u32>>, ModelError> {
        let as_id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        self.typed(key, "a token id or a list of token ids", |value| match value {
            Value::Array(list) => list.iter().map(as_id).collect(),
            one => as_id(one).map(|id| vec![id]),
        })
    }

    /// A list of strings.
    pub(crate) fn texts(self, key: &str) -> Result<Option<Vec<String>>, ModelError> {
        self.typed(key, "a list of strings", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    /// The one of several keys, old and new, that is present; two that differ are a contradiction.
    pub(crate) fn alias<'k>(self, keys: &[&'k str]) -> Result<&'k str, ModelError> {
        let mut present = keys.iter().filter(|key| self.value(key).is_some());
        let Some(first) = present.next() else {
            return Ok(keys[0]);
        };
        match present.find(|key| self.value(key) != self.value(first)) {
            None => Ok(first),
            Some(other) => Err(self.contradiction(other, format!("differs from `{}{first}`", self.prefix))),
        }
    }

    pub(crate) fn missing(self, key: &str) -> ModelError {
        ModelError::MissingKey { path: self.path.to_owned(), key: self.name(key) }
    }

    pub(crate) fn unsupported(self, key: &str, supported: &'static str) -> ModelError {
        let value = self.object.get(key).map_or_else(|| "absent".to_owned(), shortened);
        ModelError::Unsupported { path: self.path.to_owned(), key: self.name(key), value, supported }
    }

    pub(crate) fn contradiction(self, key: &str, why: String) -> ModelError {
        ModelError::Contradiction { path: self.path.to_owned(), key: self.name(key), why }
    }

    pub(crate) fn wrong(self, key: &str, expected: &str) -> ModelError {
        let found = self.object.get(key).map_or_else(|| "absent".to_owned(), shortened);
        ModelError::WrongValue { path: self.path.to_owned(), key: self.name(key), expected: expected.to_owned(), found }
    }

    fn name(self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn typed<T>(
        self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => convert(value).map(Some).ok_or_else(|| self.wrong(key, expected)),
        }
    }
}

fn as_count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|count| usize::try_from(count).ok())
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}
