//! Expert stacks: the bytes of a matrix do not depend on how it is stored.

use miles_core::format::{
    ExpertStack, FormatError, FormatRule, NonFinite, Orientation, Packing, QuantizeSpec, QuantizedTensor, ScaleScope,
    Source, SourceDtype, SourceValues, StackedTensor, Symmetric, builtin_rules,
};
use miles_core::number::bf16;

use crate::sample::{transposed, values};

const EXPERTS: usize = 3;
const OUT: usize = 34;
const IN: usize = 96;
const SCOPES: [ScaleScope; 5] =
    [ScaleScope::Block, ScaleScope::Row, ScaleScope::Tensor, ScaleScope::Group, ScaleScope::Expert];

/// Matrices by projection, then expert, `[OUT, IN]`, of BF16 values and very different magnitudes.
fn matrices() -> Vec<Vec<Vec<f32>>> {
    let matrix = |seed: usize| {
        let scale = 10_f32.powi(seed as i32 - 3);
        values(OUT * IN, seed as u32 + 1).iter().map(|x| bf16::round(x * scale)).collect()
    };
    (0..2).map(|projection| (0..EXPERTS).map(|expert| matrix(projection * EXPERTS + expert)).collect()).collect()
}

/// One expert's gate and up in one matrix `[2 OUT, IN]`.
fn packed(gate: &[f32], up: &[f32], packing: Packing) -> Vec<f32> {
    match packing {
        Packing::GateUpInterleaved => {
            gate.chunks(IN).zip(up.chunks(IN)).flat_map(|(gate, up)| [gate, up].concat()).collect()
        }
        _ => [gate, up].concat(),
    }
}

fn stored(matrix: &[f32], rows: usize, orientation: Orientation) -> Vec<f32> {
    match orientation {
        Orientation::Direct => matrix.to_vec(),
        Orientation::Transposed => transposed(matrix, rows, IN),
    }
}

fn shape(rows: usize, orientation: Orientation) -> [usize; 3] {
    match orientation {
        Orientation::Direct => [EXPERTS, rows, IN],
        Orientation::Transposed => [EXPERTS, IN, rows],
    }
}

fn quantized(stack: &ExpertStack<'_>, rule: &dyn FormatRule, scope: ScaleScope) -> Option<Vec<Vec<QuantizedTensor>>> {
    let spec = QuantizeSpec::weight(rule.id()).with_scope(scope).with_non_finite(NonFinite::Hardware);
    match stack.quantize(&spec, |sources, spec| rule.quantize_joint(sources, spec)) {
        Ok(tensors) => Some(tensors),
        Err(FormatError::Scope { .. }) => None,
        Err(error) => panic!("{}: {error}", rule.id()),
    }
}

fn bytes(tensors: &Option<Vec<Vec<QuantizedTensor>>>) -> Option<Vec<Vec<Vec<u8>>>> {
    let experts = |tensors: &Vec<QuantizedTensor>| tensors.iter().map(QuantizedTensor::canonical_bytes).collect();
    tensors.as_ref().map(|projections| projections.iter().map(experts).collect())
}

#[test]
fn bytes_are_equal_however_experts_are_stored() {
    let matrices = matrices();
    let (gate, up) = (&matrices[0], &matrices[1]);
    let mut compared = 0;
    for rule in builtin_rules() {
        for scope in SCOPES {
            let sources: Vec<Vec<Source<'_>>> = matrices
                .iter()
                .map(|experts| {
                    experts.iter().map(|x| Source::new(x, OUT, IN, SourceDtype::Bf16, Some("apart")).unwrap()).collect()
                })
                .collect();
            let apart = ExpertStack::apart(&[&sources[0], &sources[1]]).unwrap();
            let expected = bytes(&quantized(&apart, rule, scope));
            for orientation in [Orientation::Direct, Orientation::Transposed] {
                let stack = |experts: &Vec<Vec<f32>>| -> Vec<f32> {
                    experts.iter().flat_map(|matrix| stored(matrix, OUT, orientation)).collect()
                };
                let [gates, ups] = [stack(gate), stack(up)];
                let tensor = |values| {
                    let values = SourceValues::F32(values);
                    let how = (orientation, Packing::Single);
                    StackedTensor::new(values, shape(OUT, orientation), SourceDtype::Bf16, how, Some("stack")).unwrap()
                };
                let pair = ExpertStack::stacked(&[tensor(&gates), tensor(&ups)]).unwrap();
                assert_eq!(bytes(&quantized(&pair, rule, scope)), expected, "{} {scope}", rule.id());
                compared += 1;
                for packing in [Packing::GateUpHalves, Packing::GateUpInterleaved] {
                    let both: Vec<f32> = (0..EXPERTS)
                        .flat_map(|expert| stored(&packed(&gate[expert], &up[expert], packing), 2 * OUT, orientation))
                        .collect();
                    let raw: Vec<[u8; 2]> = both.iter().map(|&x| bf16::encode(x).to_le_bytes()).collect();
                    for values in [SourceValues::F32(&both), SourceValues::Bf16(&raw)] {
                        let how = (orientation, packing);
                        let shape = shape(2 * OUT, orientation);
                        let tensor = StackedTensor::new(values, shape, SourceDtype::Bf16, how, None).unwrap();
                        let stack = ExpertStack::stacked(&[tensor]).unwrap();
                        assert_eq!((stack.experts(), stack.projections()), (EXPERTS, 2));
                        assert_eq!(bytes(&quantized(&stack, rule, scope)), expected, "{} {scope} {how:?}", rule.id());
                        compared += 1;
                    }
                }
            }
        }
    }
    assert_eq!(compared, builtin_rules().count() * 5 * 2 * 5);
}

