//! From a TOML file and `key=value` overrides to a validated plan.
//!
//! ```text
//! text, overrides -> RunConfig (mirror of the file, every key with its default) -> Plan (checked, nothing left open)
//! ```
//!
//! Every error of a config is found in one go and reported as one [`ConfigErrors`] value: unknown keys (with the
//! nearest known one), wrong types, values out of range, unknown names, contradictions.

mod assemble;
mod check;
mod digest;
mod error;
mod limits;
mod plan;
mod products;
mod read;
mod run_config;

pub use digest::ConfigFingerprint;
pub use error::{ConfigErrors, ConfigIssue, Why};
pub use plan::{
    CheckpointPlan, DataPlan, EvaluationPlan, ModelPlan, NamedPlugin, OnRewardError, Plan, PrecisionPlan, RolloutPlan,
    RunPlan, StorePlan, TrainPlan,
};
pub(crate) use products::check_held_out;
pub use run_config::{
    AdvantageSection, CheckpointSection, DataSection, EvalSection, ExistingOutput, ExportSection, LearningRateSchedule,
    LossSection, ModelSection, PrecisionSection, RewardSection, RolloutSection, RunConfig, RunSection,
    SchedulerSection, StoreKind, StoreSection, TrainSection,
};

#[cfg(test)]
mod tests;
