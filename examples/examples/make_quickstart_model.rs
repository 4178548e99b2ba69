//! Makes the model that `quickstart` starts from: a small Qwen3-MoE that adds, and is often wrong.
//!
//! It is trained with this library's own trainer on supervised rows, in two lessons. The first teaches it sums. The
//! second is given by a teacher who slips: most answers are off by one, or have a carry forgotten or invented. The
//! model that comes out knows roughly what a sum is: about one sampled answer in three is right, and so are about
//! three in four of its likeliest ones. Which of its answers are right is what reinforcement learning has to find out,
//! from rewards alone. Held-out sums are in no lesson.
//!
//! Every number comes from a counter-based generator and every operation has one order, so the same seed makes the
//! same bytes, whatever the number of threads.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use futures_lite::future::block_on;
use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::{CheckpointError, Template, WriteOptions, write_checkpoint};
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::{Network, ParamId, Role};
use miles_core::plugin::{
    ActivationDtype, AdamW, CancelToken, EngineOptions, GenerateRequest, MasterDtype, PromptRequest, PublicationMode,
    RolloutEngine, Sampling, TrainBatch, TrainSample, Trainer, TrainerInputs, TrainerOptions,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, Snapshot, WeightSource};
use miles_core::precision::{PartitionPlan, Recipe, resolve};
use miles_core::random::{self, Coordinates, Stream};
use miles_examples::{FileError, exit, write_file};
use miles_grpo::data::{ChatTemplate, Date, Message, TextTokenizer};
use miles_grpo::loss::CrossEntropy;

/// Makes the checkpoint directory and the data of the `quickstart` example.
///
/// Trains a small Qwen3-MoE from random weights on sums, first with right answers, then with answers that are mostly
/// wrong by a little, and writes the model directory together with `train.jsonl` and `held_out.jsonl`. The same seed
/// gives the same bytes.
#[derive(Parser)]
struct Options {
    /// Directory to write; it must not exist yet, or be empty.
    #[arg(long, default_value = "runs/quickstart-model")]
    out: PathBuf,
    /// Where configuration, tokenizer and chat template come from.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/quickstart"))]
    template: PathBuf,
    /// Seed of weights and rows.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Steps with right answers.
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    right_steps: u64,
    /// Steps with the teacher who slips.
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    slip_steps: u64,
}

fn main() -> ExitCode {
    exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    // Before the lessons, and not after them.
    if fs::read_dir(&options.out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(CheckpointError::TargetNotEmpty { dir: options.out.clone() }.into());
    }
    let config = HuggingFaceConfig::read(&options.template)?;
    let network = Arc::new(Network::new(config.model()));
    let school = School::open(&options.template, &network, options.seed)?;
    let backend = CpuRef::new().backend()?;
    let mut trainer = (backend.trainer)(TrainerInputs {
        network: Arc::clone(&network),
        map: Arc::new(resolve(&network, Recipe::Bf16, &[])?),
        weights: &InitialWeights { network: &network, seed: options.seed },
        quantizer: Arc::clone(&backend.quantizer),
        options: TrainerOptions {
            activations: ActivationDtype::Bf16,
            optimizer: AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 },
            max_grad_norm: Some(1.0),
            micro_batch_tokens: 4096,
            train_router: true,
            masters: MasterDtype::F32,
            seed: 0,
            threads: None,
        },
        scratch: None,
    })?;
    let engine = (backend.engine)(EngineOptions {
        network: Arc::clone(&network),
        activations: ActivationDtype::Bf16,
        max_running: 64,
        context_tokens: network.config.context_tokens,
        threads: None,
        partition: PartitionPlan::WHOLE,
        publication: PublicationMode::Finish,
    })?;

    let right = Lesson {
        name: "right answers",
        first_step: 0,
        steps: options.right_steps,
        rate: 4e-3,
        teacher: Teacher::Right,
    };
    let slips = Lesson {
        name: "slips",
        first_step: options.right_steps,
        steps: options.slip_steps,
        rate: 1.5e-3,
        teacher: Teacher::Slips,
    };
    let mut snapshot = publish(trainer.as_mut(), 0)?;
    for lesson in [right, slips] {
        snapshot = school.teach(trainer.as_mut(), &lesson, snapshot)?;
        block_on(engine.load(Arc::clone(&snapshot)))?;
        for (how, temperature) in [("sampled", 1.0), ("greedy", 0.0)] {
            let share = school.right_share(engine.as_ref(), temperature)?;
            println!("{}: {how} held-out answers, {:.1} % right", lesson.name, 100.0 * share);
        }
    }

    let template = Template { config, sidecar_dir: Some(options.template.clone()) };
    write_checkpoint(&snapshot, &template, &options.out, &WriteOptions::default())?;
    write_rows(&options.out.join("train.jsonl"), &school.train)?;
    write_rows(&options.out.join("held_out.jsonl"), &school.held_out)?;
    println!("wrote {}, policy {}", options.out.display(), snapshot.stamp());
    Ok(())
}

