//! What is refused leaves nothing behind: no output, no half of one.

use std::fs;
use std::path::Path;

use miles_core::Error;
use miles_core::checkpoint::{CheckpointError, StoredModel};
use miles_core::convert::{ConvertError, ConvertOptions, convert};
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source};
use miles_core::plugin::{Quantizer, Support};
use miles_core::precision::{PrecisionError, Recipe, Rule, TensorFormat};

use crate::files::{Builtin, bf16, copy, edit, fixture, load, store};
use crate::support::{contents, map, options, partial, refused, run};

/// Converts, expects a refusal, and that nothing is left beside `model`.
fn refused_cleanly(model: &Path) -> Error {
    let out = tempfile::tempdir().unwrap();
    let error = refused(model, Recipe::Mxfp8, &out.path().join("output"));
    assert!(fs::read_dir(out.path()).unwrap().next().is_none(), "{error} leaves something");
    error
}

fn checkpoint_error(model: &Path) -> CheckpointError {
    match refused_cleanly(model) {
        Error::Checkpoint(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_weight_that_is_not_finite_is_named_with_its_place() {
    for (name, row, column) in [
        ("model.layers.1.mlp.down_proj.weight", 3, 40),
        ("model.embed_tokens.weight", 7, 1),
        ("model.norm.weight", 0, 9),
    ] {
        let dir = copy("qwen3");
        edit(dir.path(), |tensors| {
            let tensor = tensors.get_mut(name).unwrap();
            let at = 2 * (row * tensor.shape[tensor.shape.len() - 1] + column);
            tensor.bytes[at..at + 2].copy_from_slice(&bf16(&[f32::NAN]));
        });
        let error = checkpoint_error(dir.path());
        let CheckpointError::NonFinite { tensor, row: r, column: c, value, .. } = error else { panic!("{error}") };
        assert!((tensor.as_str(), r, c) == (name, row, column) && value.is_nan());
    }
}

#[test]
fn the_first_of_several_bad_tensors_is_reported_whatever_the_threads() {
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        tensors.values_mut().for_each(|tensor| tensor.bytes[..2].copy_from_slice(&bf16(&[f32::INFINITY])));
    });
    let out = tempfile::tempdir().unwrap();
    let errors = [1, 2, 7].map(|threads| {
        run(dir.path(), Recipe::Bf16, &out.path().join("output"), &options(threads)).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| *error == errors[0] && error.contains("is inf at row 0")), "{errors:?}");
}

#[test]
fn a_value_beyond_the_output_type_is_refused_in_the_words_of_a_tensor_that_is_rounded_whole() {
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        let tensor = tensors.get_mut("model.embed_tokens.weight").unwrap();
        let mut values: Vec<u8> = tensor
            .bytes
            .chunks_exact(2)
            .flat_map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32().to_le_bytes())
            .collect();
        values[4 * 70..4 * 71].copy_from_slice(&f32::MAX.to_le_bytes());
        tensor.bytes = values;
        tensor.dtype = safetensors::Dtype::F32;
    });
    let streamed = refused_cleanly(dir.path()).to_string();
    let checkpoint = crate::files::open(dir.path());
    let held = std::panic::catch_unwind(|| crate::files::quantized(&checkpoint, Recipe::Mxfp8, &[])).unwrap_err();
    let held = held.downcast_ref::<String>().unwrap();
    assert!(streamed.contains("model.embed_tokens.weight") && streamed.contains("inf"), "{streamed}");
    assert!(held.contains("model.embed_tokens.weight") && held.contains("row: 1, column: 6"), "{held}");
    assert!(streamed.contains("row 1, column 6"), "{streamed}");
}

