//! What every implementation of a plug-in trait has to hold, as a suite that anyone can run (feature `conformance`).
//!
//! One function per trait takes the value under test and returns a [`Report`]:
//!
//! ```
//! use miles_core::{conformance, format::Mxfp8};
//!
//! conformance::formats(&Mxfp8::DEFAULT).require()?;
//! # Ok::<(), conformance::ConformanceError>(())
//! ```
//!
//! and [`conformance_tests!`](crate::conformance_tests) makes one `#[test]` per group of cases out of it, so that what
//! fails is seen apart:
//!
//! ```
//! # use miles_core::format::Mxfp8;
//! miles_core::conformance_tests! { format: Mxfp8::DEFAULT }
//! ```
//!
//! Four rules hold for every suite:
//!
//! - A panic of the value under test is a failed case, and the rest still runs.
//! - What is declared unsupported has to answer [`Error::Unsupported`](crate::Error::Unsupported) when it is asked for;
//!   what is declared supported must not.
//! - A report without one passed case fails: nothing ran.
//! - Cases are functions of the value under test alone: no environment, no random seed, and no clock but to give up a
//!   wait that never ends.

mod advantage;
pub mod broken;
pub mod broken_parts;
mod compare;
pub mod fixture;
mod formats;
mod golden;
mod grid;
mod loss;
mod macros;
mod observer;
mod operands;
mod policy_store;
mod quantizers;
mod report;
mod reward;
mod rollout_engine;
mod scheduler;
mod subscription;
mod suite;
mod trainer;
mod wait;

pub use advantage::{ADVANTAGE_GROUPS, advantage_group, advantages};
pub use formats::{FORMAT_GROUPS, format_group, formats};
pub use loss::{LOSS_GROUPS, loss_group, losses};
pub use observer::{MakeObserver, OBSERVER_GROUPS, observer_group, observers};
pub use policy_store::{MakeStore, POLICY_STORE_GROUPS, policy_store_group, policy_stores};
pub use quantizers::{Publisher, QUANTIZER_GROUPS, publication, quantizer, quantizer_group, quantizer_with};
pub use report::{Case, ConformanceError, Outcome, Report};
pub use reward::{REWARD_GROUPS, RewardSample, RewardSubject, reward_group, rewards};
pub use rollout_engine::{ROLLOUT_ENGINE_GROUPS, rollout_engine_group, rollout_engines};
pub use scheduler::{MakeScheduler, SCHEDULER_GROUPS, scheduler_group, schedulers};
pub use suite::{Failure, Suite, Verdict};
pub use trainer::{TRAINER_GROUPS, TrainerSubject, trainer_group, trainers};

#[cfg(test)]
pub(crate) use wait::wait;
