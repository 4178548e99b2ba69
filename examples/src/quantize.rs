//! Quantizing the matrices of a safetensors file: what each becomes, and which share an outer scale.

mod error;
mod output;

use std::collections::BTreeMap;
use std::error::Error;

use miles_core::checkpoint::RawTensors;
use miles_core::format::layout::ScaleLayout;
use miles_core::format::{
    FormatError, FormatId, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype, builtin_rule, builtin_rules,
};
use miles_core::plugin::Quantizer;
use miles_core::tensor::{DenseTensor, Dtype};

pub use error::{GroupError, NothingToQuantize, TensorFailure, UnsupportedDtype};

use crate::OutputTensor;

/// What is to be done with every matrix of a file.
#[derive(Clone, Debug)]
pub struct Request {
    /// How to quantize a matrix.
    pub spec: QuantizeSpec,
    /// Names of matrices that get one outer scale per group.
    pub groups: Vec<Vec<String>>,
    /// How block scales are arranged in the output.
    pub layout: ScaleLayout,
}

/// The id of a built-in format: `name`, or its variant `name/variant`.
///
/// # Errors
/// [`FormatError::UnknownFormat`] with the known ones; [`FormatError::InvalidFormatId`] for a text that names nothing.
pub fn built_in(name: &str, variant: Option<&str>) -> Result<FormatId, FormatError> {
    let format = match variant {
        Some(variant) => FormatId::new(&format!("{name}/{variant}"))?,
        None => FormatId::new(name)?,
    };
    match builtin_rule(&format) {
        Some(_) => Ok(format),
        None => Err(FormatError::UnknownFormat { format, known: builtin_rules().map(|rule| rule.id()).collect() }),
    }
}

/// Quantizes every matrix of `file`, in the order of names. Tensors of other ranks are passed to `skipped`.
///
/// # Errors
/// A file without a matrix; the first tensor that cannot be read, quantized or laid out, by name; a group that names what
/// cannot be grouped.
pub fn quantize_file(
    file: &RawTensors,
    quantizer: &dyn Quantizer,
    request: &Request,
    mut skipped: impl FnMut(&str, &[usize]),
) -> Result<Vec<(String, OutputTensor)>, Box<dyn Error>> {
    let mut names = Vec::new();
    for (name, (_, shape)) in file.names().filter_map(|name| Some((name, file.find(name)?))) {
        match shape.len() {
            2 => names.push(name),
            _ => skipped(name, shape),
        }
    }
    if names.is_empty() {
        return Err(NothingToQuantize { path: file.path().to_owned() }.into());
    }
    let mut grouped = quantize_groups(file, quantizer, request)?;
    let mut outputs = Vec::new();
    for name in names {
        let tensor = match grouped.remove(name) {
            Some(tensor) => tensor,
            None => {
                let matrix = Matrix::read(name, file)?;
                let mut made = quantizer
                    .quantize(&[matrix.source()?], &request.spec)
                    .map_err(|source| TensorFailure::new(name, source))?;
                made.swap_remove(0)
            }
        };
        let values = quantizer.dequantize(&tensor).map_err(|source| TensorFailure::new(name, source))?;
        let parts = output::parts(name, &tensor, &values, request.layout);
        outputs.extend(parts.map_err(|source| TensorFailure::new(name, source.into()))?);
    }
    Ok(outputs)
}

/// The tensors of all groups, by name.
fn quantize_groups(
    file: &RawTensors,
    quantizer: &dyn Quantizer,
    request: &Request,
) -> Result<BTreeMap<String, QuantizedTensor>, Box<dyn Error>> {
    let spec = request.spec.clone().with_scope(ScaleScope::Group);
    let mut made = BTreeMap::new();
    for group in &request.groups {
        let matrices = group.iter().map(|name| Matrix::read(name, file)).collect::<Result<Vec<_>, _>>()?;
        let sources = matrices.iter().map(Matrix::source).collect::<Result<Vec<_>, _>>()?;
        let tensors =
            quantizer.quantize(&sources, &spec).map_err(|source| TensorFailure::new(&group.join("`, `"), source))?;
        for (name, tensor) in group.iter().zip(tensors) {
            if made.insert(name.clone(), tensor).is_some() {
                return Err(GroupError::Twice { tensor: name.clone() }.into());
            }
        }
    }
    Ok(made)
}

