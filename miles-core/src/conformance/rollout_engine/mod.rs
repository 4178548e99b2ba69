//! The suite for rollout engines.

pub(super) mod batching;
pub(super) mod bench;
mod ending;
mod formats;
mod refusals;
pub(super) mod sampling;
mod swaps;
mod versions;

use super::{Report, Suite};
use crate::plugin::Backend;
use bench::Bench;

/// The groups of the rollout-engine suite, in order.
pub const ROLLOUT_ENGINE_GROUPS: &[&str] = &["formats", "sampling", "versions", "swaps", "ending", "refusals"];

/// Runs the whole rollout-engine suite on the engines of a backend, in every recipe whose format it declares.
#[must_use]
pub fn rollout_engines(backend: &Backend) -> Report {
    run(backend, suite(backend))
}

/// Runs one group of the rollout-engine suite, or the one case of that name.
#[must_use]
pub fn rollout_engine_group(backend: &Backend, group: &str) -> Report {
    run(backend, suite(backend).only(group))
}

fn suite(backend: &Backend) -> Suite {
    Suite::new(format!("rollout engine of {} on {}", backend.name, backend.device))
}

fn run(backend: &Backend, mut suite: Suite) -> Report {
    let bench = Bench::new(backend);
    formats::add(&mut suite, &bench);
    sampling::add(&mut suite, &bench);
    batching::add(&mut suite, &bench);
    versions::add(&mut suite, &bench);
    swaps::add(&mut suite, &bench);
    ending::add(&mut suite, &bench);
    refusals::add(&mut suite, &bench);
    suite.finish()
}
