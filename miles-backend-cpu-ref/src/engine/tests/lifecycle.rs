//! Loading, stopping, cancelling and refusing.

use miles_core::Error;
use miles_core::format::{FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedTensor, Source, TensorLayout};
use miles_core::plugin::limits::MAX_COMPLETIONS;
use miles_core::plugin::{FinishReason, PublicationMode, RolloutError};
use miles_core::policy::{PolicyError, PolicyTensor};
use miles_core::precision::PartitionPlan;

use super::*;

#[test]
fn no_cached_key_or_value_survives_a_load() {
    let old = quantized("qwen3", Recipe::Bf16);
    let new = scaled("qwen3", Recipe::Bf16, 1, 1.25, |role| role != Role::Norm);
    let engine = loaded(&old, &Setup::default());
    let before = generate(&engine, &request(1.0, 6));
    block_on(engine.load(Arc::clone(&new))).unwrap();
    let after = generate(&engine, &request(1.0, 6));
    let fresh = generate(&loaded(&new, &Setup::default()), &request(1.0, 6));
    assert_eq!(drawn(&after), drawn(&fresh), "the same prompts, computed anew");
    assert_ne!(drawn(&after), drawn(&before));
    assert_eq!((after.stats.cached_tokens, after.stats.prefilled_tokens), (0, 5 + 1 + 11));
    assert_eq!((before.stamp, after.stamp), (old.stamp(), new.stamp()));
    for completion in completions(&after) {
        assert_eq!(completion.versions, vec![PolicyVersion(1); completion.tokens.len()]);
    }
}

#[test]
fn a_refused_snapshot_leaves_the_old_version_live() {
    let old = as_stored("qwen3");
    let engine = loaded(&old, &Setup::default());
    let before = generate(&engine, &request(1.0, 4));
    let error = block_on(engine.load(as_stored("qwen3-moe"))).unwrap_err();
    assert!(matches!(error, Error::Policy(PolicyError::TensorMismatch { .. })), "{error}");
    assert_eq!(engine.loaded(), Some(old.stamp()));
    assert_eq!(generate(&engine, &request(1.0, 4)), before);
}

/// A format that is linked nowhere, with the bytes of MXFP8.
pub(super) struct Foreign;

impl Foreign {
    fn like_mxfp8(spec: &QuantizeSpec) -> (&'static dyn FormatRule, QuantizeSpec) {
        let mut like = spec.clone();
        like.format = FormatId::mxfp8();
        (miles_core::format::builtin_rule(&like.format).unwrap(), like)
    }
}

impl FormatRule for Foreign {
    fn id(&self) -> FormatId {
        FormatId::new("foreign").unwrap()
    }

    fn layout(&self, rows: usize, cols: usize, spec: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        let (rule, spec) = Self::like_mxfp8(spec);
        rule.layout(rows, cols, &spec)
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let (rule, like) = Self::like_mxfp8(spec);
        let mut parts = rule.quantize(source, &like)?.to_parts();
        parts.format = self.id();
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        let (rule, _) = Self::like_mxfp8(&QuantizeSpec::weight(self.id()));
        let mut parts = tensor.to_parts();
        parts.format = FormatId::mxfp8();
        rule.dequantize(&QuantizedTensor::from_parts(rule, None, parts)?)
    }
}

/// The snapshot with its MXFP8 tensors under the foreign format's name.
pub(super) fn in_foreign_format(snapshot: &Snapshot) -> Arc<Snapshot> {
    let network = snapshot.network();
    let rename = |id| match snapshot.tensor(id).as_ref() {
        PolicyTensor::Quantized(tensor) => {
            let mut parts = tensor.to_parts();
            parts.format = Foreign.id();
            Arc::new(PolicyTensor::Quantized(QuantizedTensor::from_parts(&Foreign, None, parts).unwrap()))
        }
        PolicyTensor::Dense(_) => Arc::clone(snapshot.tensor(id)),
    };
    let tensors = network.ids().map(rename).collect();
    Arc::new(Snapshot::new(PolicyVersion(5), Arc::clone(network), Arc::clone(snapshot.map()), tensors).unwrap())
}

