//! Parts with one defect each, to test the suites with: every defect has a name, and the case that catches it.
//!
//! Formats, quantizers, engines, trainers, rewards and schedulers are wrappers around a good one, so that nothing but the
//! defect differs.

mod engine;
mod format;
mod quantizer;
mod reward;
mod scheduler;
mod store;
mod swaps;
mod trainer;

pub use engine::{EngineDefect, with_broken_engine};
pub use format::{BrokenFormat, FormatDefect};
pub use quantizer::{BrokenQuantizer, QuantizerDefect};
pub use reward::{BrokenReward, RewardDefect};
pub use scheduler::{BrokenScheduler, SchedulerDefect};
pub use store::{BrokenStore, StoreDefect};
pub use trainer::{TrainerDefect, with_broken_trainer};

/// Defines an enum of defects with the case that catches each.
macro_rules! defects {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $case:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* #[doc = concat!("Caught by `", $case, "`.")] $variant,)*
        }

        impl $name {
            /// Every defect.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// The case that catches it.
            #[must_use]
            pub fn caught_by(self) -> &'static str {
                match self { $($name::$variant => $case,)* }
            }
        }
    };
}
use defects;
