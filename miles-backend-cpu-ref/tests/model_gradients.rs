//! Gradients of whole tiny models, family by family.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use miles_backend_cpu_ref::kernel::Isa;
use miles_core::network::ParamId;
use miles_core::plugin::{ActivationDtype, TrainSample};
use miles_core::policy::WeightSource;
use miles_core::precision::{Recipe, Rule, TensorFormat, resolve};
use miles_core::tensor::Dtype;
use support::{
    FAMILIES, Tensors, WeightedSum, assert_close, batch, context, fixture, options, published, random_samples,
};

/// Both rows of the reference inputs, every token after the first scored.
fn reference_samples(inputs: &Tensors, reference: &Tensors) -> Vec<TrainSample> {
    let (ids, weights) = (inputs.u32("input_ids"), reference.f32("weights"));
    let tokens = inputs.shape("input_ids")[1];
    let rows = ids.chunks_exact(tokens).zip(weights.chunks_exact(tokens - 1));
    rows.map(|(ids, weights)| TrainSample {
        tokens: ids.to_vec(),
        prompt_tokens: 1,
        rollout_logprobs: weights.to_vec(),
        reference_logprobs: None,
        advantage: 1.0,
    })
    .collect()
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

#[test]
fn gradients_of_every_family_agree_with_pytorch_autograd() {
    for family in FAMILIES {
        let checkpoint = fixture(family);
        let network = checkpoint.network();
        let context = context(Isa::detect(), 2);
        let (trainer, snapshot) =
            published(&context, network, checkpoint.stored_map(), &checkpoint, options(ActivationDtype::F32));
        let inputs = Tensors::read(&format!("fixtures/{family}/expected.safetensors"));
        let reference = Tensors::read(&format!("gradients/{family}.safetensors"));
        let samples = reference_samples(&inputs, &reference);
        let (gradients, report) = trainer.gradients(&batch(&samples, snapshot.stamp()), &WeightedSum).unwrap();

        let logprobs: Vec<f32> = report.scores.iter().flat_map(|scores| scores.logprobs.clone()).collect();
        assert_close(&format!("{family} logprobs"), &widened(&reference.f32("logprobs")), &logprobs, 1e-5);
        let entropies: Vec<f32> = report.scores.iter().flat_map(|scores| scores.entropies.clone()).collect();
        assert_close(&format!("{family} entropies"), &widened(&reference.f32("entropies")), &entropies, 1e-5);
        assert!((report.loss - f64::from(reference.f32("loss")[0])).abs() < 1e-4, "{family} loss {}", report.loss);

        let mut compared = 0;
        for id in network.ids() {
            let name = &network.parameter(id).name;
            let Some(gradient) = gradients.of(id) else {
                assert!(!reference.has(&format!("{name}/norm")), "{family}: `{name}` has no gradient");
                continue;
            };
            let norm = f64::from(reference.f32(&format!("{name}/norm"))[0]);
            let got = gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
            assert!((got - norm).abs() <= 1e-4 * norm, "{family} {name}: norm {got}, expected {norm}");
            let rms = norm / (gradient.len() as f64).sqrt();
            let (index, values) = match reference.has(name) {
                true => ((0..gradient.len() as u32).collect(), reference.f32(name)),
                false => (reference.u32(&format!("{name}/index")), reference.f32(&format!("{name}/values"))),
            };
            for (&index, &want) in index.iter().zip(&values) {
                let got = gradient[index as usize];
                let error = f64::from(want - got).abs();
                assert!(error <= 1e-4 * rms, "{family} {name}[{index}]: got {got:e}, want {want:e}, rms {rms:e}");
            }
            compared += 1;
        }
        assert!(compared > 10, "{family}: only {compared} tensors compared");
    }
}

/// Central differences of the loss along each tensor's own gradient, on F32 weights.
#[test]
fn gradients_of_whole_models_agree_with_central_differences() {
    for family in FAMILIES {
        let checkpoint = fixture(family);
        let network = checkpoint.network();
        let everything = Rule::name("*", TensorFormat::Dense(Dtype::F32));
        let loss_at = |source: &dyn WeightSource| {
            let map = resolve(network, Recipe::Bf16, std::slice::from_ref(&everything)).unwrap();
            let (trainer, snapshot) =
                published(&context(Isa::detect(), 2), network, map, source, options(ActivationDtype::F32));
            let samples = random_samples(11, 3, network.config.vocab_size, 14);
            trainer.gradients(&batch(&samples, snapshot.stamp()), &WeightedSum).unwrap()
        };
        let (gradients, _) = loss_at(&checkpoint);
        for id in network.ids() {
            // One of each kind is enough for the experts; their gradients are compared whole elsewhere.
            if network.parameter(id).expert.is_some_and(|expert| expert > 1) {
                continue;
            }
            let Some(gradient) = gradients.of(id) else { continue };
            let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            if norm == 0.0 {
                continue;
            }
            // A step may carry a token over to another expert, where the loss jumps; a smaller one then does not.
            let mut seen = Vec::new();
            let agrees = [0.03, 0.01, 0.003, 0.001].into_iter().any(|length: f64| {
                let step = length / norm.max(1.0);
                let moved =
                    |sign: f64| Moved { base: &checkpoint, id, direction: gradient, factor: sign * step / norm };
                let ((_, up), (_, down)) = (loss_at(&moved(1.0)), loss_at(&moved(-1.0)));
                let slope = (up.loss - down.loss) / (2.0 * step);
                seen.push(slope);
                (slope - norm).abs() / norm < 0.01 + LOSS_ROUNDING / (step * norm)
            });
            assert!(agrees, "{family} {}: norm {norm}, slopes {seen:?}", network.parameter(id).name);
        }
    }
}

/// What f32 logprobs leave of a loss of some tens.
const LOSS_ROUNDING: f64 = 1e-5;

/// Another source, with one tensor moved along a direction.
struct Moved<'a> {
    base: &'a dyn WeightSource,
    id: ParamId,
    direction: &'a [f32],
    factor: f64,
}

impl WeightSource for Moved<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        self.base.read(id, into)?;
        if id == self.id {
            for (value, &direction) in into.iter_mut().zip(self.direction) {
                *value = (f64::from(*value) + self.factor * f64::from(direction)) as f32;
            }
        }
        Ok(())
    }
}