#[test]
fn an_unknown_format_is_refused_and_a_known_one_is_emulated() {
    let native = quantized("qwen3", Recipe::Mxfp8);
    let foreign = in_foreign_format(&native);
    let engine = loaded(&native, &Setup::default());
    let error = block_on(engine.load(Arc::clone(&foreign))).unwrap_err();
    assert!(matches!(&error, Error::Unsupported { operation, .. } if operation.contains("foreign")), "{error}");
    assert_eq!(engine.loaded(), Some(native.stamp()));

    let compute = CpuRef::new().compute().unwrap();
    let quantizer = crate::quantizer::CpuQuantizer::new(compute.clone()).unwrap().with_rule(Arc::new(Foreign)).unwrap();
    let context = Context::new(compute, Arc::new(quantizer));
    let options = EngineOptions {
        network: Arc::clone(native.network()),
        activations: ActivationDtype::Bf16,
        max_running: 4,
        context_tokens: 64,
        threads: None,
        partition: PartitionPlan::WHOLE,
        publication: PublicationMode::Finish,
    };
    let emulating = CpuEngine::new(options, &context).unwrap();
    block_on(emulating.load(foreign)).unwrap();
    // MXFP8 products are one chain over decoded values, which is what emulation computes.
    assert_eq!(drawn(&generate(&emulating, &request(1.0, 4))), drawn(&generate(&engine, &request(1.0, 4))));
}

#[test]
fn every_end_of_sequence_id_stops_a_completion() {
    let engine = loaded(&as_stored("qwen3"), &Setup::default());
    let open = generate(&engine, &request(1.0, 12));
    let third = completions(&open)[0].tokens[2];
    let mut stopping = request(1.0, 12);
    // Two ids that are not drawn, and between them the one that is: the second of three.
    let unseen: Vec<u32> = (0..60).filter(|id| completions(&open).iter().all(|c| !c.tokens.contains(id))).collect();
    stopping.sampling.eos_token_ids = vec![unseen[0], third, unseen[1]];
    let stopped = generate(&engine, &stopping);
    let mut ended = 0;
    for (open, stopped) in completions(&open).iter().zip(completions(&stopped)) {
        let end = open.tokens.iter().position(|&token| token == third);
        let length = end.map_or(12, |end| end + 1);
        assert_eq!(stopped.tokens, open.tokens[..length]);
        assert_eq!(bits(&stopped.logprobs), bits(&open.logprobs[..length]));
        assert_eq!(stopped.finish, if end.is_some() { FinishReason::Eos } else { FinishReason::Length });
        ended += usize::from(end.is_some());
    }
    assert!(ended >= 1);
    assert_eq!(stopped.stats.generated_tokens, completions(&stopped).iter().map(|c| c.tokens.len()).sum::<usize>());
}

#[test]
fn a_request_cancelled_at_its_start_returns_empty_completions() {
    let engine = loaded(&as_stored("llama-tied"), &Setup::default());
    let cancel = CancelToken::default();
    cancel.cancel();
    let rollout = block_on(engine.generate(&request(1.0, 6), &cancel)).unwrap();
    assert_eq!(rollout.groups.len(), 3);
    for completion in completions(&rollout) {
        assert_eq!((completion.tokens.len(), completion.finish), (0, FinishReason::Cancelled));
    }
}

