use proptest::prelude::*;

use super::*;
use crate::conformance::fixture::{Family, policy};
use crate::format::{BlockScales, QuantizedParts};
use crate::network::ParamId;
use crate::policy::PolicyVersion;
use crate::precision::Recipe;
use crate::tensor::DenseTensor;

const BLOCK: u32 = 64;

fn versions(family: Family, recipe: Recipe) -> [Arc<Snapshot>; 2] {
    [1, 2].map(|version| policy(family, recipe, version).unwrap())
}

/// The snapshot as the next version with some tensors changed.
fn changed(base: &Snapshot, change: impl Fn(ParamId, &PolicyTensor) -> Option<PolicyTensor>) -> Snapshot {
    let of = |id| change(id, base.tensor(id)).map_or_else(|| Arc::clone(base.tensor(id)), Arc::new);
    let tensors = base.network().ids().map(of).collect();
    let version = base.stamp().version.next();
    Snapshot::new(version, Arc::clone(base.network()), Arc::clone(base.map()), tensors).unwrap()
}

fn with_parts(tensor: &PolicyTensor, change: impl FnOnce(&mut QuantizedParts)) -> PolicyTensor {
    let PolicyTensor::Quantized(tensor) = tensor else { panic!("a dense tensor") };
    let mut parts = tensor.to_parts();
    change(&mut parts);
    PolicyTensor::Quantized(tensor.with_parts("changed", parts).unwrap())
}

fn with_dense_bytes(tensor: &PolicyTensor, change: impl FnOnce(&mut [u8])) -> PolicyTensor {
    let PolicyTensor::Dense(tensor) = tensor else { panic!("a quantized tensor") };
    let mut bytes = tensor.bytes().to_vec();
    change(&mut bytes);
    PolicyTensor::Dense(DenseTensor::new(tensor.dtype(), tensor.shape().to_vec(), bytes).unwrap())
}

fn first_quantized(snapshot: &Snapshot) -> ParamId {
    let quantized = |id: &ParamId| matches!(snapshot.tensor(*id).as_ref(), PolicyTensor::Quantized(_));
    snapshot.network().ids().find(quantized).unwrap()
}

fn assert_same(found: &Snapshot, expected: &Snapshot) {
    assert_eq!(found.stamp(), expected.stamp());
    for id in expected.network().ids() {
        match (found.tensor(id).as_ref(), expected.tensor(id).as_ref()) {
            (PolicyTensor::Dense(found), PolicyTensor::Dense(expected)) => assert_eq!(found, expected),
            (PolicyTensor::Quantized(found), PolicyTensor::Quantized(expected)) => assert_eq!(found, expected),
            _ => panic!("{}", expected.network().parameter(id).name),
        }
        assert_eq!(found.tensor_digest(id), expected.tensor_digest(id));
    }
}

#[test]
fn every_recipe_of_every_family_comes_back_through_bytes() {
    for family in Family::ALL {
        for recipe in Recipe::ALL {
            let [base, new] = versions(family, recipe);
            let delta = Delta::between(&base, &new, BLOCK).unwrap();
            let decoded = Delta::decode(&delta.encode().unwrap()).unwrap();
            assert_eq!(decoded, delta);
            assert_same(&decoded.apply(&base).unwrap(), &new);
            assert_eq!(delta.bytes(), changed_bytes(Some(&base), &new, BLOCK as usize), "{family} {recipe}");
        }
    }
}

#[test]
fn only_changed_blocks_are_carried_and_the_rest_is_shared() {
    let [base, _] = versions(Family::Dense, Recipe::Mxfp8);
    let id = first_quantized(&base);
    let new = changed(&base, |other, tensor| {
        (other == id).then(|| {
            with_parts(tensor, |parts| {
                // The second block, and the two that the next two bytes stand in: one run.
                [64, 191, 192].into_iter().for_each(|at| parts.codes[at] ^= 1);
            })
        })
    });
    let delta = Delta::between(&base, &new, BLOCK).unwrap();
    let name = base.network().parameter(id).name.as_str();
    assert_eq!(delta.tensors().collect::<Vec<_>>(), [(name, 3 * 64)]);
    assert_eq!(delta.tensors[0].parts[0].runs.len(), 1);
    assert_eq!((delta.base(), delta.stamp(), delta.block_bytes()), (base.stamp(), new.stamp(), BLOCK));
    let made = delta.apply(&base).unwrap();
    assert_same(&made, &new);
    for other in base.network().ids().filter(|other| *other != id) {
        assert!(Arc::ptr_eq(made.tensor(other), base.tensor(other)));
    }
    // An update too small to change a byte is a version too.
    let same = changed(&base, |_, _| None);
    let delta = Delta::between(&base, &same, BLOCK).unwrap();
    assert_eq!(delta.bytes(), 0);
    assert_same(&delta.apply(&base).unwrap(), &same);
}