/// A matrix of the file, widened.
struct Matrix<'a> {
    name: &'a str,
    values: Vec<f32>,
    rows: usize,
    cols: usize,
    dtype: SourceDtype,
}

impl<'a> Matrix<'a> {
    fn read(name: &'a str, file: &RawTensors) -> Result<Self, Box<dyn Error>> {
        let Some((stored, &[rows, cols])) = file.find(name) else {
            return Err(GroupError::Unknown { tensor: name.to_owned() }.into());
        };
        let (stored, dtype) = match stored {
            safetensors::Dtype::BF16 => (Dtype::Bf16, SourceDtype::Bf16),
            safetensors::Dtype::F16 => (Dtype::F16, SourceDtype::F32),
            safetensors::Dtype::F32 => (Dtype::F32, SourceDtype::F32),
            dtype => return Err(UnsupportedDtype { tensor: name.to_owned(), dtype }.into()),
        };
        let values = DenseTensor::new(stored, vec![rows, cols], file.read(name)?)?.to_f32();
        Ok(Matrix { name, values, rows, cols, dtype })
    }

    fn source(&self) -> Result<Source<'_>, TensorFailure> {
        Source::new(&self.values, self.rows, self.cols, self.dtype, Some(self.name))
            .map_err(|source| TensorFailure::new(self.name, source.into()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use miles_backend_cpu_ref::CpuRef;
    use miles_core::format::{Axis, QuantizeSpec};

    use super::*;
    use crate::write_safetensors;

    fn request(format: &str, groups: &[&[&str]], layout: ScaleLayout) -> Request {
        let spec = QuantizeSpec::weight(FormatId::new(format).unwrap()).with_scope(ScaleScope::Tensor);
        let groups = groups.iter().map(|group| group.iter().map(|&name| name.to_owned()).collect()).collect();
        Request { spec, groups, layout }
    }

    /// What becomes of a file of these tensors, in the order of names.
    fn made(request: &Request, tensors: &[(String, OutputTensor)]) -> Result<BTreeMap<String, OutputTensor>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("in.safetensors");
        write_safetensors(&path, tensors).unwrap();
        let quantizer = CpuRef::new().quantizer().unwrap();
        let file = RawTensors::open(&path).unwrap();
        let made = quantize_file(&file, &quantizer, request, |name, _| assert_eq!(name, "norm"));
        made.map(|outputs| outputs.into_iter().collect()).map_err(|error| {
            let cause = error.source().map(ToString::to_string).unwrap_or_default();
            format!("{error}: {cause}")
        })
    }

    /// `gate` and `up` of equal width, `down` of another, and a vector.
    fn run(request: &Request) -> Result<BTreeMap<String, OutputTensor>, String> {
        let ramp = |count: usize, step: f32| (0..count).map(|i| i as f32 * step - 3.0).collect::<Vec<_>>();
        let tensors = [
            ("down".to_owned(), OutputTensor::f32(vec![3, 32], &ramp(96, 0.5))),
            ("gate".to_owned(), OutputTensor::f32(vec![2, 64], &ramp(128, 0.25))),
            ("norm".to_owned(), OutputTensor::f32(vec![4], &[1.0; 4])),
            ("up".to_owned(), OutputTensor::f32(vec![5, 64], &ramp(320, 8.0))),
        ];
        made(request, &tensors)
    }

    #[test]
    fn a_file_without_a_matrix_is_an_error_that_names_it() {
        let vector = ("norm".to_owned(), OutputTensor::f32(vec![4], &[1.0; 4]));
        for tensors in [&[][..], &[vector]] {
            let error = made(&request("mxfp8", &[], ScaleLayout::Linear), tensors).unwrap_err();
            assert!(error.contains("in.safetensors") && error.contains("nothing to quantize"), "{error}");
        }
    }

    /// Shapes are those of the help, also where a side is empty: `[rows, cols]`, or that of the transpose.
    #[test]
    fn parts_of_empty_matrices_keep_their_shapes() {
        for (format, is_packed) in [
            ("nvfp4", true),
            ("nvfp4/16x16", true),
            ("nvfp4/hadamard", true),
            ("mxfp8", false),
            ("mxfp8/32x32", false),
            ("fp8-block", false),
            ("fp8-channel", false),
            ("fp8-tensor", false),
            ("int8-channel", false),
            ("int4-group/128", true),
        ] {
            for (rows, cols) in [(0, 32), (64, 0), (0, 0)] {
                for axis in [Axis::Row, Axis::Column] {
                    let mut request = request(format, &[], ScaleLayout::Linear);
                    request.spec = request.spec.with_axis(axis);
                    let parts = made(&request, &[("a".to_owned(), OutputTensor::f32(vec![rows, cols], &[]))]).unwrap();
                    let transposed = axis == Axis::Column && !format.starts_with("mxfp8");
                    let (lines, length) = if transposed { (cols, rows) } else { (rows, cols) };
                    let line_bytes = if is_packed { length / 2 } else { length };
                    assert_eq!(parts["a/codes"].shape, [lines, line_bytes], "{format} {axis:?}");
                    assert_eq!(parts["a/dequantized"].shape, [rows, cols], "{format} {axis:?}");
                    let has_outer = format.starts_with("nvfp4") || format == "fp8-tensor";
                    assert_eq!(parts.contains_key("a/outer"), has_outer, "{format} {axis:?}");
                    assert_eq!(parts.len(), 3 + usize::from(has_outer));
                }
            }
        }
        // One outer scale per row of a matrix without rows.
        let mut by_row = request("nvfp4", &[], ScaleLayout::Linear);
        by_row.spec = by_row.spec.with_scope(ScaleScope::Row);
        let parts = made(&by_row, &[("a".to_owned(), OutputTensor::f32(vec![0, 32], &[]))]).unwrap();
        assert_eq!((&parts["a/outer"].shape, &parts["a/scales"].shape), (&vec![0], &vec![0, 2]));
    }

    #[test]
    fn a_format_without_block_scales_has_none_to_arrange() {
        let linear = run(&request("fp8-tensor", &[], ScaleLayout::Linear)).unwrap();
        assert_eq!(linear["up/scales"].shape, [0, 0]);
        for format in ["fp8-tensor", "fp8-block"] {
            let error = run(&request(format, &[], ScaleLayout::Tile128x4)).unwrap_err();
            assert!(error.contains(format) && error.contains("no one-byte block scales"), "{error}");
        }
    }

    #[test]
    fn a_group_has_one_outer_scale() {
        for format in ["nvfp4", "fp8-tensor"] {
            let apart = run(&request(format, &[], ScaleLayout::Linear)).unwrap();
            let together = run(&request(format, &[&["up", "gate"]], ScaleLayout::Linear)).unwrap();
            assert_ne!(apart["gate/outer"].bytes, apart["up/outer"].bytes);
            assert_eq!(together["gate/outer"].bytes, apart["up/outer"].bytes);
            assert_eq!(together["up/codes"].bytes, apart["up/codes"].bytes);
            assert_eq!(together["down/codes"].bytes, apart["down/codes"].bytes);
        }
    }

    #[test]
    fn impossible_groups_are_refused_by_name() {
        for (group, expected) in [
            (["gate", "gone"], "`gone`"),
            (["gate", "norm"], "`norm`"),
            (["gate", "gate"], "`gate`"),
            (["gate", "down"], "down has 32 columns"),
        ] {
            let error = run(&request("nvfp4", &[&group], ScaleLayout::Linear)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn one_byte_scales_are_laid_out_and_others_refused() {
        let linear = run(&request("mxfp8", &[], ScaleLayout::Linear)).unwrap();
        let tiles = run(&request("mxfp8", &[], ScaleLayout::Tile128x4)).unwrap();
        assert_eq!(linear["up/scales"].shape, [5, 2]);
        assert_eq!(tiles["up/scales"].shape, [512]);
        assert_eq!(tiles["up/scales"].bytes[16..18], linear["up/scales"].bytes[2..4]);
        let error = run(&request("fp8-block", &[], ScaleLayout::Tile8x4)).unwrap_err();
        assert!(error.contains("`down`") && error.contains("no one-byte block scales"), "{error}");
    }

    #[test]
    fn an_unknown_variant_lists_the_known_ones() {
        assert_eq!(built_in("mxfp8", Some("ocp-floor")).unwrap().as_str(), "mxfp8/ocp-floor");
        for (name, variant) in [("mxfp8", Some("te-2.13")), ("int4-group", None), ("nothing", None)] {
            let error = built_in(name, variant).unwrap_err().to_string();
            assert!(error.contains("int4-group/32") && error.contains("mxfp8/even"), "{error}");
        }
        assert!(built_in("MXFP8", None).is_err());
    }
}