#[test]
fn a_request_cancelled_on_its_way_returns_what_was_drawn() {
    let snapshot = as_stored("llama-tied");
    let engine = Arc::new(loaded(&snapshot, &Setup { max_running: 1, ..Setup::default() }));
    let whole = generate(&engine, &request(1.0, 50));
    let cancel = CancelToken::default();
    let started = Arc::new(AtomicUsize::new(0));
    let partial = std::thread::scope(|scope| {
        let (running, token, flag) = (Arc::clone(&engine), cancel.clone(), Arc::clone(&started));
        let handle = scope.spawn(move || {
            flag.store(1, Ordering::Release);
            block_on(running.generate(&request(1.0, 50), &token)).unwrap()
        });
        while started.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
        cancel.cancel();
        handle.join().unwrap()
    });
    let mut cancelled = 0;
    for (partial, whole) in completions(&partial).iter().zip(completions(&whole)) {
        assert_eq!(partial.tokens, whole.tokens[..partial.tokens.len()]);
        assert_eq!(partial.finish == FinishReason::Cancelled, partial.tokens.len() < 50);
        cancelled += usize::from(partial.finish == FinishReason::Cancelled);
    }
    assert!(cancelled > 0, "eight completions of 50 tokens one after the other outlast the signal");
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    let snapshot = as_stored("qwen3");
    let engine = unloaded(&snapshot, &Setup::default());
    let refuse = |engine: &CpuEngine, change: &dyn Fn(&mut GenerateRequest)| {
        let mut bad = request(1.0, 4);
        change(&mut bad);
        match block_on(engine.generate(&bad, &CancelToken::default())).unwrap_err() {
            Error::Rollout(error) => error,
            other => panic!("{other}"),
        }
    };
    assert!(matches!(refuse(&engine, &|_| ()), RolloutError::NothingLoaded));
    assert_eq!(engine.loaded(), None);
    assert!(matches!(engine.logits(&[1]), Err(Error::Rollout(RolloutError::NothingLoaded))));

    block_on(engine.load(Arc::clone(&snapshot))).unwrap();
    let vocab = snapshot.network().config.vocab_size;
    let context = snapshot.network().config.context_tokens;
    let error = refuse(&engine, &|bad| bad.prompts[1].tokens.clear());
    assert!(matches!(error, RolloutError::EmptyPrompt { key: 9 }), "{error}");
    let error = refuse(&engine, &|bad| bad.prompts[2].tokens[3] = vocab as u32);
    assert!(matches!(error, RolloutError::TokenOutOfRange { vocab_size, .. } if vocab_size == vocab), "{error}");
    let error = refuse(&engine, &|bad| bad.sampling.max_new_tokens = context - 10);
    assert!(matches!(error, RolloutError::ContextExceeded { key: 2, prompt_tokens: 11, .. }), "{error}");
    let error = refuse(&engine, &|bad| bad.sampling.top_p = 0.0);
    assert!(matches!(error, RolloutError::BadSampling { key: "top_p", .. }), "{error}");
    for completions in [MAX_COMPLETIONS + 1, usize::MAX] {
        let error = refuse(&engine, &|bad| bad.prompts.iter_mut().for_each(|prompt| prompt.completions = completions));
        assert!(matches!(error, RolloutError::TooManyCompletions { limit: MAX_COMPLETIONS, .. }), "{error}");
    }
    assert!(matches!(engine.logits(&[]), Err(Error::Rollout(RolloutError::EmptyPrompt { .. }))));
    let long = vec![0; context + 1];
    assert!(matches!(engine.logits(&long), Err(Error::Rollout(RolloutError::ContextExceeded { .. }))));
}

#[test]
fn an_engine_that_may_run_nothing_is_refused() {
    let options = EngineOptions {
        network: Arc::clone(as_stored("qwen3").network()),
        activations: ActivationDtype::Bf16,
        max_running: 0,
        context_tokens: 64,
        threads: None,
        partition: PartitionPlan::WHOLE,
        publication: PublicationMode::Finish,
    };
    let error = CpuRef::new().engine(options).unwrap_err();
    assert!(matches!(error, Error::Rollout(RolloutError::BadSampling { key: "max_running", .. })), "{error}");
}

#[test]
fn logits_that_are_not_finite_are_an_error_that_names_the_row() {
    let snapshot = scaled("llama-tied", Recipe::Bf16, 0, 1e38, |role| role == Role::Norm);
    let engine = loaded(&snapshot, &Setup::default());
    let error = block_on(engine.generate(&request(1.0, 4), &CancelToken::default())).unwrap_err();
    assert!(matches!(error, Error::Rollout(RolloutError::NonFiniteLogits { token: 0, .. })), "{error}");
}