/// Which matrices have an outer scale in common.
#[test]
fn the_scope_decides_what_shares_a_scale() {
    let matrices = matrices();
    let source = |x: &'static [f32]| Source::new(x, OUT, IN, SourceDtype::Bf16, None).unwrap();
    let leaked: Vec<Vec<Source<'static>>> = matrices
        .into_iter()
        .map(|experts| experts.into_iter().map(|x| source(Box::leak(x.into_boxed_slice()))).collect())
        .collect();
    let stack = ExpertStack::apart(&[&leaked[0], &leaked[1]]).unwrap();
    let outer = |scope| -> Vec<Vec<Vec<f32>>> {
        let tensors = quantized(&stack, &Symmetric::FP8_TENSOR, scope).unwrap();
        tensors.iter().map(|experts| experts.iter().map(|tensor| tensor.outer().to_vec()).collect()).collect()
    };
    let tensor = outer(ScaleScope::Tensor);
    assert!(tensor.iter().all(|experts| experts.iter().all(|scale| *scale == experts[0])));
    assert_ne!(tensor[0][0], tensor[1][0]);
    let group = outer(ScaleScope::Group);
    assert!((0..EXPERTS).all(|expert| group[0][expert] == group[1][expert]));
    assert_ne!(group[0][0], group[0][1]);
    let expert = outer(ScaleScope::Expert);
    let mut all: Vec<u32> = expert.concat().concat().iter().map(|scale| scale.to_bits()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 2 * EXPERTS);
    assert!(outer(ScaleScope::Row).concat().iter().all(|scales| scales.len() == OUT));
}

#[test]
fn impossible_stacks_are_refused_by_name() {
    let x = vec![0.0; 30];
    let new = |shape, packing| {
        let values = SourceValues::F32(&x);
        StackedTensor::new(values, shape, SourceDtype::F32, (Orientation::Direct, packing), Some("w"))
    };
    assert!(matches!(new([2, 3, 4], Packing::Single), Err(FormatError::StackShape { shape: [2, 3, 4], .. })));
    assert!(matches!(new([usize::MAX, 3, 4], Packing::Single), Err(FormatError::StackShape { .. })));
    let error = new([2, 3, 5], Packing::GateUpHalves).unwrap_err();
    assert!(error.to_string().contains("w cannot be [2, 3, 5]: an odd output"), "{error}");
    let (three, two) = (new([3, 2, 5], Packing::Single).unwrap(), new([2, 3, 5], Packing::Single).unwrap());
    let error = ExpertStack::stacked(&[three, two]).unwrap_err();
    assert_eq!(error, FormatError::ExpertCount { projection: 1, expected: 3, found: 2 });
    let stack = ExpertStack::stacked(&[two]).unwrap();
    let spec = QuantizeSpec::weight(Symmetric::FP8_TENSOR.id());
    let none = stack.quantize(&spec, |_, _| Ok::<_, FormatError>(Vec::new())).unwrap_err();
    assert_eq!(none, FormatError::JointResults { expected: 2, found: 0 });
    // A NaN is reported with the expert it belongs to.
    let mut bad = x.clone();
    bad[20] = f32::NAN;
    let how = (Orientation::Direct, Packing::Single);
    let tensor = StackedTensor::new(SourceValues::F32(&bad), [2, 3, 5], SourceDtype::F32, how, Some("w")).unwrap();
    let stack = ExpertStack::stacked(&[tensor]).unwrap();
    let error = stack.quantize(&spec, |s, spec| Symmetric::FP8_TENSOR.quantize_joint(s, spec)).unwrap_err();
    assert!(error.to_string().contains("w (expert 1, projection 0)"), "{error}");
}
