//! Converts a checkpoint directory into a recipe's formats, or checks a converted one.
//!
//! ```console
//! cargo run --release --example convert -- --model DIR --recipe mxfp8 --output DIR
//! cargo run --release --example convert -- --model DIR --config run.toml --output DIR --budget-mib 512
//! cargo run --release --example convert -- --verify DIR
//! ```
//!
//! The output is written to `.OUTPUT.partial` beside it and renamed when whole. A conversion that was killed is gone on
//! with by the same command. The contract of the output is in its `miles_contract.json`.

use std::error::Error;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use miles_backend_cpu_ref as _;
use miles_backend_cuda as _;
use miles_core::checkpoint::{ContractSidecar, Mxfp8Layout, StoredModel};
use miles_core::convert::{ConvertOptions, convert, verify};
use miles_core::plugin::{Backend, Support};
use miles_core::precision::{PartitionPlan, PrecisionMap, PrecisionTable, Recipe, check_backend, resolve_with};
use miles_core::registry;
use miles_examples::progress::{Bar, peak_resident_bytes};
use miles_grpo::RunConfig;
use serde_json::{Value, json};

/// Converts a Hugging Face checkpoint directory into the formats of a recipe, in bounded memory, or checks a converted one.
///
/// The precision map is that of a run with the same recipe and rules: --config reads the [precision] section of a run's
/// config, --recipe and KEY=VALUE go over it. Exit code: 0 done (or verified), 1 an error, which is one line.
#[derive(Parser)]
struct Arguments {
    /// Hugging Face checkpoint directory to convert
    #[arg(long, value_name = "DIR", required_unless_present = "verify")]
    model: Option<PathBuf>,
    /// Directory to write
    #[arg(long, value_name = "DIR", required_unless_present = "verify")]
    output: Option<PathBuf>,
    /// Recompute every digest of a converted directory instead
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "output"])]
    verify: Option<PathBuf>,
    /// Precision recipe
    #[arg(long, value_name = "NAME")]
    recipe: Option<Recipe>,
    /// TOML config of a run; its [precision] section decides
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Most memory that tensors in work hold together, in MiB
    #[arg(long, value_name = "N", default_value_t = 1024)]
    budget_mib: u64,
    /// Worker threads [default: every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Largest file of the output, in MB, unless one tensor alone is larger
    #[arg(long, value_name = "N", default_value_t = 5000)]
    shard_mb: u64,
    /// MXFP8 in ModelOpt's layout, which vLLM reads, instead of the one that SGLang and transformers read
    #[arg(long)]
    modelopt: bool,
    /// Replace what the output directory holds
    #[arg(long)]
    overwrite: bool,
    /// Backend whose quantizer is used
    #[arg(long, value_name = "NAME", default_value = "cpu-ref")]
    backend: String,
    /// Precision keys of the config, for example precision.expert_tensor_parallel=2
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = ConvertOptions {
        budget_bytes: arguments.budget_mib << 20,
        max_shard_bytes: arguments.shard_mb * 1_000_000,
        mxfp8: if arguments.modelopt { Mxfp8Layout::ModelOpt } else { Mxfp8Layout::ScaleInv },
        replace: arguments.overwrite,
        threads: arguments.threads.unwrap_or(ConvertOptions::default().threads),
    };
    miles_examples::exit(match (&arguments.verify, &arguments.model, &arguments.output) {
        (Some(dir), ..) => verified(dir, &options),
        (None, Some(model), Some(output)) => converted(&arguments, model, output, &options),
        _ => Err("--model and --output, or --verify".into()),
    })
}

fn converted(
    arguments: &Arguments,
    model: &Path,
    output: &Path,
    options: &ConvertOptions,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let model = StoredModel::open(model)?;
    // The quantizer runs on the threads of the conversion, one tensor each.
    let backend = registry::backend(&arguments.backend, &backend_options(&arguments.backend))?;
    let (map, notes) = precision_map(arguments, &model, &backend)?;
    let table = PrecisionTable::new(model.inventory(), &map);
    tell(&format!("{notes}{} ({}): {table}\n", model.dir().display(), model.family().name()))?;
    let bar = Bar::new("converting");
    let done = convert(&model, &map, backend.quantizer.as_ref(), output, options, &|progress| bar.show(progress))?;
    bar.end();
    let seconds = start.elapsed().as_secs_f64();
    let moved_bytes = done.read_bytes + done.written_bytes;
    tell(&format!(
        "bytes_read     {}\nbytes_written  {}\nresumed        {} of {} units\nseconds        {seconds:.2}\n\
         GB/s           {:.2} (read and written)\n{}",
        done.read_bytes,
        done.written_bytes,
        done.resumed_units,
        done.units,
        moved_bytes as f64 * 1e-9 / seconds,
        peak_and_contract(&done.contract)
    ))
}

fn verified(dir: &Path, options: &ConvertOptions) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let bar = Bar::new("verifying");
    let done = verify(dir, options, &|progress| bar.show(progress))?;
    bar.end();
    tell(&format!(
        "verified       {} tensors, {} files, {} bytes\nseconds        {:.2}\n{}",
        done.tensors,
        done.files,
        done.bytes,
        start.elapsed().as_secs_f64(),
        peak_and_contract(&done.contract)
    ))
}

fn tell(text: &str) -> Result<(), Box<dyn Error>> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn peak_and_contract(contract: &ContractSidecar) -> String {
    let peak = peak_resident_bytes()
        .map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    format!(
        "peak_resident  {peak}\nrecipe         {} by {}\nprecision_map  {}\npolicy_digest  {}\n",
        contract.recipe, contract.quantizer, contract.precision_map, contract.policy
    )
}

fn backend_options(name: &str) -> Value {
    if name == "cpu-ref" { json!({ "threads": 1 }) } else { Value::Null }
}

/// The map of a run with this config, over what the directory stores, and what a person should know about it.
fn precision_map(
    arguments: &Arguments,
    model: &StoredModel,
    backend: &Backend,
) -> Result<(PrecisionMap, String), Box<dyn Error>> {
    let text = match &arguments.config {
        Some(path) => std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => String::new(),
    };
    let mut overrides: Vec<String> =
        arguments.recipe.iter().map(|recipe| format!("precision.recipe={recipe}")).collect();
    overrides.extend_from_slice(&arguments.overrides);
    let precision = RunConfig::parse(&text, &overrides)?.precision;
    let recipe: Recipe = precision.recipe.parse()?;
    let plan = PartitionPlan::new(precision.expert_tensor_parallel, precision.partition_axis)?;
    let map = resolve_with(model.inventory(), recipe, &precision.rules, &[], plan)?;
    let formats = backend.capabilities.formats.iter();
    let can: Vec<_> =
        formats.filter(|(_, support)| *support != Support::Unsupported).map(|(id, _)| id.clone()).collect();
    check_backend(model.inventory(), &map, &backend.name, &can)?;
    let notes = recipe.notes(model.inventory()).iter().map(|note| format!("{note}\n")).collect();
    Ok((map, notes))
}
