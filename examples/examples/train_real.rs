//! The same loop on any supported Hugging Face directory with a chat template.
//!
//! ```console
//! cargo run --release --example train_real -- --model path/to/SmolLM2-135M-Instruct
//! ```
//!
//! The bundled prompts are short sums asked in words; pass your own with `--data FILE` (JSONL rows with `prompt` or
//! `messages`, and `answer`). The defaults are sized for a 135M model on two cores; every config key can be changed.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_backend_cuda as _;
use miles_examples::training::{TrainingArgs, train};
use miles_grpo::RunConfig;

/// Trains a Hugging Face chat model with GRPO, in any precision recipe.
#[derive(Parser)]
#[command(after_help = "Required: --model DIR (or model.dir=DIR). See every key with --print-config.")]
struct Arguments {
    #[command(flatten)]
    training: TrainingArgs,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/real");
    let defaults = match RunConfig::parse(include_str!("../data/real/train_real.toml"), &[]) {
        Ok(mut config) => {
            config.data.train = data.join("train.jsonl");
            config.data.eval = Some(data.join("held_out.jsonl"));
            config
        }
        Err(error) => return miles_examples::exit(Err(error.into())),
    };
    train(&arguments.training, defaults, |builder| builder)
}
