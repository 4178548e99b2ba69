//! Finding plug-ins by name, so that a config file can say `reward = "exact-match"`.
//!
//! Any linked crate registers with one line; values can always be passed directly instead. Entries are collected at
//! link time (crate `inventory`), sorted by name, and an unknown or doubled name is an error that lists the known ones.
//! A crate that is only listed in `Cargo.toml` is not linked: write `use my_plugins as _;` in the binary.
//!
//! ```
//! use miles_core::{plugin::Advantage, register_advantage, registry};
//!
//! struct Centered;
//! impl Advantage for Centered {
//!     fn advantages(&self, rewards: &[f32]) -> Vec<f32> {
//!         let mean = rewards.iter().sum::<f32>() / rewards.len() as f32;
//!         rewards.iter().map(|reward| reward - mean).collect()
//!     }
//! }
//! register_advantage!("centered", |_options| Ok(Box::new(Centered)));
//!
//! let advantage = registry::advantage("centered", &serde_json::Value::Null)?;
//! assert_eq!(advantage.advantages(&[0.0, 1.0]), [-0.5, 0.5]);
//! # Ok::<(), miles_core::Error>(())
//! ```

use serde_json::Value;

use crate::Result;
use crate::format::{FormatError, FormatId, FormatRule, builtin_rule};
use crate::plugin::{Advantage, Backend, Loss, Reward, Scheduler};

pub use inventory;