/// The head of a tied model is its embedding table: one parameter, whose bytes are carried once.
#[test]
fn a_tied_table_is_carried_once() {
    let [base, _] = versions(Family::Dense, Recipe::Bf16);
    let network = base.network();
    assert!(network.config.tie_word_embeddings && network.head.weight == network.embedding);
    let flip = |bytes: &mut [u8]| bytes.iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
    let new = changed(&base, |id, tensor| (id == network.embedding).then(|| with_dense_bytes(tensor, flip)));
    let delta = Delta::between(&base, &new, BLOCK).unwrap();
    let bytes = network.config.vocab_size * network.config.hidden_size * 2;
    assert_eq!(delta.tensors().collect::<Vec<_>>(), [("model.embed_tokens.weight", bytes as u64)]);
    let made = delta.apply(&base).unwrap();
    assert!(std::ptr::eq(made.tensor(network.head.weight), made.tensor(network.embedding)));
}

/// A converted checkpoint has no amax values; the first version that a trainer makes of it does.
#[test]
fn amax_values_may_come_and_go() {
    let [with, _] = versions(Family::Dense, Recipe::Nvfp4Dequantized);
    let without = changed(&with, |_, tensor| {
        matches!(tensor, PolicyTensor::Quantized(_)).then(|| with_parts(tensor, |parts| parts.amax.clear()))
    });
    for (base, new) in [(&*with, &without), (&without, &*with)] {
        let delta = Delta::between(base, new, BLOCK).unwrap();
        assert!(delta.tensors().count() > 0);
        assert_same(&Delta::decode(&delta.encode().unwrap()).unwrap().apply(base).unwrap(), new);
    }
}

#[test]
fn a_wrong_base_is_refused_and_both_stamps_are_named() {
    let [base, new] = versions(Family::Dense, Recipe::Mxfp8);
    let delta = Delta::between(&base, &new, BLOCK).unwrap();
    let renumbered = changed(&base, |_, _| None);
    for wrong in [&*new, &renumbered, &*policy(Family::Moe, Recipe::Mxfp8, 1).unwrap()] {
        let error = delta.apply(wrong).unwrap_err();
        assert!(matches!(error, DeltaError::WrongBase { .. }), "{error}");
        for stamp in [base.stamp(), wrong.stamp()] {
            assert!(error.to_string().contains(&stamp.to_string()), "{error}");
        }
    }
}

#[test]
fn versions_that_are_no_versions_of_one_policy_have_no_delta() {
    let [base, _] = versions(Family::Dense, Recipe::Mxfp8);
    let other = policy(Family::Dense, Recipe::Fp8Block, 2).unwrap();
    let error = Delta::between(&base, &other, BLOCK).unwrap_err();
    assert!(matches!(error, DeltaError::OtherMap { .. }), "{error}");
    assert!(matches!(Delta::between(&base, &base, 0), Err(DeltaError::NoBlocks)));
    let name = &base.network().parameter(base.network().embedding).name;
    let as_f32 = changed(&base, |id, tensor| {
        (id == base.network().embedding).then(|| {
            let PolicyTensor::Dense(tensor) = tensor else { panic!("{name}") };
            let values = tensor.to_f32();
            PolicyTensor::Dense(
                DenseTensor::from_f32(crate::tensor::Dtype::F32, tensor.shape().to_vec(), &values).unwrap(),
            )
        })
    });
    let error = Delta::between(&base, &as_f32, BLOCK).unwrap_err();
    assert!(matches!(&error, DeltaError::OtherForm { tensor } if tensor == name), "{error}");
    assert_eq!(changed_bytes(Some(&base), &as_f32, 64), base.tensor(base.network().embedding).bytes() as u64 * 2);
}

