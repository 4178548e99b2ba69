//! The whole loop in one command: teaches a small Qwen3-MoE model arithmetic, in any recipe, on the CPU.
//!
//! ```console
//! cargo run --release --example quickstart
//! cargo run --release --example quickstart -- --recipe mxfp8 --steps 20 --out runs/mxfp8
//! ```
//!
//! The output directory then holds `metrics.jsonl` (one object per step), `ledger.jsonl` (one line per quantized
//! tensor and version), `report.html` (open it in a browser) and `policy/` (a Hugging Face directory with the trained
//! weights in the recipe's formats). The last line on stdout sums the run up.

use std::process::ExitCode;

use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_backend_cuda as _;
use miles_examples::training::{TrainingArgs, quickstart, train};

/// Teaches a small Qwen3-MoE model arithmetic with GRPO, in any precision recipe.
#[derive(Parser)]
#[command(after_help = "Without flags: recipe nvfp4-dequantized, the bundled model and data, out runs/quickstart.")]
struct Arguments {
    #[command(flatten)]
    training: TrainingArgs,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match quickstart(&[]) {
        Ok(defaults) => train(&arguments.training, defaults, |builder| builder),
        Err(error) => miles_examples::exit(Err(error.into())),
    }
}
