//! TOML and overrides into a [`RunConfig`], collecting every error.
//!
//! The default config, as JSON, is the list of known keys; whether a value has the right type is asked of the typed
//! struct itself, one key at a time. So there is no second table of keys that could disagree with the struct.

use std::path::Path;

use miles_core::registry::nearest;
use serde::Deserialize;
use serde_json::{Map, Value};
use toml::de::ValueDeserializer;

use super::{ConfigErrors, ConfigIssue, RunConfig, Why};

impl RunConfig {
    /// Reads a TOML file and applies `key=value` overrides, later ones over earlier ones.
    ///
    /// # Errors
    /// Every key that is unknown or has the wrong type.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, ConfigErrors> {
        strict(Self::default().over_file(path, overrides))
    }

    /// As [`RunConfig::read`], from text; the empty text gives the defaults.
    ///
    /// # Errors
    /// As [`RunConfig::read`].
    pub fn parse(text: &str, overrides: &[String]) -> Result<Self, ConfigErrors> {
        strict(Self::default().over(text, TEXT, overrides))
    }

    /// This config with the keys of a TOML text over it.
    ///
    /// # Errors
    /// As [`RunConfig::read`].
    pub fn with_text(self, text: &str) -> Result<Self, ConfigErrors> {
        strict(self.over(text, TEXT, &[]))
    }

    /// This config with `key=value` overrides over it. A value is read as TOML where the key takes that, else as
    /// plain text: `run.steps=5`, `precision.recipe=mxfp8`, `loss.options.eps_high=0.28`.
    ///
    /// # Errors
    /// As [`RunConfig::read`].
    pub fn with_overrides(self, overrides: &[String]) -> Result<Self, ConfigErrors> {
        strict(self.over("", TEXT, overrides))
    }

    /// As [`RunConfig::over`], from a file.
    pub(super) fn over_file(self, path: &Path, overrides: &[String]) -> (Self, Vec<ConfigIssue>) {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => self.over(&text, &name, overrides),
            Err(error) => {
                let (config, mut issues) = self.over("", &name, overrides);
                issues.insert(0, issue(&name, String::new(), Why::Unreadable(error)));
                (config, issues)
            }
        }
    }

    /// This config with everything over it that can be taken, and what cannot. `name` stands for the text in errors.
    pub(super) fn over(self, text: &str, name: &str, overrides: &[String]) -> (Self, Vec<ConfigIssue>) {
        let mut builder = Builder::new(self);
        match toml::from_str::<toml::Table>(text) {
            Ok(table) => builder.table("", &table),
            Err(error) => builder.refuse(name, String::new(), error.into()),
        }
        for text in overrides {
            match text.split_once('=') {
                Some((key, value)) => builder.set_text(key.trim(), value.trim()),
                None => builder.refuse(text, String::new(), Why::NotAnOverride),
            }
        }
        (builder.config, builder.issues)
    }

    /// Every key with its default as JSON, in file order; free-form option tables are one key.
    #[must_use]
    pub fn keys() -> Vec<(String, Value)> {
        Self::default().flattened()
    }

    /// Every dotted key with its value as JSON, in file order; free-form option tables are one key.
    #[must_use]
    pub fn flattened(&self) -> Vec<(String, Value)> {
        let mut keys = Vec::new();
        leaves("", &to_json(self), &mut keys);
        keys
    }

    /// The whole config as TOML, defaults included; keys without a value are left out.
    ///
    /// # Errors
    /// [`Why::NotWritable`] when TOML has no word for a value, such as a null among the options of a plug-in. A config
    /// that was read from TOML can always be written.
    pub fn to_toml(&self) -> Result<String, Why> {
        Ok(toml::to_string(self)?)
    }
}

struct Builder {
    config: RunConfig,
    known: Vec<String>,
    issues: Vec<ConfigIssue>,
}

impl Builder {
    fn new(config: RunConfig) -> Self {
        let known = RunConfig::keys().into_iter().map(|(key, _)| key).collect();
        Builder { config, known, issues: Vec::new() }
    }

    fn table(&mut self, prefix: &str, table: &toml::Table) {
        for (name, value) in table {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let is_section = self.known.iter().any(|known| known.starts_with(&format!("{key}.")));
            match (value, is_section) {
                (toml::Value::Table(inner), true) => self.table(&key, inner),
                (value, _) => self.set_toml(&key, value),
            }
        }
    }