/// A delta with one quantized tensor changed, its tensor entry free to be falsified.
fn falsified(change: impl FnOnce(&mut Delta)) -> DeltaError {
    let [base, _] = versions(Family::Dense, Recipe::Mxfp8);
    let id = first_quantized(&base);
    let flip = |tensor: &PolicyTensor| {
        with_parts(tensor, |parts| [0, 500].map(|at| parts.codes[at] ^= 1).iter().for_each(drop))
    };
    let new = changed(&base, |other, tensor| (other == id).then(|| flip(tensor)));
    let mut delta = Delta::between(&base, &new, BLOCK).unwrap();
    assert_same(&delta.apply(&base).unwrap(), &new);
    change(&mut delta);
    delta.apply(&base).unwrap_err()
}

#[test]
fn a_delta_that_does_not_fit_its_base_is_refused_by_name() {
    let part = |delta: &mut Delta, change: fn(&mut PartDelta)| change(&mut delta.tensors[0].parts[0]);
    let bad_run = |error: DeltaError, word: &str| {
        assert!(matches!(error, DeltaError::BadRun { .. }) && error.to_string().contains(word), "{error}");
    };
    bad_run(falsified(|delta| part(delta, |part| part.runs[1].offset = 63)), "overlap");
    bad_run(falsified(|delta| part(delta, |part| part.runs.swap(0, 1))), "overlap");
    bad_run(falsified(|delta| part(delta, |part| part.runs[1].offset = part.length)), "beyond");
    bad_run(falsified(|delta| part(delta, |part| part.runs[1].offset = u64::MAX)), "beyond");
    bad_run(falsified(|delta| part(delta, |part| part.runs[0].bytes.clear())), "nothing");
    for length in [0, 1 << 20, u64::MAX] {
        let error = falsified(|delta| {
            let part = &mut delta.tensors[0].parts[0];
            part.length = length;
            part.runs.clear();
        });
        assert!(matches!(error, DeltaError::PartLength { .. }), "{error}");
    }
    let error = falsified(|delta| delta.tensors[0].parts[0].runs[0].bytes[0] ^= 8);
    assert!(matches!(error, DeltaError::Tensor { .. }), "{error}");
    let error = falsified(|delta| part(delta, |part| part.part = DeltaPart::Dense));
    assert!(matches!(error, DeltaError::NoSuchPart { part: DeltaPart::Dense, .. }), "{error}");
    let error = falsified(|delta| delta.tensors[0].name.push('x'));
    assert!(matches!(error, DeltaError::NoSuchTensor { .. }), "{error}");
    let error = falsified(|delta| delta.tensors.push(delta.tensors[0].clone()));
    assert!(matches!(error, DeltaError::Doubled { part: None, .. }), "{error}");
    let error = falsified(|delta| {
        let doubled = delta.tensors[0].parts[0].clone();
        delta.tensors[0].parts.push(doubled);
    });
    assert!(matches!(error, DeltaError::Doubled { part: Some(DeltaPart::Codes), .. }), "{error}");
    let error = falsified(|delta| delta.tensors.clear());
    assert!(matches!(error, DeltaError::Policy { .. }), "{error}");
    let nan_scale = falsified(|delta| {
        let scales = Run { offset: 0, bytes: vec![0xFF] };
        let part = &mut delta.tensors[0].parts[0];
        (part.part, part.length, part.runs) = (DeltaPart::Scales, 48 * 2 * 64 / 48, vec![scales]);
    });
    assert!(matches!(nan_scale, DeltaError::Format(_) | DeltaError::PartLength { .. }), "{nan_scale}");
}

#[test]
fn encoded_bytes_are_refused_when_cut_or_changed_anywhere() {
    let [base, new] = versions(Family::Dense, Recipe::Nvfp4Dequantized);
    let bytes = Delta::between(&base, &new, 4096).unwrap().encode().unwrap();
    for length in (0..bytes.len()).step_by(101).chain(0..200) {
        let error = Delta::decode(&bytes[..length]).unwrap_err();
        let typed = matches!(error, DeltaError::Truncated { .. } | DeltaError::BadValue { .. });
        assert!(typed, "{length}: {error}");
    }
    for bit in (0..bytes.len() * 8).step_by(809).chain(0..1000) {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(Delta::decode(&changed).is_err(), "bit {bit}");
    }
    let mut longer = bytes[..bytes.len() - 32].to_vec();
    longer.push(0);
    longer.extend(Digest::of(&longer).as_bytes());
    let error = Delta::decode(&longer).unwrap_err();
    assert!(matches!(error, DeltaError::BadValue { what: "the end", .. }), "{error}");
}

