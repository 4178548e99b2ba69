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
use crate::format::FormatRule;
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
        /// If the name is unknown or doubled, or the options do not fit.
        pub fn $lookup(name: &str, options: &Value) -> Result<$value> {
            let found: Vec<&$entry> = inventory::iter::<$entry>().filter(|entry| entry.name == name).collect();
            match found.as_slice() {
                [entry] => (entry.make)(options),
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