    fn set_toml(&mut self, key: &str, value: &toml::Value) {
        let shown = value.to_string();
        match json(value) {
            Some(json) => {
                if let Err(why) = self.try_set(key, json) {
                    self.refuse(key, shown, why);
                }
            }
            None => self.refuse(key, shown, Why::OutOfRange { range: "finite".to_owned() }),
        }
    }

    fn set_text(&mut self, key: &str, text: &str) {
        // One value and nothing behind it: a text of several lines must not be able to set another key.
        let typed = ValueDeserializer::parse(text).and_then(toml::Value::deserialize);
        let typed = typed.ok().and_then(|value| json(&value));
        let as_typed = typed.map(|value| self.try_set(key, value));
        let result = match as_typed {
            Some(Ok(())) => Ok(()),
            Some(Err(Why::WrongType(first))) => self.try_set(key, text.into()).map_err(|_| Why::WrongType(first)),
            Some(Err(why)) => Err(why),
            None => self.try_set(key, text.into()),
        };
        if let Err(why) = result {
            self.refuse(key, text.to_owned(), why);
        }
    }

    /// Sets a known key if the struct takes the value.
    fn try_set(&mut self, key: &str, value: Value) -> Result<(), Why> {
        let known = |known: &String| known == key || is_free_table(known) && key.starts_with(&format!("{known}."));
        if !self.known.iter().any(known) {
            return Err(Why::UnknownKey { nearest: self.nearest(key) });
        }
        let mut changed = to_json(&self.config);
        let mut slot = &mut changed;
        for part in key.split('.') {
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            slot = &mut slot[part];
        }
        *slot = value;
        self.config = serde_json::from_value(changed).map_err(Why::WrongType)?;
        Ok(())
    }

    /// A key with the same last part in another section, else the most similar key, or section for a key without one.
    fn nearest(&self, key: &str) -> Option<String> {
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let namesake = self.known.iter().find(|known| last(known) == last(key));
        let section = |known: &'_ String| known.split_once('.').map(|(section, _)| section.to_owned());
        let sections: Vec<String> =
            if key.contains('.') { Vec::new() } else { self.known.iter().filter_map(section).collect() };
        let candidates = self.known.iter().chain(&sections).map(String::as_str);
        namesake.cloned().or_else(|| nearest(key, candidates))
    }

    fn refuse(&mut self, key: &str, value: String, why: Why) {
        self.issues.push(issue(key, value, why));
    }
}

fn strict((config, issues): (RunConfig, Vec<ConfigIssue>)) -> Result<RunConfig, ConfigErrors> {
    if issues.is_empty() { Ok(config) } else { Err(ConfigErrors { issues }) }
}

fn issue(key: &str, value: String, why: Why) -> ConfigIssue {
    ConfigIssue { key: key.to_owned(), value, why }
}

fn to_json(config: &RunConfig) -> Value {
    // Serialization of plain data structs with string keys has no failing case.
    serde_json::to_value(config).unwrap_or_default()
}

fn leaves(prefix: &str, value: &Value, into: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(table) if !is_free_table(prefix) => {
            for (name, inner) in table {
                let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                leaves(&key, inner, into);
            }
        }
        leaf => into.push((prefix.to_owned(), leaf.clone())),
    }
}

/// Whether a key is a table whose keys belong to a plug-in.
fn is_free_table(key: &str) -> bool {
    key.ends_with(".options")
}

/// TOML as JSON; `None` for a number that JSON cannot hold.
fn json(value: &toml::Value) -> Option<Value> {
    Some(match value {
        toml::Value::String(text) => text.as_str().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) => Value::Number(serde_json::Number::from_f64(*number)?),
        toml::Value::Boolean(truth) => (*truth).into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(items) => Value::Array(items.iter().map(json).collect::<Option<_>>()?),
        toml::Value::Table(table) => {
            Value::Object(table.iter().map(|(key, value)| Some((key.clone(), json(value)?))).collect::<Option<_>>()?)
        }
    })
}

/// What stands for a text without a file in errors.
pub(super) const TEXT: &str = "(text)";
