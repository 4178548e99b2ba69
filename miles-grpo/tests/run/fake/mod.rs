//! The backend and a place to run it.

mod engine;
mod policy;
mod trainer;
mod workspace;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source};
use miles_core::plugin::{
    ActivationDtype, Backend, Capabilities, MasterDtype, PublicationMode, Quantizer, Support, TrainSample,
};
use miles_core::{Error, Result};

use engine::FakeEngine;
use trainer::FakeTrainer;
pub use workspace::{Workspace, digest_of_policy, finish, metrics};

/// What a test can see of the backend, and break in it.
#[derive(Clone, Default)]
pub struct Probe {
    /// Every sample that was trained on.
    pub trained: Arc<Mutex<Vec<TrainSample>>>,
    /// Every completion that was sampled, for training or evaluation.
    pub sampled: Arc<Mutex<Vec<Vec<u32>>>>,
    /// Whether saving fails as on a full disk, after half of the files.
    pub disk_is_full: Arc<AtomicBool>,
    /// Whether the trainer's logprobs are off by one bit's worth.
    pub trainer_is_off: Arc<AtomicBool>,
}

pub fn backend(probe: &Probe) -> Backend {
    let (for_engine, for_trainer) = (probe.clone(), probe.clone());
    Backend {
        name: "fake".to_owned(),
        device: "nothing".to_owned(),
        capabilities: Capabilities {
            formats: vec![(FormatId::mxfp8(), Support::Unsupported)],
            activations: vec![ActivationDtype::Bf16],
            masters: vec![MasterDtype::F32],
            batch_invariant: true,
            publication: vec![PublicationMode::Finish],
        },
        quantizer: Arc::new(NoQuantizer),
        engine: Arc::new(move |options| Ok(Arc::new(FakeEngine::new(options, for_engine.clone())))),
        trainer: Arc::new(move |inputs| Ok(Box::new(FakeTrainer::new(inputs, for_trainer.clone())?))),
    }
}

/// High precision only.
struct NoQuantizer;

impl Quantizer for NoQuantizer {
    fn id(&self) -> &str {
        "fake/1"
    }

    fn support(&self, _format: &FormatId) -> Support {
        Support::Unsupported
    }

    fn quantize(&self, _sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        Err(unsupported(&spec.format))
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        Err(unsupported(tensor.format()))
    }
}

fn unsupported(format: &FormatId) -> Error {
    Error::Unsupported { operation: format.to_string(), backend: "fake".to_owned(), why: "it is fake".to_owned() }
}