fn publish(trainer: &mut dyn Trainer, step: u64) -> miles_core::Result<Arc<Snapshot>> {
    let ledger = Ledger::discard();
    trainer.publish(PolicyContext { run: "make-quickstart-model", step, version: PolicyVersion(step), ledger: &ledger })
}

/// Random weights, each drawn by its parameter and position.
struct InitialWeights<'a> {
    network: &'a Network,
    seed: u64,
}

impl WeightSource for InitialWeights<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        let parameter = self.network.parameter(id);
        let (_, fan_in) = parameter.rows_cols();
        // What a layer adds to the residual stream is scaled down by the number of such additions.
        let additions = 2.0 * self.network.config.layer_count() as f64;
        let deviation = match parameter.role {
            Role::Norm => {
                into.clear();
                into.resize(parameter.elements(), 1.0);
                return Ok(());
            }
            Role::Embedding => 0.5,
            Role::Head => 0.02,
            Role::AttentionO | Role::ExpertDown => (additions * fan_in as f64).sqrt().recip(),
            _ => (fan_in as f64).sqrt().recip(),
        };
        let draw = |element: usize| {
            let at = Coordinates { prompt: u64::from(id.0), token: element as u32, ..Coordinates::default() };
            (deviation * random::normal(self.seed, Stream::Weights, at)) as f32
        };
        into.clear();
        into.extend((0..parameter.elements()).map(draw));
        Ok(())
    }
}

/// Two numbers to add, at least one of them of one digit.
#[derive(Clone, Copy)]
struct Sum {
    left: u32,
    right: u32,
}

impl Sum {
    /// Every sum of a number below 100 and one below 10, in either order, shuffled.
    fn all(seed: u64) -> Vec<Sum> {
        let pairs = (0..100).flat_map(|left| (0..100).map(move |right| Sum { left, right }));
        let sums: Vec<Sum> = pairs.filter(|sum| sum.left.min(sum.right) < 10).collect();
        random::permutation(seed, Stream::Data, 0, sums.len()).into_iter().map(|index| sums[index]).collect()
    }

    fn prompt(self) -> String {
        format!("{}+{}=", self.left, self.right)
    }

    fn total(self) -> u32 {
        self.left + self.right
    }

    fn carries(self) -> bool {
        self.left % 10 + self.right % 10 >= 10
    }
}

/// Who answers in a lesson.
#[derive(Clone, Copy)]
enum Teacher {
    /// Always right.
    Right,
    /// Right one time in ten; otherwise one too few, one too many, or wrong about the carry.
    Slips,
}

impl Teacher {
    /// `luck` is uniform in `[0, 1)`.
    fn answer(self, sum: Sum, luck: f64) -> u32 {
        let total = sum.total();
        match self {
            Teacher::Right => total,
            Teacher::Slips if luck < 0.10 => total,
            Teacher::Slips if luck < 0.45 => total.saturating_sub(1),
            Teacher::Slips if luck < 0.70 => total + 1,
            Teacher::Slips if sum.carries() => total - 10,
            Teacher::Slips => total + 10,
        }
    }
}

/// Some steps with one teacher. The learning rate rises over the first steps and then falls to 0 on a line.
struct Lesson {
    name: &'static str,
    first_step: u64,
    steps: u64,
    rate: f64,
    teacher: Teacher,
}

impl Lesson {
    fn learning_rate(&self, step: u64) -> f64 {
        let warmup = ((step + 1) as f64 / WARMUP_STEPS as f64).min(1.0);
        self.rate * warmup * (1.0 - step as f64 / self.steps as f64)
    }
}

/// The sums, and how they are written for the model.
struct School {
    tokenizer: TextTokenizer,
    template: ChatTemplate,
    eos_token_ids: Vec<u32>,
    train: Vec<Sum>,
    held_out: Vec<Sum>,
    seed: u64,
}

