//! Checks what a run left against its ledger, and finds where two runs part.
//!
//! ```console
//! cargo run --release --example ledger -- verify runs/quickstart
//! cargo run --release --example ledger -- diff runs/a runs/b
//! ```

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use miles_core::policy::PolicyVersion;
use miles_examples::exit;
use miles_examples::ledger::{VerifyOptions, diff, verify_left};

/// Checks what a run left against its ledger, and finds where two runs part.
///
/// Exit code: 0 equal (and something was compared), 1 something differs, is missing, or contradicts the rest, 2 an error:
/// something cannot be read, such as a ledger with a torn line.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Computes everything again that a ledger says and compares: its own lines, the run's metrics and checkpoints, and
    /// every stored tensor and file.
    Verify {
        /// Output directory of a run, or a checkpoint directory together with --ledger
        dir: PathBuf,
        /// Ledger file (default: the one in DIR); metrics and checkpoints are then not looked at
        #[arg(long, value_name = "FILE")]
        ledger: Option<PathBuf>,
        /// Policy version (default: the one exported last, else the last one)
        #[arg(long, value_name = "N")]
        version: Option<u64>,
        /// Also make the version of every saved checkpoint of the run again from its master weights
        #[arg(long, conflicts_with = "ledger")]
        checkpoints: bool,
    },
    /// Finds the first version, tensor and byte where two runs, two ledger files or two checkpoint directories part.
    Diff {
        /// Output directory of a run, ledger file, or checkpoint directory
        a: PathBuf,
        /// The same of the other
        b: PathBuf,
    },
}

fn main() -> ExitCode {
    let mut out = io::stdout();
    let is_equal = match Arguments::parse().command {
        Command::Verify { dir, ledger, version, checkpoints } => {
            let options = VerifyOptions { ledger, version: version.map(PolicyVersion), checkpoints };
            verify_left(&dir, &options, &mut out)
        }
        Command::Diff { a, b } => diff(&a, &b, &mut out),
    };
    match is_equal {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // The line on stderr is that of every example; the code tells an error from a difference.
            let _ = exit(Err(error));
            ExitCode::from(2)
        }
    }
}
