//! Breaks each seam of the contract on purpose and prints the error that catches it, one line per seam.
//!
//! ```console
//! cargo run --release --example break_the_contract
//! ```
//!
//! Every line is a fault that has cost somebody a training run: it fits in shape, nothing crashes, and the reward just
//! stops moving. The exit code is 1 if any of them goes unnoticed.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use miles_examples::seams::{Bench, SEAMS};

/// Breaks each seam of the contract on purpose; each line ends in the error that catches it.
#[derive(Parser)]
struct Arguments {}

fn main() -> ExitCode {
    Arguments::parse();
    miles_examples::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let bench = Bench::new(scratch.path())?;
    let mut unnoticed = Vec::new();
    for seam in SEAMS {
        let verdict = match (seam.run)(&bench)? {
            Some(error) => format!("caught: {}", error.replace('\n', " ")),
            None => {
                unnoticed.push(seam.name);
                "NOT CAUGHT".to_owned()
            }
        };
        println!("{:<12} {:<66} {verdict}", seam.name, seam.broken);
    }
    match unnoticed.as_slice() {
        [] => Ok(()),
        seams => Err(format!("not caught: {}", seams.join(", ")).into()),
    }
}
