//! O7: a load that fails, at whichever tensor, changes nothing: not the live version, not a request that runs.

use miles_core::Error;
use miles_core::format::{FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedTensor, Source, TensorLayout};
use miles_core::policy::{PolicyError, PolicyTensor};
use miles_core::precision::{PartitionAxis, PartitionPlan};

use super::lifecycle::{Foreign, in_foreign_format};
use super::*;

/// The foreign format, whose tensor of a given number cannot be decoded.
struct FailsAt {
    tensor: usize,
    decoded: AtomicUsize,
}

impl FormatRule for FailsAt {
    fn id(&self) -> FormatId {
        Foreign.id()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        Foreign.layout(rows, cols, spec)
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        Foreign.quantize(source, spec)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        Foreign.quantize_joint(sources, spec)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        if self.decoded.fetch_add(1, Ordering::Relaxed) == self.tensor {
            let (tensor, value) = (format!("number {}", self.tensor), f32::NAN);
            return Err(FormatError::NonFinite { tensor, row: 0, column: 0, block: 0, value });
        }
        Foreign.dequantize(tensor)
    }
}

/// Generates while a load is tried before forward 5, which has to fail; returns the rollout and the error.
fn generate_while_failing(engine: &Arc<CpuEngine>, misfit: &Arc<Snapshot>) -> (Rollout, Error) {
    let (loader, misfit, errors) =
        (Arc::clone(engine), Arc::clone(misfit), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (told, forwards) = (Arc::clone(&errors), AtomicUsize::new(0));
    let cancel = CancelToken::when(move || {
        if forwards.fetch_add(1, Ordering::Relaxed) == 5 {
            told.lock().unwrap().push(block_on(loader.load(Arc::clone(&misfit))).unwrap_err());
        }
        false
    });
    let rollout = block_on(engine.generate(&request(1.0, 6), &cancel)).unwrap();
    let error = errors.lock().unwrap().pop().unwrap();
    (rollout, error)
}

fn engine(live: &Arc<Snapshot>, context: &Context, publication: PublicationMode) -> Arc<CpuEngine> {
    let options = EngineOptions {
        network: Arc::clone(live.network()),
        activations: ActivationDtype::Bf16,
        max_running: 3,
        context_tokens: 64,
        threads: None,
        partition: live.map().plan(),
        publication,
    };
    let engine = Arc::new(CpuEngine::new(options, context).unwrap());
    block_on(engine.load(Arc::clone(live))).unwrap();
    engine
}

/// In every mode: the load of `misfit` fails with the right error, and nothing else happens.
fn check(live: &Arc<Snapshot>, context: &Context, misfit: &Arc<Snapshot>, is_right: impl Fn(&Error) -> bool) {
    for publication in PublicationMode::ALL {
        let engine = engine(live, context, publication);
        let expected = generate(&engine, &request(1.0, 6));
        let (rollout, error) = generate_while_failing(&engine, misfit);
        assert!(is_right(&error), "{publication}: {error}");
        assert_eq!(rollout, expected, "{publication}: the running request noticed");
        assert_eq!(engine.loaded(), Some(live.stamp()), "{publication}");
        assert_eq!(generate(&engine, &request(1.0, 6)), expected, "{publication}: a later request noticed");
    }
}

#[test]
fn o7_a_tensor_that_fails_leaves_the_old_version_live_whichever_it_is() {
    let live = quantized("qwen3", Recipe::Mxfp8);
    let misfit = in_foreign_format(&scaled("qwen3", Recipe::Mxfp8, 1, 1.25, |_| true));
    let is_quantized = |id: &ParamId| matches!(misfit.tensor(*id).as_ref(), PolicyTensor::Quantized(_));
    let tensors = misfit.network().ids().filter(is_quantized).count();
    assert!(tensors > 8);
    for tensor in [0, 1, tensors / 2, tensors - 1] {
        let compute = CpuRef::new().compute().unwrap();
        let rule = Arc::new(FailsAt { tensor, decoded: AtomicUsize::new(0) });
        let quantizer = crate::quantizer::CpuQuantizer::new(compute.clone()).unwrap().with_rule(rule.clone()).unwrap();
        let context = Context::new(compute, Arc::new(quantizer));
        check(&live, &context, &misfit, |error| {
            // The next load starts from the first tensor again.
            let decoded = rule.decoded.swap(0, Ordering::Relaxed);
            decoded == tensor + 1 && matches!(error, Error::Format(FormatError::NonFinite { .. }))
        });
    }
}

#[test]
fn o7_every_refusal_leaves_the_old_version_live() {
    let context = CpuRef::new().context().unwrap();
    let live = quantized("qwen3-moe", Recipe::Mxfp8);
    check(&live, &context, &as_stored("qwen3"), |error| {
        matches!(error, Error::Policy(PolicyError::TensorMismatch { .. }))
    });
    check(&live, &context, &in_foreign_format(&live), |error| matches!(error, Error::Unsupported { .. }));
    let checkpoint = checkpoint("qwen3-moe");
    let plan = PartitionPlan::new(2, PartitionAxis::Intermediate).unwrap();
    let map = miles_core::precision::resolve_with(checkpoint.network(), Recipe::Mxfp8, &[], &[], plan).unwrap();
    let ledger = Ledger::discard();
    let version = PolicyContext { run: "test", step: 0, version: PolicyVersion(1), ledger: &ledger };
    let quantizer = CpuRef::new().quantizer().unwrap();
    let cut = quantize_policy(checkpoint.network(), &Arc::new(map), &quantizer, &checkpoint, version).unwrap();
    check(&live, &context, &Arc::new(cut), |error| {
        matches!(error, Error::Policy(PolicyError::PartitionMismatch { .. }))
    });
}