/// With a digest that fits, so that nothing but the limits stands in the way.
#[test]
fn hostile_counts_and_lengths_are_refused_before_anything_is_allocated() {
    let stamp = PolicyStamp { version: PolicyVersion(1), digest: Digest::of(b"x") };
    let empty = Delta { base: stamp, stamp, block_bytes: BLOCK, tensors: Vec::new() }.encode().unwrap();
    let count_at = empty.len() - 32 - 4;
    let sealed = |content: &[u8]| [content, Digest::of(content).as_bytes()].concat();
    let with_count = |count: u32| [&empty[..count_at], &count.to_le_bytes()].concat();
    let error = Delta::decode(&sealed(&with_count(u32::MAX))).unwrap_err();
    assert!(matches!(error, DeltaError::OverLimit { what: "number of tensors", .. }), "{error}");
    let error = Delta::decode(&sealed(&with_count(1))).unwrap_err();
    assert!(matches!(error, DeltaError::Truncated { what: "the length of a name", .. }), "{error}");
    let mut content = with_count(1);
    content.extend(1_u16.to_le_bytes());
    content.push(b'w');
    content.extend([0; 32]);
    content.extend([1, 1]);
    content.extend(u64::MAX.to_le_bytes());
    content.extend(u32::MAX.to_le_bytes());
    let error = Delta::decode(&sealed(&content)).unwrap_err();
    assert!(matches!(error, DeltaError::Truncated { what: "the offset of a run", .. }), "{error}");
    content.extend(0_u64.to_le_bytes());
    content.extend(u64::MAX.to_le_bytes());
    let error = Delta::decode(&sealed(&content)).unwrap_err();
    let named = matches!(error, DeltaError::Truncated { what: "the bytes of a run", needed: u64::MAX, left: 0 });
    assert!(named, "{error}");
}

/// One change to a tensor: which one, which part, where, how many elements, and what is XORed on.
type Change = (prop::sample::Index, prop::sample::Index, usize, u8, bool);

fn apply_change(base: &Snapshot, (tensor, at, length, bits, scales): &Change) -> Snapshot {
    let chosen = tensor.index(base.network().parameters.len());
    changed(base, |id, tensor| {
        (id.index() == chosen).then(|| match tensor {
            PolicyTensor::Dense(_) => with_dense_bytes(tensor, |bytes| {
                let start = at.index(bytes.len());
                bytes[start..].iter_mut().take(*length).for_each(|byte| *byte ^= bits);
            }),
            PolicyTensor::Quantized(_) => with_parts(tensor, |parts| match &mut parts.scales {
                // Bytes that no rule refuses.
                BlockScales::U8(values) if *scales => {
                    let start = at.index(values.len());
                    values[start..].iter_mut().take(*length).for_each(|byte| *byte = bits & 0x77);
                }
                BlockScales::F32(values) if *scales => {
                    let start = at.index(values.len());
                    values[start..].iter_mut().take(*length).for_each(|value| *value = f32::from(*bits));
                }
                _ => {
                    let start = at.index(parts.codes.len());
                    parts.codes[start..].iter_mut().take(*length).for_each(|byte| *byte ^= bits);
                }
            }),
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// apply(between(a, b), a) == b, and nothing is carried that is further than a block from a change.
    #[test]
    fn random_changes_come_back_to_the_bit(
        recipe in prop::sample::select(Recipe::ALL.to_vec()),
        changes in prop::collection::vec(any::<Change>().prop_map(|mut change| { change.2 %= 300; change }), 0..8),
        block_bytes in 1..5000_u32,
    ) {
        let base = policy(Family::Dense, recipe, 1).unwrap();
        let new = changes.iter().fold(changed(&base, |_, _| None), |snapshot, change| apply_change(&snapshot, change));
        let delta = Delta::between(&base, &new, block_bytes).unwrap();
        assert_same(&Delta::decode(&delta.encode().unwrap()).unwrap().apply(&base).unwrap(), &new);
        let touched: u64 = changes.iter().map(|change| change.2 as u64 * 4 + 2 * u64::from(block_bytes)).sum();
        prop_assert!(delta.bytes() <= touched, "{} of {touched}", delta.bytes());
        let finest = Delta::between(&base, &new, 1).unwrap();
        prop_assert!(finest.bytes() <= delta.bytes());
    }
}
