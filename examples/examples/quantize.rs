//! Quantizes every 2-D tensor of a safetensors file and writes the exact bytes.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::RawTensors;
use miles_core::format::layout::ScaleLayout;
use miles_core::format::{Axis, FormatError, NonFinite, QuantizeSpec, ScaleScope};
use miles_examples::quantize::{Request, built_in, quantize_file};
use miles_examples::{exit, refuse_replacing, write_safetensors};

/// Quantizes every 2-D tensor of a safetensors file and writes its codes, scales and decoded values.
///
/// For each BF16, F16 or F32 tensor NAME of shape [rows, cols] the output holds
///
///   NAME/codes        U8: one byte per element [rows, cols]; nvfp4 and int4-group two per byte [rows, cols/2] (even
///                     element in the low nibble); with --axis column those of the transpose, but for mxfp8
///   NAME/scales       U8 (nvfp4: E4M3, mxfp8: E8M0) or F32 decode scales (the others), compact [scale rows, blocks];
///                     with another --layout the U8 buffer that a kernel reads; fp8-tensor has no block scales: F32 [0, 0]
///   NAME/outer        F32 second-level decode scales, one per line or one for the tensor; only nvfp4 and fp8-tensor
///                     have them
///   NAME/dequantized  BF16 [rows, cols]
///
/// A matrix with 0 rows or columns has the same tensors, with those shapes.
///
/// Formats: nvfp4, mxfp8, fp8-block, fp8-channel, fp8-tensor, int8-channel, and int4-group with a variant.
///
///   nvfp4       te-2.13, four-over-six-mae-448, four-over-six-mae-256, four-over-six-mse-448, four-over-six-mse-256, 16x16
///   mxfp8       ocp-floor, even, 32x32
///   fp8-block   power-of-two, deepgemm, deepgemm-ue8m0, sglang, sglang-divide, deepseek, deepseek-ue8m0
///   int4-group  32, 64, 128
///
/// Tensors of other ranks are skipped with a notice; a matrix that is not BF16, F16 or F32 is an error, and so is a file
/// without a matrix. `--scale` and `--group` matter to formats with an outer scale only. On an error nothing is written.
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Options {
    /// File to read.
    #[arg(long)]
    input: PathBuf,
    /// File to write; not the one to read.
    #[arg(long)]
    output: PathBuf,
    /// Quantized format.
    #[arg(long)]
    format: String,
    /// Variant of the format.
    #[arg(long)]
    variant: Option<String>,
    /// Extent of one outer scale: a line (a row, or a column with --axis column) or the whole tensor [default: row; tensor
    /// for the variants 16x16 and 32x32].
    #[arg(long)]
    scale: Option<Scale>,
    /// Tensors of equal width that get one outer scale for all of them, whatever --scale says; can be repeated.
    #[arg(long, value_name = "NAME,NAME")]
    group: Vec<String>,
    /// Direction of blocks: along rows, or down columns.
    #[arg(long, default_value = "row")]
    axis: Direction,
    /// Which operand of a linear layer the tensor is: decides the tiles of fp8-block, mxfp8 32x32 and nvfp4 16x16 [default:
    /// activation; weight for the variants 16x16 and 32x32, which leave activations as they are].
    #[arg(long)]
    operand: Option<Side>,
    /// Arrangement of one-byte block scales; formats without them (F32 scales, or none) have the linear one only.
    #[arg(long, default_value = "linear")]
    layout: Layout,
    /// NaN and infinity: an error, or converted as hardware does [default: hardware for activations, error for weights].
    #[arg(long)]
    non_finite: Option<OnNonFinite>,
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
enum Layout {
    Linear,
    #[value(name = "128x4")]
    Tile128x4,
    #[value(name = "8x4")]
    Tile8x4,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnNonFinite {
    Error,
    Hardware,
}

impl Options {
    fn spec(&self) -> Result<QuantizeSpec, FormatError> {
        let format = built_in(&self.format, self.variant.as_deref())?;
        let is_tiled = format.as_str().split('/').any(|part| matches!(part, "16x16" | "32x32"));
        let spec = match (self.operand, is_tiled) {
            (Some(Side::Activation), _) | (None, false) => QuantizeSpec::activation(format),
            (Some(Side::Weight), _) | (None, true) => QuantizeSpec::weight(format),
        };
        let spec = match (self.scale, is_tiled) {
            (Some(Scale::Row), _) | (None, false) => spec.with_scope(ScaleScope::Row),
            (Some(Scale::Tensor), _) | (None, true) => spec.with_scope(ScaleScope::Tensor),
        };
        let spec = match self.axis {
            Direction::Row => spec.with_axis(Axis::Row),
            Direction::Column => spec.with_axis(Axis::Column),
        };
        Ok(match self.non_finite {
            None => spec,
            Some(OnNonFinite::Error) => spec.with_non_finite(NonFinite::Error),
            Some(OnNonFinite::Hardware) => spec.with_non_finite(NonFinite::Hardware),
        })
    }

    fn request(&self) -> Result<Request, FormatError> {
        let names = |group: &String| group.split(',').map(str::to_owned).collect();
        let layout = match self.layout {
            Layout::Linear => ScaleLayout::Linear,
            Layout::Tile128x4 => ScaleLayout::Tile128x4,
            Layout::Tile8x4 => ScaleLayout::Tile8x4,
        };
        Ok(Request { spec: self.spec()?, groups: self.group.iter().map(names).collect(), layout })
    }
}

fn main() -> ExitCode {
    exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let request = options.request()?;
    refuse_replacing(&options.output, &[&options.input])?;
    let file = RawTensors::open(&options.input)?;
    let quantizer = CpuRef::new().quantizer()?;
    let skipped = |name: &str, shape: &[usize]| eprintln!("skipping `{name}`: shape {shape:?} is not 2-D");
    let outputs = quantize_file(&file, &quantizer, &request, skipped)?;
    write_safetensors(&options.output, &outputs)?;
    Ok(())
}
