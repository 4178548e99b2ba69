//! Quantizes every 2-D tensor of a safetensors file and writes the exact bytes.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use miles_backend_cpu_ref::CpuRef;
use miles_core::format::{
    Axis, BlockScales, FormatId, NonFinite, QuantizeSpec, QuantizedTensor, ScaleScope, Source, SourceDtype,
};
use miles_core::number;
use miles_core::plugin::Quantizer;
use miles_core::tensor::{DenseTensor, Dtype};
use miles_examples::{FileError, OutputTensor, exit, read_file, write_safetensors};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// Quantizes every 2-D tensor of a safetensors file and writes its codes, scales and decoded values.
///
/// For each BF16, F16 or F32 tensor NAME of shape [rows, cols] the output holds
///
///   NAME/codes        U8: nvfp4 [rows, cols/2] (even element in the low nibble), mxfp8 and fp8-block [rows, cols];
///                     with --axis column nvfp4 [cols, rows/2] and fp8-block [cols, rows] are those of the transpose
///   NAME/scales       U8 (nvfp4: E4M3, mxfp8: E8M0) or F32 (fp8-block: decode scales), compact
///   NAME/outer        F32 second-level decode scales, one per line or one for the tensor; only nvfp4 has them
///   NAME/dequantized  BF16 [rows, cols]
///
/// Tensors of other ranks are skipped with a notice; a matrix that is not BF16, F16 or F32 is an error. `--scale` matters
/// to nvfp4 only: the other formats have no outer scale. On an error nothing is written.
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Options {
    /// File to read.
    #[arg(long)]
    input: PathBuf,
    /// File to write.
    #[arg(long)]
    output: PathBuf,
    /// Quantized format.
    #[arg(long)]
    format: Format,
    /// Extent of one outer scale: a line (a row, or a column with --axis column) or the whole tensor.
    #[arg(long, default_value = "row")]
    scale: Scale,
    /// Direction of blocks: along rows, or down columns.
    #[arg(long, default_value = "row")]
    axis: Direction,
    /// Which operand of a linear layer the tensor is: decides the tile of fp8-block (1x128 or 128x128).
    #[arg(long, default_value = "activation")]
    operand: Side,
    /// NaN and infinity: an error, or converted as hardware does [default: hardware for activations, error for weights].
    #[arg(long)]
    non_finite: Option<OnNonFinite>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Nvfp4,
    Mxfp8,
    Fp8Block,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scale {
    Row,
    Tensor,
}

#[derive(Clone, Copy, ValueEnum)]
enum Direction {
    Row,
    Column,
}

#[derive(Clone, Copy, ValueEnum)]
enum Side {
    Activation,
    Weight,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnNonFinite {
    Error,
    Hardware,
}

impl Options {
    fn spec(&self) -> QuantizeSpec {
        let format = match self.format {
            Format::Nvfp4 => FormatId::nvfp4(),
            Format::Mxfp8 => FormatId::mxfp8(),
            Format::Fp8Block => FormatId::fp8_block(),
        };
        let spec = match self.operand {
            Side::Activation => QuantizeSpec::activation(format),
            Side::Weight => QuantizeSpec::weight(format),
        };
        let spec = match self.scale {
            Scale::Row => spec.with_scope(ScaleScope::Row),
            Scale::Tensor => spec.with_scope(ScaleScope::Tensor),
        };
        let spec = match self.axis {
            Direction::Row => spec.with_axis(Axis::Row),
            Direction::Column => spec.with_axis(Axis::Column),
        };
        match self.non_finite {
            None => spec,
            Some(OnNonFinite::Error) => spec.with_non_finite(NonFinite::Error),
            Some(OnNonFinite::Hardware) => spec.with_non_finite(NonFinite::Hardware),
        }
    }
}

fn main() -> ExitCode {
    exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let bytes = read_file(&options.input)?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|source| FileError::Safetensors { path: options.input.clone(), source })?;
    let quantizer = CpuRef::new().quantizer()?;
    let spec = options.spec();
    let mut outputs = Vec::new();
    for (name, view) in sorted(&file) {
        if view.shape().len() != 2 {
            eprintln!("skipping `{name}`: shape {:?} is not 2-D", view.shape());
            continue;
        }
        let tensor = quantize(&quantizer, &name, &view, &spec)?;
        let bf16 = quantizer.dequantize(&tensor).map_err(|source| TensorFailure::new(&name, source))?;
        outputs.extend(parts(&name, &tensor, &bf16));
    }
    write_safetensors(&options.output, &outputs)?;
    Ok(())
}

fn sorted<'a>(file: &SafeTensors<'a>) -> Vec<(String, TensorView<'a>)> {
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

fn quantize(
    quantizer: &dyn Quantizer,
    name: &str,
    view: &TensorView<'_>,
    spec: &QuantizeSpec,
) -> Result<QuantizedTensor, Box<dyn Error>> {
    let (dtype, source_dtype) = match view.dtype() {
        safetensors::Dtype::BF16 => (Dtype::Bf16, SourceDtype::Bf16),
        safetensors::Dtype::F16 => (Dtype::F16, SourceDtype::F32),
        safetensors::Dtype::F32 => (Dtype::F32, SourceDtype::F32),
        dtype => return Err(UnsupportedDtype { tensor: name.to_owned(), dtype }.into()),
    };
    let values = DenseTensor::new(dtype, view.shape().to_vec(), view.data())?.to_f32();
    let (rows, cols) = (view.shape()[0], view.shape()[1]);
    let failure = |source| TensorFailure::new(name, source);
    let source = Source::new(&values, rows, cols, source_dtype, Some(name)).map_err(|e| failure(e.into()))?;
    let mut made = quantizer.quantize(&[source], spec).map_err(failure)?;
    Ok(made.swap_remove(0))
}

fn parts(name: &str, tensor: &QuantizedTensor, values: &[f32]) -> Vec<(String, OutputTensor)> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let transposed = tensor.axis() == Axis::Column && *tensor.format() != FormatId::mxfp8();
    let lines = if transposed { cols } else { rows };
    let codes_shape = vec![lines, tensor.codes().len() / lines.max(1)];
    let scales_shape = vec![tensor.scale_rows(), tensor.scale_cols()];
    let scales = match tensor.scales() {
        BlockScales::U8(scales) => OutputTensor::u8(scales_shape, scales.clone()),
        BlockScales::F32(scales) => OutputTensor::f32(scales_shape, scales),
    };
    let bits: Vec<u16> = values.iter().map(|&x| number::bf16::encode(x)).collect();
    let mut parts = vec![
        (format!("{name}/codes"), OutputTensor::u8(codes_shape, tensor.codes().to_vec())),
        (format!("{name}/scales"), scales),
        (format!("{name}/dequantized"), OutputTensor::bf16(vec![rows, cols], &bits)),
    ];
    if !tensor.outer().is_empty() {
        parts.push((format!("{name}/outer"), OutputTensor::f32(vec![tensor.outer().len()], tensor.outer())));
    }
    parts
}

/// A 2-D tensor that is not in high precision.
#[derive(Debug)]
struct UnsupportedDtype {
    tensor: String,
    dtype: safetensors::Dtype,
}

impl fmt::Display for UnsupportedDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor `{}` is {:?}; only BF16, F16 and F32 can be quantized", self.tensor, self.dtype)
    }
}

impl Error for UnsupportedDtype {}

/// Why a tensor could not be quantized.
#[derive(Debug)]
struct TensorFailure {
    tensor: String,
    source: miles_core::Error,
}

impl TensorFailure {
    fn new(tensor: &str, source: miles_core::Error) -> Self {
        TensorFailure { tensor: tensor.to_owned(), source }
    }
}

impl fmt::Display for TensorFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot quantize tensor `{}`", self.tensor)
    }
}

impl Error for TensorFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}
