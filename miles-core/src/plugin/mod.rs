//! What users implement: the plug-in traits, and the values that pass between them.
//!
//! | trait | who implements it | required methods |
//! |---|---|---|
//! | [`Quantizer`] | a backend | 4 |
//! | [`crate::policy::PolicyStore`] | a place where versions live | 4 |
//! | [`RolloutEngine`] | a backend, or a client of a remote server | 3 |
//! | [`Trainer`] | a backend | 5 |
//! | [`Reward`] | a task | 1 |
//! | [`Advantage`] | an estimator | 1 |
//! | [`Loss`] | an objective | 1 |
//! | [`Scheduler`] | an order of work | 1 |
//! | [`Observer`] | a log, a display | 1 |
//! | [`crate::format::FormatRule`] | a number format | 5 |
//!
//! Every one of them is object safe and can be passed as a value; [`crate::registry`] finds them by name on top.

/// For implementations of the async traits, so that they need no dependency of their own.
pub use async_trait::async_trait;

mod advantage;
mod backend;
mod cancel;
pub mod limits;
mod loss;
mod observer;
mod publication;
mod quantizer;
mod reward;
mod rollout;
mod rollout_error;
mod sampling;
mod scheduler;
mod trainer;

pub use advantage::Advantage;
pub use backend::{Backend, Capabilities, EngineFactory, EngineOptions, Support, TrainerFactory, TrainerInputs};
pub use cancel::CancelToken;
pub use loss::{BatchTotals, Loss, LossInput, LossTerms};
pub use observer::{Event, Observer, StepRecord};
pub use publication::PublicationMode;
pub use quantizer::Quantizer;
pub use reward::{Reward, RewardError, RewardInput};
pub use rollout::{
    Completion, CompletionGroup, FinishReason, GenerateRequest, PromptRequest, Rollout, RolloutEngine, RolloutStats,
};
pub use rollout_error::RolloutError;
pub use sampling::{Sampling, SamplingRange};
pub use scheduler::{Schedule, ScheduleView, Scheduler};
pub use trainer::{
    ActivationDtype, AdamW, MasterDtype, SampleScores, ScoredPolicy, TrainBatch, TrainError, TrainSample, Trainer,
    TrainerOptions, UpdateReport,
};
