//! Gradients of whole tiny models, family by family.

mod support;

use miles_backend_cpu_ref::kernel::Isa;
use miles_core::plugin::{ActivationDtype, TrainSample};
use support::{FAMILIES, Tensors, WeightedSum, assert_close, batch, context, fixture, options, published};

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
