//! What a run is made of: its plug-ins, and what is known about it from the start.

use std::sync::Arc;

use miles_core::checkpoint::Template;
use miles_core::digest::Digest;
use miles_core::plugin::{Advantage, Loss, Observer, Reward, RolloutEngine, Scheduler, Trainer};
use miles_core::policy::{PolicyStamp, PolicyStore};
use miles_core::precision::PrecisionTable;

/// The plug-ins of a run.
pub(crate) struct Parts {
    pub engine: Arc<dyn RolloutEngine>,
    pub trainer: Box<dyn Trainer>,
    pub store: Arc<dyn PolicyStore>,
    pub reward: Box<dyn Reward>,
    pub advantage: Box<dyn Advantage>,
    pub loss: Box<dyn Loss>,
    pub scheduler: Box<dyn Scheduler>,
    pub observers: Vec<Box<dyn Observer>>,
}

/// What does not change during a run.
pub(crate) struct Facts {
    pub template: Template,
    pub precision: PrecisionTable,
    pub map_digest: Digest,
    pub backend: String,
    pub notes: Vec<String>,
    pub reference: PolicyStamp,
}