#[test]
fn tensors_that_are_doubled_overlap_or_are_missing_are_refused() {
    // Twice, under two spellings of one name.
    let dir = copy("qwen3");
    edit(dir.path(), |tensors| {
        let norm = tensors.remove("model.norm.weight").unwrap();
        let again = crate::files::Tensor { dtype: norm.dtype, shape: norm.shape.clone(), bytes: norm.bytes.clone() };
        tensors.insert("model.norm.weight".into(), norm);
        tensors.insert("norm.weight".into(), again);
    });
    assert!(matches!(checkpoint_error(dir.path()), CheckpointError::DuplicateTensor { .. }));

    // Twice, in two files.
    let dir = copy("qwen3-moe-sharded");
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("model.safetensors.index.json")).unwrap()).unwrap();
    let mut files: Vec<&str> = index["weight_map"].as_object().unwrap().values().map(|f| f.as_str().unwrap()).collect();
    files.sort_unstable();
    files.dedup();
    let (first, second) = (dir.path().join(files[0]), dir.path().join(files[1]));
    let (name, tensor) = load(&first).pop_first().unwrap();
    let mut tensors = load(&second);
    tensors.insert(name.clone(), tensor);
    store(&second, &tensors);
    assert!(matches!(checkpoint_error(dir.path()), CheckpointError::DuplicateTensor { tensor, .. } if tensor == name));

    // A file that is not there.
    fs::remove_file(&second).unwrap();
    assert!(matches!(checkpoint_error(dir.path()), CheckpointError::MissingShard { .. }));

    // Two tensors over the same bytes.
    let dir = copy("qwen3");
    let file = dir.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
    let last = header.as_object_mut().unwrap().values_mut().max_by_key(|entry| entry["data_offsets"][1].as_u64());
    for offset in last.unwrap()["data_offsets"].as_array_mut().unwrap() {
        *offset = (offset.as_u64().unwrap() - 2).into();
    }
    crate::files::raw(&file, &header.to_string(), &bytes[8 + header_bytes..]);
    assert!(matches!(checkpoint_error(dir.path()), CheckpointError::Overlap { .. }));
}

#[test]
fn a_tied_head_that_differs_is_refused() {
    let dir = copy("llama-tied");
    edit(dir.path(), |tensors| {
        let embedding = &tensors["model.embed_tokens.weight"];
        let (dtype, shape, mut bytes) = (embedding.dtype, embedding.shape.clone(), embedding.bytes.clone());
        bytes[0] ^= 1;
        tensors.insert("lm_head.weight".into(), crate::files::Tensor { dtype, shape, bytes });
    });
    assert!(matches!(checkpoint_error(dir.path()), CheckpointError::TiedHeadDiffers { .. }));
}

#[test]
fn a_budget_below_one_unit_is_refused_with_what_would_do() {
    let out = tempfile::tempdir().unwrap();
    let output = out.path().join("output");
    let small = ConvertOptions { budget_bytes: 1 << 20, ..options(2) };
    let error = run(&fixture("qwen3"), Recipe::Mxfp8, &output, &small).unwrap_err();
    let Error::Convert(ConvertError::BudgetTooSmall { needed_bytes, budget_bytes, .. }) = error else {
        panic!("{error}")
    };
    assert!(needed_bytes > budget_bytes);
    assert!(fs::read_dir(out.path()).unwrap().next().is_none());
    run(&fixture("qwen3"), Recipe::Mxfp8, &output, &ConvertOptions { budget_bytes: needed_bytes, ..small }).unwrap();
}

#[test]
fn an_output_that_holds_something_is_replaced_only_when_asked() {
    let out = tempfile::tempdir().unwrap();
    let output = out.path().join("output");
    fs::create_dir(&output).unwrap();
    fs::write(output.join("mine"), "x").unwrap();
    let error = refused(&fixture("qwen3"), Recipe::Mxfp8, &output);
    assert!(matches!(error, Error::Checkpoint(CheckpointError::TargetNotEmpty { .. })), "{error}");
    assert_eq!(contents(&output).len(), 1);
    run(&fixture("qwen3"), Recipe::Mxfp8, &output, &ConvertOptions { replace: true, ..options(2) }).unwrap();
    assert!(!output.join("mine").exists());
    let error = refused(&fixture("qwen3"), Recipe::Mxfp8, &out.path().join(".."));
    assert!(matches!(error, Error::Checkpoint(_) | Error::Convert(ConvertError::NoName { .. })), "{error}");
}

#[test]
fn two_conversions_into_one_output_do_not_meet() {
    let out = tempfile::tempdir().unwrap();
    let output = out.path().join("output");
    let model = StoredModel::open(&fixture("qwen3")).unwrap();
    let map = map(&model, Recipe::Mxfp8, &[]);
    let second = std::sync::OnceLock::new();
    convert(&model, &map, &Builtin, &output, &options(1), &|_| {
        second.get_or_init(|| refused(&fixture("qwen3"), Recipe::Mxfp8, &output));
    })
    .unwrap();
    let error = second.into_inner().unwrap();
    assert!(matches!(error, Error::Convert(ConvertError::Busy { .. })), "{error}");
}

