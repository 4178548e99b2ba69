//! What the ledger costs of a quickstart step: digests of sources and results, and the lines themselves.
//!
//! A short quickstart gives the seconds of a step. Then everything that one version costs for the ledger's sake is done
//! again on the run's last version and timed alone: hashing every source (the BF16 rounding of the masters), hashing every
//! result, recording and flushing every event.

use std::error::Error;
use std::hint::black_box;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_core::checkpoint::Checkpoint;
use miles_core::digest::Digest;
use miles_core::plugin::StepRecord;
use miles_core::policy::{Ledger, LedgerEvent, LedgerFile, PolicyTensor, PolicyVersion, StoredMasters, WeightSource};
use miles_core::tensor::{DenseTensor, Dtype};
use miles_examples::exit;
use miles_examples::training::{finish, quickstart};
use miles_grpo::track::read_metrics;
use miles_grpo::{Plan, Run};

/// Prints what the ledger costs of a quickstart step.
#[derive(Parser)]
struct Arguments {
    /// Steps of the quickstart; their median counts, without the first
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..))]
    steps: u64,
    /// Precision recipe
    #[arg(long, value_name = "NAME", default_value = "nvfp4-dequantized")]
    recipe: String,
    /// Output directory of the run, replaced
    #[arg(long, value_name = "DIR", default_value = "runs/ledger-rates")]
    out: PathBuf,
    /// Repetitions of each measurement; the median counts
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
    repeats: u64,
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let overrides = [
        format!("precision.recipe={}", arguments.recipe),
        format!("run.steps={}", arguments.steps),
        format!("run.out={}", arguments.out.display()),
        "run.existing=overwrite".to_owned(),
    ];
    let outcome = finish(Run::builder(Plan::new(&quickstart(&overrides)?)?))?;
    let records = read_metrics(&arguments.out.join("metrics.jsonl"))?;
    let step_seconds = median(records[1..].iter().map(step_seconds).collect());
    let quantize_seconds = median(records[1..].iter().map(|record| seconds(record, "quantize")).collect());

    let version = outcome.summary.policy.version;
    let measured = Measured::new(&arguments.out, version, arguments.steps)?;
    let repeats = arguments.repeats;
    let sources = timed(repeats, || {
        measured.sources.iter().map(DenseTensor::digest).for_each(drop_digest);
        Ok(())
    })?;
    let results = timed(repeats, || {
        measured.results.iter().map(PolicyTensor::digest).for_each(drop_digest);
        Ok(())
    })?;
    let lines = timed(repeats, || measured.record(&arguments.out.join("ledger-rates.jsonl")))?;

    let bytes = |name: &str, bytes: usize, seconds: f64| {
        let rate = bytes as f64 / seconds / 1e9;
        row(name, seconds, step_seconds, &format!("{:.2} MB, {rate:.2} GB/s", bytes as f64 / 1e6))
    };
    let source_bytes = measured.sources.iter().map(|tensor| tensor.bytes().len()).sum();
    let result_bytes = measured.results.iter().map(PolicyTensor::bytes).sum();
    let mut out = io::stdout();
    writeln!(out, "{}, {} steps, medians", arguments.recipe, arguments.steps)?;
    writeln!(out, "{:<22}{:>12}{:>10}", "", "ms", "% of step")?;
    writeln!(out, "{}", row("step", step_seconds, step_seconds, ""))?;
    writeln!(out, "{}", row("  its quantize stage", quantize_seconds, step_seconds, ""))?;
    writeln!(out, "{}", bytes("source digests", source_bytes, sources))?;
    writeln!(out, "{}", bytes("result digests", result_bytes, results))?;
    writeln!(out, "{}", row("events", lines, step_seconds, &format!("{} lines", measured.events.len())))?;
    writeln!(out, "{}", row("ledger in all", sources + results + lines, step_seconds, "goal: below 1 %"))?;
    Ok(())
}

/// What one version makes the ledger hash and write.
struct Measured {
    /// What is quantized; a tensor kept in high precision is hashed once, as a result.
    sources: Vec<DenseTensor>,
    results: Vec<PolicyTensor>,
    events: Vec<LedgerEvent>,
}

impl Measured {
    fn new(out: &Path, version: PolicyVersion, steps: u64) -> Result<Self, Box<dyn Error>> {
        let policy = Checkpoint::open(&out.join("policy"))?;
        let network = policy.network();
        let masters = out.join(format!("checkpoints/step-{steps:08}/trainer/masters.safetensors"));
        let masters = StoredMasters::open(network, &masters)?;
        let (mut sources, mut results, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for id in network.ids() {
            let result = policy.read_stored(id)?;
            if matches!(result, PolicyTensor::Quantized(_)) {
                masters.read(id, &mut values)?;
                let shape = network.parameter(id).shape.clone();
                sources.push(DenseTensor::from_f32(Dtype::Bf16, shape, &values)?);
            }
            results.push(result);
        }
        let ledger = out.join("ledger.jsonl");
        let events = LedgerFile::find(&ledger, version)?.events().to_vec();
        Ok(Measured { sources, results, events })
    }

    /// Records every event into a file, to the disk's cache.
    fn record(&self, into: &Path) -> Result<(), Box<dyn Error>> {
        let ledger = Ledger::append(into)?;
        self.events.iter().try_for_each(|event| ledger.record(event))?;
        Ok(ledger.flush()?)
    }
}

fn drop_digest(digest: Digest) {
    black_box(digest);
}

/// Median seconds of `work`.
fn timed(repeats: u64, mut work: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut seconds = Vec::new();
    for _ in 0..repeats {
        let start = Instant::now();
        work()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(median(seconds))
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// All stages of a step.
fn step_seconds(record: &StepRecord) -> f64 {
    ["rollout", "reward", "train", "quantize", "publish"].iter().map(|stage| seconds(record, stage)).sum()
}

fn seconds(record: &StepRecord, stage: &str) -> f64 {
    record.number(&format!("perf/seconds_{stage}")).unwrap_or_default()
}

fn row(name: &str, seconds: f64, step_seconds: f64, note: &str) -> String {
    format!("{name:<22}{:>12.3}{:>10.3}  {note}", seconds * 1e3, seconds / step_seconds * 100.0)
}
