//! What the training examples share: command line -> config -> run -> last line and exit code.

use std::error::Error;
use std::io::{self, Write};
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
    /// JSONL file of training prompts (held-out prompts: data.eval=FILE)
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
    /// Go on from the newest checkpoint in the output directory; keys that change results must be the same
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Replace the run that the output directory holds
    #[arg(long)]
    pub overwrite: bool,
    /// Stop after this many steps in all, as Ctrl-C would: the step is finished and saved, the exit code is 130;
    /// --resume goes on from there to the same policy
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub stop_after: Option<u64>,
    /// Print every config key with its value and stop
    #[arg(long)]
    pub print_config: bool,
    /// Any config key, for example rollout.group_size=16
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

impl TrainingArgs {
    /// The plan: `defaults`, the config file over them, the flags over that, `key=value` last.
    ///
    /// # Errors
    /// Everything that is wrong with any of them, at once.
    pub fn plan(&self, defaults: RunConfig) -> Result<Plan, ConfigErrors> {
        let mut overrides = self.flags();
        overrides.extend_from_slice(&self.overrides);
        match &self.config {
            Some(path) => Plan::read_file(defaults, path, &overrides),
            None => Plan::read(defaults, "", &overrides),
        }
    }

    /// The flags that were given, as overrides of the keys that they stand for.
    fn flags(&self) -> Vec<String> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let existing = match (self.resume, self.overwrite) {
            (true, _) => Some("resume".to_owned()),
            (_, true) => Some("overwrite".to_owned()),
            _ => None,
        };
        [
            ("precision.recipe", self.recipe.clone()),
            ("run.steps", number(self.steps)),
            ("run.seed", number(self.seed)),
            ("run.out", path(&self.out)),
            ("run.backend", self.backend.clone()),
            ("run.threads", self.threads.map(|threads| threads.to_string())),
            ("run.existing", existing),
            ("model.dir", path(&self.model)),
            ("data.train", path(&self.data)),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
        .collect()
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
/// `common` are overrides of both runs, `by_name` those that name the plug-in.
///
/// # Errors
/// If a run fails, or the two end in different policies.
pub fn both_ways(
    args: &BothWaysArgs,
    common: &[&str],
    by_value: impl FnOnce(RunBuilder) -> RunBuilder,
    by_name: &[&str],
) -> Result<(), Box<dyn Error>> {
    let plan = |folder: &str, overrides: &[&str]| -> Result<Plan, Box<dyn Error>> {
        let overrides: Vec<String> = common.iter().chain(overrides).map(|text| (*text).to_owned()).collect();
        let mut config = quickstart(&overrides)?;
        config.run.steps = args.steps;
        config.run.out = args.out.join(folder);
        Ok(Plan::new(&config.with_overrides(&["run.existing=overwrite".to_owned()])?)?)
    };
    let value = finish(by_value(Run::builder(plan("by-value", &[])?)))?;
    say(&format!("by value: {}", value.summary))?;
    let name = finish(Run::builder(plan("by-name", by_name)?))?;
    say(&format!("by name:  {}", name.summary))?;
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
        Ok(true) => ExitCode::from(INTERRUPTED),
        Ok(false) => ExitCode::SUCCESS,
        Err(error) => crate::exit(Err(error)),
    }
}

/// Whether the run was interrupted.
fn start(
    args: &TrainingArgs,
    defaults: RunConfig,
    customize: impl FnOnce(RunBuilder) -> RunBuilder,
) -> Result<bool, Box<dyn Error>> {
    let plan = args.plan(defaults)?;
    if args.print_config {
        say(plan.config_toml.trim_end())?;
        return Ok(false);
    }
    let interrupt = Interrupt::new();
    let handler = interrupt.clone();
    ctrlc::set_handler(move || handler.request())?;

    let out = plan.run.out.clone();
    let mut builder = Run::builder(plan).observer(Progress::new()).interrupt(interrupt.clone());
    if let Some(steps) = args.stop_after {
        builder = builder.observer(StopAfter { steps, interrupt });
    }
    let outcome = finish(customize(builder))?;
    if outcome.interrupted {
        eprintln!("interrupted and saved; go on with --resume --out {}", out.display());
    } else {
        eprintln!("wrote {}", out.display());
    }
    say(&outcome.summary.to_string())?;
    Ok(outcome.interrupted)
}

/// One line on stdout. Nobody reading it is an error, not a panic.
fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
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
