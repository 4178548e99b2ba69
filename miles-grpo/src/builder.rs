//! Putting a run together: a plan, and values for what the plan's names should not decide.

use std::sync::Arc;

use miles_core::plugin::{Advantage, Backend, Loss, Observer, Reward, Scheduler};
use miles_core::policy::PolicyStore;

use crate::config::Plan;
use crate::{Interrupt, Result, Run, setup};

/// Builds a [`Run`]. Whatever is not passed as a value is found by the plan's names.
pub struct RunBuilder {
    pub(crate) plan: Plan,
    pub(crate) backend: Option<Backend>,
    pub(crate) reward: Option<Box<dyn Reward>>,
    pub(crate) advantage: Option<Box<dyn Advantage>>,
    pub(crate) loss: Option<Box<dyn Loss>>,
    pub(crate) scheduler: Option<Box<dyn Scheduler>>,
    pub(crate) store: Option<Arc<dyn PolicyStore>>,
    pub(crate) observers: Vec<Box<dyn Observer>>,
    pub(crate) interrupt: Interrupt,
}

impl RunBuilder {
    pub(crate) fn new(plan: Plan) -> Self {
        RunBuilder {
            plan,
            backend: None,
            reward: None,
            advantage: None,
            loss: None,
            scheduler: None,
            store: None,
            observers: Vec::new(),
            interrupt: Interrupt::new(),
        }
    }

    /// Runs on this backend.
    #[must_use]
    pub fn backend(self, backend: Backend) -> Self {
        RunBuilder { backend: Some(backend), ..self }
    }

    /// Judges with this reward.
    #[must_use]
    pub fn reward(self, reward: impl Reward + 'static) -> Self {
        RunBuilder { reward: Some(Box::new(reward)), ..self }
    }

    /// Credits with this estimator.
    #[must_use]
    pub fn advantage(self, advantage: impl Advantage + 'static) -> Self {
        RunBuilder { advantage: Some(Box::new(advantage)), ..self }
    }

    /// Trains with this loss.
    #[must_use]
    pub fn loss(self, loss: impl Loss + 'static) -> Self {
        RunBuilder { loss: Some(Box::new(loss)), ..self }
    }

    /// Orders work with this scheduler.
    #[must_use]
    pub fn scheduler(self, scheduler: impl Scheduler + 'static) -> Self {
        RunBuilder { scheduler: Some(Box::new(scheduler)), ..self }
    }

    /// Keeps versions in this store (default: what the plan says).
    #[must_use]
    pub fn store(self, store: Arc<dyn PolicyStore>) -> Self {
        RunBuilder { store: Some(store), ..self }
    }

    /// Adds an observer; `metrics.jsonl` and `report.html` are written without one.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Stops after the step in which this flag is set.
    #[must_use]
    pub fn interrupt(self, interrupt: Interrupt) -> Self {
        RunBuilder { interrupt, ..self }
    }

    /// Opens the model, the data and the output directory, and publishes the first version (or restores a saved one).
    ///
    /// # Errors
    /// Whatever is wrong with any of them. Nothing is written before model, data and backend are known to be good.
    pub async fn build(self) -> Result<Run> {
        setup::setup(self).await
    }
}
