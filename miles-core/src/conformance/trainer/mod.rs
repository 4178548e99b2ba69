//! The suite for trainers.

pub(super) mod bench;
mod optimizer;
mod publication;
mod recipes;
mod refusals;
mod resume;
mod scores;
mod update;

use std::path::PathBuf;

use super::{Report, Suite};
use crate::plugin::Backend;
use crate::precision::Recipe;
use bench::TrainerBench;

/// The groups of the trainer suite, in order.
pub const TRAINER_GROUPS: &[&str] = &["recipes", "publication", "scores", "update", "optimizer", "resume", "refusals"];

/// A backend whose trainers are tested, and what the suite needs beside it.
#[derive(Clone, Debug)]
pub struct TrainerSubject {
    /// The backend: its trainers, and the engines and the quantizer that they work with.
    pub backend: Backend,
    /// A directory that exists; saved states are written below it and removed.
    pub scratch: PathBuf,
    /// Recipes that the trainers do, of those whose format the backend declares. Every other one has to be refused.
    pub recipes: Vec<Recipe>,
}

impl TrainerSubject {
    /// A backend whose trainers do every recipe of the formats that it declares.
    #[must_use]
    pub fn new(backend: Backend, scratch: impl Into<PathBuf>) -> Self {
        TrainerSubject { backend, scratch: scratch.into(), recipes: Recipe::ALL.to_vec() }
    }

    /// The same without a recipe, which the trainers then have to refuse.
    #[must_use]
    pub fn without(mut self, recipe: Recipe) -> Self {
        self.recipes.retain(|known| *known != recipe);
        self
    }
}

/// Runs the whole trainer suite, in every recipe that the subject does.
#[must_use]
pub fn trainers(subject: &TrainerSubject) -> Report {
    run(subject, suite(subject))
}

/// Runs one group of the trainer suite, or the one case of that name.
#[must_use]
pub fn trainer_group(subject: &TrainerSubject, group: &str) -> Report {
    run(subject, suite(subject).only(group))
}

fn suite(subject: &TrainerSubject) -> Suite {
    Suite::new(format!("trainer of {} on {}", subject.backend.name, subject.backend.device))
}

fn run(subject: &TrainerSubject, mut suite: Suite) -> Report {
    let bench = TrainerBench::new(subject);
    recipes::add(&mut suite, &bench);
    publication::add(&mut suite, &bench);
    scores::add(&mut suite, &bench);
    update::add(&mut suite, &bench);
    optimizer::add(&mut suite, &bench);
    resume::add(&mut suite, &bench);
    refusals::add(&mut suite, &bench);
    suite.finish()
}