impl School {
    fn open(dir: &Path, network: &Network, seed: u64) -> Result<Self, Box<dyn Error>> {
        let date = Date::parse("2024-07-26").ok_or("the date is not one")?;
        let mut train = Sum::all(seed);
        let held_out = train.split_off(train.len() - HELD_OUT_SUMS);
        Ok(School {
            tokenizer: TextTokenizer::read(dir)?,
            template: ChatTemplate::read(dir, date)?,
            eos_token_ids: network.config.eos_token_ids.clone(),
            train,
            held_out,
            seed,
        })
    }

    /// One lesson, from the given version to the last one of the lesson.
    fn teach(
        &self,
        trainer: &mut dyn Trainer,
        lesson: &Lesson,
        mut snapshot: Arc<Snapshot>,
    ) -> Result<Arc<Snapshot>, Box<dyn Error>> {
        for step in 0..lesson.steps {
            let version = lesson.first_step + step + 1;
            let rows: Result<Vec<TrainSample>, _> =
                (0..ROWS_PER_STEP).map(|row| self.sample(version, row, lesson.teacher)).collect();
            let batch = TrainBatch::new(rows?, snapshot.stamp(), 1.0)?;
            let report = trainer.update(&batch, &CrossEntropy::default(), lesson.learning_rate(step))?;
            snapshot = publish(trainer, version)?;
            if (step + 1) % 100 == 0 {
                println!("{}: step {}/{}, loss {:.3}", lesson.name, step + 1, lesson.steps, report.loss);
            }
        }
        Ok(snapshot)
    }

    /// One row of one step: a sum and its teacher's answer.
    fn sample(&self, step: u64, row: u32, teacher: Teacher) -> Result<TrainSample, Box<dyn Error>> {
        let draw = |token| {
            random::uniform(self.seed, Stream::Data, Coordinates { step, sample: row, token, ..Coordinates::default() })
        };
        let sum = self.train[(draw(0) * self.train.len() as f64) as usize];
        let prompt = self.prompt(sum)?;
        let answer = self.tokenizer.encode(&teacher.answer(sum, draw(1)).to_string(), false)?;
        let eos = self.eos_token_ids.first().ok_or("the model has no end-of-sequence id")?;
        let prompt_tokens = prompt.len();
        Ok(TrainSample {
            rollout_logprobs: vec![0.0; answer.len() + 1],
            tokens: prompt.into_iter().chain(answer).chain([*eos]).collect(),
            prompt_tokens,
            reference_logprobs: None,
            advantage: 0.0,
        })
    }

    fn prompt(&self, sum: Sum) -> Result<Vec<u32>, miles_grpo::data::DataError> {
        let message = Message { role: "user".to_owned(), content: sum.prompt() };
        self.tokenizer.encode(&self.template.render(&[message])?, false)
    }

    /// Share of right answers to the held-out sums.
    fn right_share(&self, engine: &dyn RolloutEngine, temperature: f32) -> Result<f64, Box<dyn Error>> {
        let mut prompts = Vec::new();
        for (key, sum) in self.held_out.iter().enumerate() {
            prompts.push(PromptRequest { key: key as u64, tokens: self.prompt(*sum)?, completions: 4 });
        }
        let sampling = Sampling {
            temperature,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_new_tokens: 4,
            eos_token_ids: self.eos_token_ids.clone(),
        };
        let request = GenerateRequest { prompts, sampling, seed: self.seed, step: 0 };
        let rollout = block_on(engine.generate(&request, &CancelToken::default()))?;
        let (mut right, mut all) = (0u32, 0u32);
        for (sum, group) in self.held_out.iter().zip(&rollout.groups) {
            for completion in &group.completions {
                let answer = self.tokenizer.decode(&completion.tokens)?;
                right += u32::from(answer == sum.total().to_string());
                all += 1;
            }
        }
        Ok(f64::from(right) / f64::from(all))
    }
}

fn write_rows(path: &Path, sums: &[Sum]) -> Result<(), FileError> {
    let rows: String = sums
        .iter()
        .map(|sum| format!("{{\"prompt\": \"{}\", \"answer\": \"{}\"}}\n", sum.prompt(), sum.total()))
        .collect();
    write_file(path, rows.as_bytes())
}

const WARMUP_STEPS: u64 = 20;
const ROWS_PER_STEP: u32 = 64;
const HELD_OUT_SUMS: usize = 200;
