//! Option tables of plug-ins, read strictly.

use miles_core::registry::RegistryError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads a plug-in's options; no table at all means every default.
///
/// # Errors
/// [`RegistryError::BadOptions`] for an unknown key or a value of the wrong type.
pub fn read<T: DeserializeOwned>(kind: &'static str, name: &str, options: &Value) -> Result<T, RegistryError> {
    let table = if options.is_null() { Value::Object(Map::new()) } else { options.clone() };
    serde_json::from_value(table).map_err(|error| bad(kind, name, error.to_string()))
}

/// A refusal of options that were read but do not make sense.
#[must_use]
pub fn bad(kind: &'static str, name: &str, why: String) -> RegistryError {
    RegistryError::BadOptions { kind, name: name.to_owned(), why }
}

/// Options of a plug-in that takes none.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_table_is_the_empty_table_and_unknown_keys_are_refused() {
        assert!(read::<NoOptions>("reward", "r", &Value::Null).is_ok());
        let error = read::<NoOptions>("reward", "r", &json!({ "epsilon": 1 })).unwrap_err();
        assert!(error.to_string().contains("epsilon"), "{error}");
    }
}
