//! A backend is a value made of parts on one device.

use std::path::PathBuf;
use std::sync::Arc;

use super::{ActivationDtype, MasterDtype, PublicationMode, Quantizer, RolloutEngine, Trainer, TrainerOptions};
use crate::format::FormatId;
use crate::network::Network;
use crate::policy::WeightSource;
use crate::precision::{PartitionPlan, PrecisionMap};
use crate::{Error, Result};

/// How a backend runs an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// On the format itself.
    Native,
    /// Exactly the same values through wider arithmetic; printed in the run report.
    Emulated,
    /// Not at all.
    Unsupported,
}

/// What a backend can do, declared before anything runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Formats and how their linear layers run.
    pub formats: Vec<(FormatId, Support)>,
    /// Activation types.
    pub activations: Vec<ActivationDtype>,
    /// Number types of master weights.
    pub masters: Vec<MasterDtype>,
    /// Whether a row's result is the same bits for every batch.
    pub batch_invariant: bool,
    /// What its engines can do with requests that run while a version is loaded.
    pub publication: Vec<PublicationMode>,
}

impl Capabilities {
    /// How a format is run.
    #[must_use]
    pub fn format(&self, id: &FormatId) -> Support {
        self.formats.iter().find(|(known, _)| known == id).map_or(Support::Unsupported, |(_, support)| *support)
    }

    /// Refuses a publication mode that is not declared; `backend` is the name in the error.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check_publication(&self, backend: &str, mode: PublicationMode) -> Result<()> {
        if self.publication.contains(&mode) {
            return Ok(());
        }
        let declared: Vec<&str> = self.publication.iter().map(|mode| mode.name()).collect();
        Err(Error::Unsupported {
            operation: format!("publication mode `{mode}`"),
            backend: backend.to_owned(),
            why: format!("it declares {}", if declared.is_empty() { "none".to_owned() } else { declared.join(", ") }),
        })
    }
}

/// Options of a rollout engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The network that snapshots belong to.
    pub network: Arc<Network>,
    /// Activation type.
    pub activations: ActivationDtype,
    /// Completions that decode at the same time.
    pub max_running: usize,
    /// Longest sequence, in tokens.
    pub context_tokens: usize,
    /// Worker threads; `None` uses every core.
    pub threads: Option<usize>,
    /// How routed experts are cut: snapshots of another plan are refused.
    pub partition: PartitionPlan,
    /// What becomes of requests that run while a version is loaded. An engine that cannot do it is not made:
    /// [`Error::Unsupported`].
    pub publication: PublicationMode,
}

/// What a trainer starts from.
pub struct TrainerInputs<'a> {
    /// The network.
    pub network: Arc<Network>,
    /// The precision decision.
    pub map: Arc<PrecisionMap>,
    /// Initial values of every parameter.
    pub weights: &'a dyn WeightSource,
    /// Quantizes each version, exactly once.
    pub quantizer: Arc<dyn Quantizer>,
    /// Optimizer and batching.
    pub options: TrainerOptions,
    /// A place for large temporary files, if the trainer needs one.
    pub scratch: Option<PathBuf>,
}

/// Makes a rollout engine.
pub type EngineFactory = Arc<dyn Fn(EngineOptions) -> Result<Arc<dyn RolloutEngine>> + Send + Sync>;

/// Makes a trainer.
pub type TrainerFactory = Arc<dyn Fn(TrainerInputs<'_>) -> Result<Box<dyn Trainer>> + Send + Sync>;

/// A backend: parts on one device. Replacing one part keeps the rest.
#[derive(Clone)]
pub struct Backend {
    /// Name in configs and reports.
    pub name: String,
    /// Device, for people.
    pub device: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Quantizer.
    pub quantizer: Arc<dyn Quantizer>,
    /// Rollout engines.
    pub engine: EngineFactory,
    /// Trainers.
    pub trainer: TrainerFactory,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend")
            .field("name", &self.name)
            .field("device", &self.device)
            .field("capabilities", &self.capabilities)
            .field("quantizer", &self.quantizer.id())
            .finish_non_exhaustive()
    }
}
