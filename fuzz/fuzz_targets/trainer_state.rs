//! The saved state of the CPU trainer, of any content: restored and saved again, or refused.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use miles_backend_cpu_ref::CpuRef;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::{Network, ParamId};
use miles_core::plugin::{ActivationDtype, AdamW, MasterDtype, Trainer, TrainerInputs, TrainerOptions};
use miles_core::policy::WeightSource;
use miles_core::precision::{Recipe, resolve};
use miles_fuzz::{Archive, Scratch};

const NAMES: [&str; 4] =
    ["state.json", "masters.safetensors", "first_moments.safetensors", "second_moments.safetensors"];

/// A network without weights of its own.
struct Zeros(Arc<Network>);

impl WeightSource for Zeros {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        into.clear();
        into.resize(self.0.parameter(id).elements(), 0.0);
        Ok(())
    }
}

static SCRATCH: LazyLock<[Scratch; 2]> =
    LazyLock::new(|| [Scratch::new("trainer-state"), Scratch::new("trainer-state-again")]);
static TRAINER: LazyLock<Mutex<Box<dyn Trainer>>> = LazyLock::new(|| {
    let json = serde_json::from_slice(include_bytes!("../seeds/model_config/llama.json")).unwrap();
    let config = HuggingFaceConfig::from_json(Path::new("config.json"), json).unwrap();
    let network = Arc::new(Network::new(config.model()));
    let backend = CpuRef::new().with_threads(std::num::NonZeroUsize::MIN).backend().unwrap();
    let inputs = TrainerInputs {
        map: Arc::new(resolve(&network, Recipe::Bf16, &[]).unwrap()),
        weights: &Zeros(Arc::clone(&network)),
        network,
        quantizer: Arc::clone(&backend.quantizer),
        options: TrainerOptions {
            activations: ActivationDtype::Bf16,
            optimizer: AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 },
            max_grad_norm: None,
            micro_batch_tokens: 64,
            train_router: false,
            masters: MasterDtype::F32,
            seed: 0,
            threads: Some(1),
        },
        scratch: None,
    };
    Mutex::new((backend.trainer)(inputs).unwrap())
});

fuzz_target!(|bytes: &[u8]| {
    let [given, saved] = &*SCRATCH;
    let mut trainer = TRAINER.lock().unwrap();
    if trainer.restore(given.fill(&Archive::parse(bytes, &NAMES).files)).is_err() {
        return;
    }
    let again = saved.fill([]);
    trainer.save(again).unwrap();
    trainer.restore(again).unwrap();
});
