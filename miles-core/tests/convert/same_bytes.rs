//! The directory is that of `quantize_policy` and `write_checkpoint`, whatever threads, budget and file size.

use miles_core::checkpoint::{Checkpoint, Mxfp8Layout, StoredModel, WriteOptions, write_checkpoint};
use miles_core::convert::{ConvertOptions, convert, verify};
use miles_core::network::Role;
use miles_core::precision::{Recipe, Rule, resolve};

use crate::files::{Builtin, FIXTURES, fixture, open, quantized};
use crate::support::{contents, options, partial, random_model, run, weights};

#[test]
fn every_recipe_of_every_fixture_has_the_bytes_of_the_writer() {
    let out = tempfile::tempdir().unwrap();
    for name in FIXTURES {
        let checkpoint = open(&fixture(name));
        for recipe in Recipe::ALL {
            let (held, streamed) = (out.path().join("held"), out.path().join("streamed"));
            let snapshot = quantized(&checkpoint, recipe, &[]);
            let replace = WriteOptions { replace: true, ..WriteOptions::default() };
            write_checkpoint(&snapshot, &checkpoint.template(), &held, &replace).unwrap();
            let options = ConvertOptions { replace: true, ..options(3) };
            let converted = run(&fixture(name), recipe, &streamed, &options).unwrap();
            assert!(weights(&streamed) == contents(&held), "{name} {recipe}");
            assert_eq!(converted.contract.policy, snapshot.stamp().digest, "{name} {recipe}");
            assert_eq!(converted.contract.precision_map, snapshot.map().digest());
            assert_eq!(converted.resumed_units, 0);
            assert!(!partial(&streamed).exists());
            // The sidecar is checked while opening, and its digests while reading.
            let back = Checkpoint::open(&streamed).unwrap();
            assert_eq!(back.contract(), Some(&converted.contract));
            for id in back.network().ids() {
                assert_eq!(back.read_stored(id).unwrap().digest(), snapshot.tensor_digest(id));
            }
        }
    }
}

#[test]
fn threads_budget_and_a_second_time_change_no_byte() {
    let out = tempfile::tempdir().unwrap();
    let whole = out.path().join("whole");
    let small_files = ConvertOptions { max_shard_bytes: 100_000, ..options(1) };
    run(&fixture("qwen3-moe-sharded"), Recipe::Nvfp4Dequantized, &whole, &small_files).unwrap();
    let expected = contents(&whole);
    assert!(expected.len() > 8, "several files: {:?}", expected.keys());
    let checkpoint = open(&fixture("qwen3-moe-sharded"));
    let held = out.path().join("held");
    let write = WriteOptions { max_shard_bytes: 100_000, ..WriteOptions::default() };
    write_checkpoint(&quantized(&checkpoint, Recipe::Nvfp4Dequantized, &[]), &checkpoint.template(), &held, &write)
        .unwrap();
    assert!(weights(&whole) == contents(&held));
    for threads in [2, 7] {
        for budget_bytes in [17 << 20, 1 << 30] {
            let again = out.path().join("again");
            let options = ConvertOptions { budget_bytes, replace: true, max_shard_bytes: 100_000, ..options(threads) };
            run(&fixture("qwen3-moe-sharded"), Recipe::Nvfp4Dequantized, &again, &options).unwrap();
            assert!(contents(&again) == expected, "{threads} threads, {budget_bytes} bytes");
        }
    }
}

/// Matrices that are larger than a thread's share of the budget are made in bands where their format allows it.
#[test]
fn matrices_larger_than_a_share_of_the_budget_have_the_bytes_of_the_whole() {
    let out = tempfile::tempdir().unwrap();
    let (model, held, streamed) = (out.path().join("model"), out.path().join("held"), out.path().join("streamed"));
    random_model("qwen3", &model, &[("hidden_size", 512), ("intermediate_size", 1440), ("vocab_size", 5000)]);
    let (checkpoint, stored) = (open(&model), StoredModel::open(&model).unwrap());
    let replace = WriteOptions { replace: true, ..WriteOptions::default() };
    for format in [
        "mxfp8",
        "mxfp8/32x32",
        "fp8-block",
        "fp8-block/power-of-two",
        "fp8-channel",
        "fp8-tensor",
        "int8-channel",
        "int4-group/32",
        "nvfp4",
        "bf16",
        "f32",
    ] {
        let roles = [Role::MlpGate, Role::MlpUp, Role::MlpDown, Role::AttentionO, Role::Head];
        let rule = Rule::roles(&roles, format.parse().unwrap());
        let snapshot = quantized(&checkpoint, Recipe::Bf16, std::slice::from_ref(&rule));
        write_checkpoint(&snapshot, &checkpoint.template(), &held, &replace).unwrap();
        let map = resolve(stored.inventory(), Recipe::Bf16, &[rule]).unwrap();
        // A megabyte for each: the smallest of these matrices has more.
        let options = ConvertOptions { budget_bytes: 20 << 20, replace: true, ..options(20) };
        let converted = convert(&stored, &map, &Builtin, &streamed, &options, &|_| {}).unwrap();
        assert!(weights(&streamed) == contents(&held), "{format}");
        assert_eq!(converted.contract.policy, snapshot.stamp().digest, "{format}");
        verify(&streamed, &options, &|_| {}).unwrap();
        // The source of the next one is what was quantized here: its contract is checked band by band, too.
        let again = ConvertOptions { mxfp8: Mxfp8Layout::ModelOpt, ..options };
        let source = StoredModel::open(&streamed).unwrap();
        let map = resolve(source.inventory(), Recipe::Mxfp8, &[]).unwrap();
        convert(&source, &map, &Builtin, &out.path().join("again"), &again, &|_| {}).unwrap();
    }
}