/// What another conversion left is no part of this one.
#[test]
fn work_of_another_recipe_or_source_is_not_taken_over() {
    let out = tempfile::tempdir().unwrap();
    let (output, fresh) = (out.path().join("output"), out.path().join("fresh"));
    run(&fixture("qwen3"), Recipe::Mxfp8, &fresh, &options(2)).unwrap();
    let expected = contents(&fresh);
    for (model, recipe) in [("qwen3", Recipe::Fp8Block), ("qwen2-bias", Recipe::Mxfp8)] {
        interrupted(&fixture(model), recipe, &output);
        assert!(partial(&output).join("journal").exists());
        let converted = run(&fixture("qwen3"), Recipe::Mxfp8, &output, &options(2)).unwrap();
        assert!(contents(&output) == expected && converted.resumed_units == 0);
        fs::remove_dir_all(&output).unwrap();
    }
    interrupted(&fixture("qwen3"), Recipe::Mxfp8, &output);
    let converted = run(&fixture("qwen3"), Recipe::Mxfp8, &output, &options(2)).unwrap();
    assert!(contents(&output) == expected && converted.resumed_units > 0);
}

/// Bytes that were lost although the journal has their unit (a power cut) are made again.
#[test]
fn a_unit_of_the_journal_whose_bytes_are_gone_is_made_again() {
    let out = tempfile::tempdir().unwrap();
    let (output, fresh) = (out.path().join("output"), out.path().join("fresh"));
    run(&fixture("qwen3"), Recipe::Mxfp8, &fresh, &options(2)).unwrap();
    interrupted(&fixture("qwen3"), Recipe::Mxfp8, &output);
    let file = partial(&output).join("files/model.safetensors");
    let length = fs::metadata(&file).unwrap().len();
    fs::File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    run(&fixture("qwen3"), Recipe::Mxfp8, &output, &options(2)).unwrap();
    assert!(contents(&output) == contents(&fresh));
}

/// Leaves a conversion as a kill would: the error is one of writing, so that the work stays.
fn interrupted(model: &Path, recipe: Recipe, output: &Path) {
    let model = StoredModel::open(model).unwrap();
    let map = map(&model, recipe, &[]);
    let full = Full(std::sync::atomic::AtomicUsize::new(4));
    let error = convert(&model, &map, &full, output, &options(1), &|_| {}).unwrap_err();
    assert!(matches!(&error, Error::Checkpoint(CheckpointError::Io { .. })), "{error}");
    assert!(!output.exists() && partial(output).exists());
}

/// A quantizer after some of whose calls the disk is full.
struct Full(std::sync::atomic::AtomicUsize);

impl Quantizer for Full {
    fn id(&self) -> &str {
        Builtin.id()
    }

    fn support(&self, format: &FormatId) -> Support {
        Builtin.support(format)
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> miles_core::Result<Vec<QuantizedTensor>> {
        use std::sync::atomic::Ordering;
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(CheckpointError::Io { path: "output".into(), source }.into());
        }
        Builtin.quantize(sources, spec)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> miles_core::Result<Vec<f32>> {
        Builtin.dequantize(tensor)
    }
}

/// A quantizer that does MXFP8 alone.
struct OnlyMxfp8;

impl Quantizer for OnlyMxfp8 {
    fn id(&self) -> &str {
        "only-mxfp8"
    }

    fn support(&self, format: &FormatId) -> Support {
        if *format == FormatId::mxfp8() { Support::Native } else { Support::Unsupported }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> miles_core::Result<Vec<QuantizedTensor>> {
        Builtin.quantize(sources, spec)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> miles_core::Result<Vec<f32>> {
        Builtin.dequantize(tensor)
    }
}

#[test]
fn a_format_that_the_quantizer_lacks_and_two_layouts_in_one_directory_are_refused_before_anything_is_written() {
    let out = tempfile::tempdir().unwrap();
    let output = out.path().join("output");
    let model = StoredModel::open(&fixture("qwen3")).unwrap();
    let fp8 = Rule::name("*.o_proj.weight", TensorFormat::Quantized(FormatId::fp8_block()));
    let mixed = map(&model, Recipe::Mxfp8, &[fp8]);
    let error = convert(&model, &mixed, &OnlyMxfp8, &output, &options(1), &|_| {}).unwrap_err();
    let Error::Precision(PrecisionError::BackendLacks { format, can, .. }) = &error else { panic!("{error}") };
    assert_eq!((format.as_str(), can.len()), ("fp8-block", 1));
    let error = convert(&model, &mixed, &Builtin, &output, &options(1), &|_| {}).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(CheckpointError::MixedFormats { .. })), "{error}");
    assert!(fs::read_dir(out.path()).unwrap().next().is_none());
}