/// What can go wrong with names.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryError {
    /// Nothing of that name is linked.
    #[error("unknown {kind} `{name}`{}; known: {}", suggestion(nearest), known.join(", "))]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        /// Name.
        name: String,
        /// The nearest known name, if one is near.
        nearest: Option<String>,
        /// Known names.
        known: Vec<String>,
    },
    /// Two linked crates registered one name.
    #[error("{kind} `{name}` is registered {times} times")]
    Doubled {
        /// What was looked for.
        kind: &'static str,
        /// Name.
        name: String,
        /// Registrations.
        times: usize,
    },
    /// A name that no config can name, or that a digest cannot hold.
    #[error("a {kind} is registered as `{name}`: {why}")]
    BadName {
        /// What was registered.
        kind: &'static str,
        /// Name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A plug-in under a name of the library's own, which always goes first.
    #[error("{kind} `{name}` is built in: one of another arithmetic needs another name")]
    BuiltIn {
        /// What was registered or passed.
        kind: &'static str,
        /// Name.
        name: String,
    },
    /// A plug-in that calls itself otherwise than it is registered.
    #[error("{kind} `{name}` calls itself `{own}`: configs and digests would name it differently")]
    OtherName {
        /// What was registered.
        kind: &'static str,
        /// Name in the registry.
        name: String,
        /// Its own.
        own: String,
    },
    /// Options that a plug-in does not take.
    #[error("{kind} `{name}`: {why}")]
    BadOptions {
        /// What was made.
        kind: &'static str,
        /// Name.
        name: String,
        /// What is wrong.
        why: String,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// The known name nearest to `name`, if one is near enough to be a slip of the keyboard.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}

/// Refuses a format of one's own under a built-in name, variants and their combinations included.
///
/// # Errors
/// [`RegistryError::BuiltIn`].
pub fn check_own_format(format: &FormatId) -> Result<(), RegistryError> {
    match builtin_rule(format) {
        None => Ok(()),
        Some(_) => Err(RegistryError::BuiltIn { kind: "format", name: format.to_string() }),
    }
}

/// What a plug-in's own name has to be, given the name that it is registered under.
trait Named {
    fn check(&self, name: &str) -> Result<(), RegistryError>;
}

impl Named for Box<dyn FormatRule> {
    fn check(&self, name: &str) -> Result<(), RegistryError> {
        let own = self.id();
        check_own_format(&own)?;
        if own.as_str() == name {
            return Ok(());
        }
        Err(RegistryError::OtherName { kind: "format", name: name.to_owned(), own: own.to_string() })
    }
}

/// Plug-ins without a name of their own, and backends, which may be named after the part that they replace.
macro_rules! nameless {
    ($($value:ty),*) => {
        $(impl Named for $value {
            fn check(&self, _name: &str) -> Result<(), RegistryError> {
                Ok(())
            }
        })*
    };
}
nameless!(Box<dyn Reward>, Box<dyn Advantage>, Box<dyn Loss>, Box<dyn Scheduler>, Backend);

/// Names of every kind are made of what the names of formats are made of.
fn check_name(kind: &'static str, name: &str) -> Result<(), RegistryError> {
    match FormatId::new(name) {
        Err(FormatError::InvalidFormatId { why, .. }) if name != "bf16" || kind == "format" => {
            Err(RegistryError::BadName { kind, name: name.to_owned(), why })
        }
        _ => Ok(()),
    }
}

macro_rules! registered {
    ($(#[$doc:meta])* $entry:ident, $kind:literal, $lookup:ident, $names:ident, $macro:ident, $value:ty) => {
        $(#[$doc])*
        pub struct $entry {
            /// Name in configs.
            pub name: &'static str,
            /// Makes one from its options (`Null` when the config gives none).
            pub make: fn(&Value) -> Result<$value>,
        }

        inventory::collect!($entry);

        #[doc = concat!("Makes the ", $kind, " of a name from its options.")]
        ///
        /// # Errors
        /// If the name is unknown or doubled, may not be registered, or is not what the plug-in calls itself, or the
        /// options do not fit.
        pub fn $lookup(name: &str, options: &Value) -> Result<$value> {
            let found: Vec<&$entry> = inventory::iter::<$entry>().filter(|entry| entry.name == name).collect();
            match found.as_slice() {
                [entry] => {
                    check_name($kind, entry.name)?;
                    let made = (entry.make)(options)?;
                    Named::check(&made, entry.name)?;
                    Ok(made)
                }
                [] => {
                    let known = $names();
                    let nearest = nearest(name, known.iter().copied());
                    let known = known.into_iter().map(str::to_owned).collect();
                    Err(RegistryError::Unknown { kind: $kind, name: name.to_owned(), nearest, known }.into())
                }
                many => Err(RegistryError::Doubled { kind: $kind, name: name.to_owned(), times: many.len() }.into()),
            }
        }

        #[doc = concat!("Every registered ", $kind, " name, sorted.")]
        #[must_use]
        pub fn $names() -> Vec<&'static str> {
            let mut names: Vec<&'static str> = inventory::iter::<$entry>().map(|entry| entry.name).collect();
            names.sort_unstable();
            names.dedup();
            names
        }

        #[doc = concat!("Registers a ", $kind, " under a name: `", stringify!($macro), "!(\"name\", |options| Ok(...))`.")]
        #[macro_export]
        macro_rules! $macro {
            ($name:expr, $make:expr) => {
                $crate::registry::inventory::submit! { $crate::registry::$entry { name: $name, make: $make } }
            };
        }
    };
}

registered!(
    /// A registered reward.
    RewardEntry, "reward", reward, reward_names, register_reward, Box<dyn Reward>
);
registered!(
    /// A registered advantage.
    AdvantageEntry, "advantage", advantage, advantage_names, register_advantage, Box<dyn Advantage>
);
registered!(
    /// A registered loss.
    LossEntry, "loss", loss, loss_names, register_loss, Box<dyn Loss>
);
registered!(
    /// A registered scheduler.
    SchedulerEntry, "scheduler", scheduler, scheduler_names, register_scheduler, Box<dyn Scheduler>
);
registered!(
    /// A registered backend.
    BackendEntry, "backend", backend, backend_names, register_backend, Backend
);
registered!(
    /// A registered format.
    FormatEntry, "format", format, format_names, register_format, Box<dyn FormatRule>
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Mxfp8, QuantizeSpec, QuantizedTensor, Source, TensorLayout};

    /// A format of a name, which is all that is looked at.
    struct Called(&'static str);

    impl FormatRule for Called {
        fn id(&self) -> FormatId {
            FormatId::from_static(self.0)
        }

        fn layout(&self, _: usize, _: usize, _: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
            Err(FormatError::NoShards)
        }

        fn quantize(&self, _: &Source<'_>, _: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
            Err(FormatError::NoShards)
        }

        fn quantize_joint(&self, _: &[Source<'_>], _: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
            Err(FormatError::NoShards)
        }

        fn dequantize(&self, _: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
            Err(FormatError::NoShards)
        }
    }

    struct Zero;

    impl Advantage for Zero {
        fn advantages(&self, rewards: &[f32]) -> Vec<f32> {
            vec![0.0; rewards.len()]
        }
    }

    register_format!("test-own", |_| Ok(Box::new(Called("test-own"))));
    register_format!("test-one-name", |_| Ok(Box::new(Called("test-another-name"))));
    register_format!("mxfp8", |_| Ok(Box::new(Mxfp8::DEFAULT)));
    register_format!("nvfp4/te-2.13", |_| Ok(Box::new(Called("nvfp4/te-2.13"))));
    register_format!("Test Format", |_| Ok(Box::new(Called("test-format"))));
    register_advantage!("", |_| Ok(Box::new(Zero)));
    register_advantage!("test-zero", |_| Ok(Box::new(Zero)));

    fn refused(name: &str) -> RegistryError {
        match format(name, &Value::Null) {
            Err(crate::Error::Registry(error)) => error,
            Err(error) => panic!("{name}: {error}"),
            Ok(made) => panic!("{name} is made as {}", made.id()),
        }
    }

    #[test]
    fn a_format_is_registered_under_its_own_name_and_under_no_built_in_one() {
        assert_eq!(format("test-own", &Value::Null).unwrap().id().as_str(), "test-own");
        for name in ["mxfp8", "nvfp4/te-2.13"] {
            assert_eq!(refused(name), RegistryError::BuiltIn { kind: "format", name: name.to_owned() });
        }
        let other = RegistryError::OtherName {
            kind: "format",
            name: "test-one-name".to_owned(),
            own: "test-another-name".to_owned(),
        };
        assert_eq!(refused("test-one-name"), other);
    }

    #[test]
    fn a_bad_name_is_refused_whatever_is_registered_under_it() {
        let error = refused("Test Format");
        assert!(
            matches!(&error, RegistryError::BadName { kind: "format", name, .. } if name == "Test Format"),
            "{error}"
        );
        let error = advantage("", &Value::Null).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("advantage") && error.contains("empty"), "{error}");
        assert_eq!(advantage("test-zero", &Value::Null).unwrap().advantages(&[1.0]), [0.0]);
    }
}
