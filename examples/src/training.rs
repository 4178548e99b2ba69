//! What the training examples share: command line -> config -> run -> last line and exit code.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use futures_lite::future::block_on;
use miles_core::plugin::{Event, Observer};
use miles_grpo::config::ConfigErrors;
use miles_grpo::track::Progress;
use miles_grpo::{Interrupt, Outcome, Plan, Run, RunBuilder, RunConfig};

/// Exit code of a run that Ctrl-C ended: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Command-line arguments of a training run. Later ones win: config file, then flags, then `key=value`.
#[derive(Args, Clone, Debug)]
pub struct TrainingArgs {
    /// Precision recipe: bf16, mxfp8, mxfp8-high-precision, mxfp8-dequantized, nvfp4-high-precision,
    /// nvfp4-dequantized, fp8-block, fp8-block-high-precision or fp8-block-dequantized
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
    /// Steps of the whole run
    #[arg(long)]
    pub steps: Option<u64>,
    /// Seed of every random stream
    #[arg(long)]
    pub seed: Option<u64>,
    /// Hugging Face checkpoint directory to start from
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// JSONL file of training prompts
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Output directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// TOML config file, read over the example's own defaults
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Worker threads (default: every core); never changes a bit of the result
    #[arg(long)]
    pub threads: Option<usize>,
    /// Backend
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Go on from the newest checkpoint in the output directory
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Replace the run that the output directory holds
    #[arg(long)]
    pub overwrite: bool,
    /// Stop after this many steps in all, as Ctrl-C would: the step is finished and saved, the exit code is 130
    #[arg(long, value_name = "STEPS")]
    pub stop_after: Option<u64>,
    /// Print every config key with its value and stop
    #[arg(long)]
    pub print_config: bool,
    /// Any config key, for example rollout.group_size=16
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

impl TrainingArgs {
    /// The config: `defaults` (TOML text), the config file over it, the flags over that, `key=value` last.
    ///
    /// # Errors
    /// Every key that is unknown or has the wrong type.
    pub fn config(&self, defaults: RunConfig) -> Result<RunConfig, Box<dyn Error>> {
        let mut config = defaults;
        if let Some(path) = &self.config {
            let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            config = config.with_text(&text)?;
        }
        set(&mut config.precision.recipe, &self.recipe);
        set(&mut config.run.steps, &self.steps);
        set(&mut config.run.seed, &self.seed);
        set(&mut config.run.out, &self.out);
        set(&mut config.run.backend, &self.backend);
        set(&mut config.model.dir, &self.model);
        set(&mut config.data.train, &self.data);
        if self.threads.is_some() {
            config.run.threads = self.threads;
        }
        let existing = match (self.resume, self.overwrite) {
            (true, _) => vec!["run.existing=resume".to_owned()],
            (_, true) => vec!["run.existing=overwrite".to_owned()],
            _ => Vec::new(),
        };
        Ok(config.with_overrides(&existing)?.with_overrides(&self.overrides)?)
    }
}

fn set<T: Clone>(key: &mut T, argument: &Option<T>) {
    if let Some(value) = argument {
        *key = value.clone();
    }
}

/// The quickstart's config: its TOML file with the bundled model and prompts, `overrides` applied.
///
/// # Errors
/// Every override that is unknown or has the wrong type.
pub fn quickstart(overrides: &[String]) -> Result<RunConfig, ConfigErrors> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/quickstart");
    let mut config = RunConfig::default().with_text(include_str!("../data/quickstart/quickstart.toml"))?;
    config.model.dir = data.clone();
    config.data.train = data.join("train.jsonl");
    config.data.eval = Some(data.join("held_out.jsonl"));
    config.with_overrides(overrides)
}

/// Command-line arguments of the examples that run the quickstart with a plug-in passed in both ways.
#[derive(Args, Clone, Debug)]
pub struct BothWaysArgs {
    /// Steps of each run
    #[arg(long, default_value_t = 5)]
    pub steps: u64,
    /// Output directory; each run gets a folder in it
    #[arg(long, value_name = "DIR", default_value = "runs/plugins")]
    pub out: PathBuf,
}

/// Runs a shortened quickstart twice, with a plug-in as a value and by its registered name, and prints both last lines.
///
/// # Errors
/// If a run fails, or the two end in different policies.
pub fn both_ways(
    args: &BothWaysArgs,
    by_value: impl FnOnce(RunBuilder) -> RunBuilder,
    by_name: &[&str],
) -> Result<(), Box<dyn Error>> {
    let plan = |folder: &str, overrides: &[&str]| -> Result<Plan, Box<dyn Error>> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let mut config = quickstart(&overrides)?;
        config.run.steps = args.steps;
        config.run.out = args.out.join(folder);
        Ok(Plan::new(&config.with_overrides(&["run.existing=overwrite".to_owned()])?)?)
    };
    let value = finish(by_value(Run::builder(plan("by-value", &[])?)))?;
    println!("by value: {}", value.summary);
    let name = finish(Run::builder(plan("by-name", by_name)?))?;
    println!("by name:  {}", name.summary);
    if value.summary.policy == name.summary.policy {
        Ok(())
    } else {
        Err("the two runs ended in different policies".into())
    }
}

/// Builds a run and takes it to its end.
///
/// # Errors
/// Whatever ends the run early.
pub fn finish(builder: RunBuilder) -> Result<Outcome, miles_grpo::Error> {
    block_on(async { builder.build().await?.run().await })
}

/// Runs a training example to its end: progress on stderr, the summary as the last line on stdout.
///
/// `customize` may put values into the builder; what it leaves is found by the names in the config.
pub fn train(args: &TrainingArgs, defaults: RunConfig, customize: impl FnOnce(RunBuilder) -> RunBuilder) -> ExitCode {
    match start(args, defaults, customize) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(outcome)) => {
            println!("{}", outcome.summary);
            if outcome.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS }
        }
        Err(error) => crate::exit(Err(error)),
    }
}

fn start(
    args: &TrainingArgs,
    defaults: RunConfig,
    customize: impl FnOnce(RunBuilder) -> RunBuilder,
) -> Result<Option<Outcome>, Box<dyn Error>> {
    let config = args.config(defaults)?;
    if args.print_config {
        print!("{}", config.to_toml());
        return Ok(None);
    }
    let interrupt = Interrupt::new();
    let handler = interrupt.clone();
    ctrlc::set_handler(move || handler.request())?;

    let mut builder = Run::builder(Plan::new(&config)?).observer(Progress::new()).interrupt(interrupt.clone());
    if let Some(steps) = args.stop_after {
        builder = builder.observer(StopAfter { steps, interrupt });
    }
    let out = config.run.out.clone();
    let outcome = finish(customize(builder))?;
    eprintln!("wrote {}", out.display());
    Ok(Some(outcome))
}

/// Asks the run to stop once a number of steps is done.
struct StopAfter {
    steps: u64,
    interrupt: Interrupt,
}

impl Observer for StopAfter {
    fn observe(&mut self, event: &Event<'_>) -> miles_core::Result<()> {
        if let Event::Step(record) = event
            && record.step + 1 >= self.steps
        {
            self.interrupt.request();
        }
        Ok(())
    }
}
