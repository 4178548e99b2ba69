//! Reading JSON without losing anything: a key that an object gives twice is refused, at any depth.
//!
//! JSON leaves open what a doubled key means, and readers differ in which of the two values they take. A file that two
//! programs read differently has no place in a proof, so every JSON file of the library is read by these functions. The
//! error is one of `serde_json`: it names the key with the objects and lists around it, and line and column.

use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Error as JsonError;

/// Reads a value from bytes.
///
/// # Errors
/// If they are not JSON, give a key twice, or are not a `T`.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, JsonError> {
    check_keys(text)?;
    serde_json::from_slice(text)
}

/// Reads a value from a text.
///
/// # Errors
/// As [`from_slice`].
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, JsonError> {
    from_slice(text.as_bytes())
}

/// Checks that a text is JSON in which no object gives a key twice, for readers that parse it themselves.
///
/// # Errors
/// If it is not; the error names the key.
pub fn check_keys(text: &[u8]) -> Result<(), JsonError> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    Place::Root.deserialize(&mut reader)?;
    reader.end()
}

/// A value of the text, by the way to it.
#[derive(Clone, Copy)]
enum Place<'a> {
    Root,
    Key(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Root => Ok(()),
            Place::Key(Place::Root, key) => write!(f, "{}", key.escape_debug()),
            Place::Key(outer, key) => write!(f, "{outer}.{}", key.escape_debug()),
            Place::Item(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let place = Place::Key(&self, &key);
            if seen.contains(&key) {
                return Err(M::Error::custom(format!("the key `{place}` is given twice")));
            }
            map.next_value_seed(place)?;
            seen.insert(key);
        }
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        let mut index = 0;
        while items.next_element_seed(Place::Item(&self, index))?.is_some() {
            index += 1;
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    #[test]
    fn a_key_that_is_given_twice_is_named_with_the_way_to_it() {
        for (text, place) in [
            (r#"{"a": 1, "a": 1}"#, "`a`"),
            (r#"{"a": {"b": 1, "c": null, "b": 2}}"#, "`a.b`"),
            (r#"{"a": [0, {"x": [], "x": {}}]}"#, "`a[1].x`"),
            (r#"[[{"k": true, "k": "s"}]]"#, "`[0][0].k`"),
            // Two spellings of one key.
            ("{\"a\": 1,\n\"\\u0061\": 1.5}", "`a`"),
        ] {
            let error = from_str::<Value>(text).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains("twice") && error.contains("line"), "{error}");
        }
        let error = from_str::<Value>("{\"a\": 1,\n\"a\": 2}").unwrap_err();
        assert_eq!((error.line(), error.column() > 0), (2, true));
    }

    #[test]
    fn everything_else_is_read_as_it_stands() {
        let text = r#" {"a": {"a": [1, -2, 1e300, "a", "a", true, null]}, "b": {"a": {}}, "A": 18446744073709551615} "#;
        let expected: Map<String, Value> = serde_json::from_str(text).unwrap();
        assert_eq!(from_str::<Map<String, Value>>(text).unwrap(), expected);
        assert_eq!(from_slice::<u8>(b"7").unwrap(), 7);
    }

    #[test]
    fn what_is_not_json_or_not_the_type_is_refused() {
        for text in ["", "{", "{\"a\" 1}", "{} {}", "nul", "{\"a\": 1,}"] {
            assert!(from_str::<Value>(text).is_err(), "{text}");
            assert!(check_keys(text.as_bytes()).is_err(), "{text}");
        }
        assert!(from_str::<u8>("300").is_err());
        let deep = "[".repeat(100_000);
        assert!(check_keys(deep.as_bytes()).is_err(), "nesting has a limit");
    }
}
