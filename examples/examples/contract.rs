//! One policy version through its four hand-offs, on every backend of this machine.
//!
//! ```console
//! cargo run --release --example contract
//! cargo run --release --example contract -- --model DIR --recipe mxfp8 --backend cpu-ref
//! ```
//!
//! | hand-off | what is hashed |
//! |---|---|
//! | convert | the checkpoint quantized by the map, written as a directory and read back |
//! | training | the operands that the trainer's forward multiplies, read back from its own memory |
//! | rollout | the operands that the engine multiplies, after the version went through a policy store |
//! | export | the directory that a live export of the trainer's version leaves, read back |
//!
//! The exit code is 1 if any tensor differs at any hand-off, or between backends.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_backend_cuda as _;
use miles_core::checkpoint::Checkpoint;
use miles_core::precision::{PrecisionTable, Recipe, resolve};
use miles_core::{Error as CoreError, registry};
use miles_examples::contract::{BackendProof, prove, quickstart_model};

/// Takes one policy version through convert, training operand, rollout operand and live export, and compares the bytes.
#[derive(Parser)]
struct Arguments {
    /// Hugging Face checkpoint directory [default: the quickstart's model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Precision recipe
    #[arg(long, value_name = "NAME", default_value = "nvfp4-dequantized")]
    recipe: Recipe,
    /// Backend, repeatable [default: every one that is present]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    backend: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => miles_examples::exit(Err(error)),
    }
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let checkpoint = Checkpoint::open(&arguments.model.clone().unwrap_or_else(quickstart_model))?;
    let map = resolve(checkpoint.network(), arguments.recipe, &[])?;
    println!("{}: {}", checkpoint.dir().display(), PrecisionTable::new(checkpoint.network(), &map));
    let map = std::sync::Arc::new(map);
    let asked = !arguments.backend.is_empty();
    let known = registry::backend_names().into_iter().map(str::to_owned);
    let names: Vec<String> = if asked { arguments.backend.clone() } else { known.collect() };
    let mut proofs: Vec<BackendProof> = Vec::new();
    for name in names {
        match registry::backend(&name, &serde_json::Value::Null) {
            Ok(backend) => proofs.push(prove(&backend, &checkpoint, &map)?),
            // A backend that this machine lacks is no difference, unless it was asked for.
            Err(error @ CoreError::Unsupported { .. }) if !asked => println!("{name}: not run: {error}\n"),
            Err(error) => return Err(error.into()),
        }
    }
    proofs.iter().for_each(|proof| println!("{proof}"));
    let Some((first, others)) = proofs.split_first() else {
        return Err("no backend is present: nothing was compared".into());
    };
    let mut equal = proofs.iter().all(BackendProof::is_equal);
    for other in others {
        let same = other.policy_digest() == first.policy_digest();
        equal &= same;
        let verdict = if same { "the same policy as" } else { "NOT the policy of" };
        println!("{}: {verdict} {}", other.backend(), first.backend());
    }
    println!("{} policy_digest={}", if equal { "equal" } else { "DIFFERENT" }, first.policy_digest());
    Ok(equal)
}
