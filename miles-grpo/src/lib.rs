//! The GRPO loop of miles: config, data, rewards, advantages, losses, schedulers, tracking.
//!
//! ```text
//! config -> plan -> checkpoint -> precision map -> quantize -> policy store -> rollout -> reward -> advantage -> trainer -> publish
//!                                                     ^                                                              |
//!                                                     +------------------------- version v+1 ------------------------+
//! ```
//!
//! [`Run`] closes the circle. Everything it uses can be passed as a value (backend, reward, scheduler, advantage,
//! loss, observers, policy store); what is not passed is found by the names in the config. The crate knows no backend:
//! the program links one.
//!
//! ```no_run
//! # async fn example(backend: miles_core::plugin::Backend) -> Result<(), miles_grpo::Error> {
//! use miles_grpo::{Plan, Run, RunConfig};
//!
//! let config = RunConfig::parse("model.dir = \"my-model\"\ndata.train = \"train.jsonl\"", &["run.steps=20".into()])?;
//! let run = Run::builder(Plan::new(&config)?).backend(backend).build().await?;
//! let outcome = run.run().await?;
//! println!("{}", outcome.summary);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed"))]

pub mod advantage;
mod builder;
pub mod checkpoint;
pub mod config;
pub mod data;
mod error;
pub mod export;
mod interrupt;
pub mod kl;
pub mod learning_rate;
mod left_config;
mod left_policy;
pub mod left_run;
pub mod loss;
pub mod metrics;
pub mod options;
mod output;
mod parts;
pub mod reward;
mod run;
pub mod run_audit;
pub mod run_diff;
pub mod scheduler;
mod setup;
pub mod stages;
mod store;
mod summary;
pub mod track;

pub use builder::RunBuilder;
pub use config::{Plan, RunConfig};
pub use error::{Error, Result};
pub use interrupt::Interrupt;
pub use output::OutputError;
pub use run::{Outcome, Run};
pub use summary::Summary;
