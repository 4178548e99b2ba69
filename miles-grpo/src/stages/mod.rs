//! The stages of one step, in flow order. Each takes the immutable value of the stage before and makes its own.
//!
//! ```text
//! rollout   prompts                 -> Sampled    completions, stamped with the policy they came from
//! reward    Sampled                 -> Rewarded   an outcome per completion
//! advantage Rewarded                -> Credited   an advantage per judged completion
//! batch     Credited                -> Packed     token ids, logprobs, advantages; then reference logprobs
//! update    Packed                  -> Updated    the master weights moved
//! publish   trainer                 -> Snapshot   the next version: quantized once, stored, loaded by the engine
//! evaluate  held-out prompts        -> accuracy
//! ```

pub mod advantage;
pub mod batch;
mod clock;
mod error;
pub mod evaluate;
mod join;
pub mod publish;
pub mod reward;
pub mod rollout;
pub mod update;

pub use advantage::Credited;
pub use batch::Packed;
pub use clock::{Clock, Stage, StageSeconds};
pub use error::StageError;
pub use reward::{Judge, Outcome, Rewarded};
pub use rollout::{RolloutRequest, Sampled};
pub use update::{Updated, Versioning};

#[cfg(test)]
mod tests;
