//! Computes logits and logprobs of given token ids with the CPU reference, and continues them greedily.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::{Checkpoint, RawTensors};
use miles_core::plugin::{
    ActivationDtype, CancelToken, EngineOptions, GenerateRequest, PromptRequest, PublicationMode, RolloutEngine,
    Sampling,
};
use miles_core::policy::{Ledger, PolicyContext, PolicyVersion, Snapshot, quantize_policy};
use miles_core::precision::{PartitionPlan, Recipe, resolve};
use miles_examples::{OutputTensor, exit, refuse_replacing, write_safetensors};
use safetensors::Dtype;

/// Computes logits and next-token logprobs of a Hugging Face checkpoint with the CPU reference.
///
/// Reads `input_ids` I32 [B, T] and writes
///
///   logits               F32 [B, T, V]
///   next_token_logprobs  F32 [B, T-1]   of the token that follows each position
///   greedy_ids           I32 [1, P+N]   with --greedy N --prompt-tokens P: the first P ids of row 0 and N more,
///                                       drawn by the rollout engine at temperature 0, end-of-sequence ids ignored
///
/// Without --recipe every tensor is used as it is stored; with one, the checkpoint is quantized as a run would.
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Options {
    /// Checkpoint directory.
    #[arg(long)]
    model: PathBuf,
    /// File that holds `input_ids`.
    #[arg(long)]
    input: PathBuf,
    /// File to write; not the input, nor a file of the checkpoint.
    #[arg(long)]
    output: PathBuf,
    /// Precision recipe, for example bf16, mxfp8 or nvfp4-dequantized.
    #[arg(long)]
    recipe: Option<String>,
    /// Activation type.
    #[arg(long, default_value = "bf16")]
    activations: Activations,
    /// How many ids to generate.
    #[arg(long, requires = "prompt_tokens")]
    greedy: Option<usize>,
    /// How many ids of row 0 to generate from.
    #[arg(long, requires = "greedy")]
    prompt_tokens: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Activations {
    F32,
    Bf16,
}

fn main() -> ExitCode {
    exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    refuse_replacing(&options.output, &[&options.input, &options.model])?;
    let ids = InputIds::read(&options.input)?;
    let backend = CpuRef::new();
    let snapshot = snapshot(options, &backend)?;
    let network = Arc::clone(snapshot.network());
    let vocab_size = network.config.vocab_size;
    let engine = backend.engine(EngineOptions {
        context_tokens: network.config.context_tokens,
        network,
        activations: match options.activations {
            Activations::F32 => ActivationDtype::F32,
            Activations::Bf16 => ActivationDtype::Bf16,
        },
        max_running: 1,
        threads: None,
        partition: PartitionPlan::WHOLE,
        publication: PublicationMode::Finish,
    })?;
    futures_lite::future::block_on(engine.load(Arc::new(snapshot)))?;

    let (mut logits, mut logprobs) = (Vec::new(), Vec::new());
    for (index, row) in ids.rows.iter().enumerate() {
        let row_logits = engine.logits(row)?;
        if let Some(at) = row_logits.iter().position(|logit| !logit.is_finite()) {
            return Err(format!("row {index}, position {}: the logits are not finite", at / vocab_size).into());
        }
        logprobs.extend(engine.next_token_logprobs(row, &row_logits, 1.0)?);
        logits.extend(row_logits);
    }
    let (batch, tokens) = (ids.rows.len(), ids.tokens);
    let mut outputs = vec![
        ("logits".to_owned(), OutputTensor::f32(vec![batch, tokens, vocab_size], &logits)),
        ("next_token_logprobs".to_owned(), OutputTensor::f32(vec![batch, tokens - 1], &logprobs)),
    ];
    if let (Some(new_tokens), Some(prompt_tokens)) = (options.greedy, options.prompt_tokens) {
        let prompt = ids.prompt(prompt_tokens)?;
        let greedy: Vec<i32> = greedy(&engine, prompt, new_tokens)?.into_iter().map(|id| id as i32).collect();
        outputs.push(("greedy_ids".to_owned(), OutputTensor::i32(vec![1, greedy.len()], &greedy)));
    }
    write_safetensors(&options.output, &outputs)?;
    Ok(())
}

fn snapshot(options: &Options, backend: &CpuRef) -> miles_core::Result<Snapshot> {
    let checkpoint = Checkpoint::open(&options.model)?;
    let Some(recipe) = &options.recipe else {
        return Ok(checkpoint.snapshot_as_stored(PolicyVersion(0))?);
    };
    let recipe: Recipe = recipe.parse()?;
    let network = checkpoint.network();
    for note in recipe.notes(network) {
        eprintln!("note: {note}");
    }
    let map = Arc::new(resolve(network, recipe, &[])?);
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "logprobs", step: 0, version: PolicyVersion(0), ledger: &ledger };
    quantize_policy(network, &map, &backend.quantizer()?, &checkpoint, context)
}

/// The prompt and `new_tokens` more ids.
fn greedy(engine: &dyn RolloutEngine, prompt: &[u32], new_tokens: usize) -> Result<Vec<u32>, Box<dyn Error>> {
    let request = GenerateRequest {
        prompts: vec![PromptRequest { key: 0, tokens: prompt.to_vec(), completions: 1 }],
        sampling: Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_new_tokens: new_tokens,
            eos_token_ids: Vec::new(),
        },
        seed: 0,
        step: 0,
    };
    let rollout = futures_lite::future::block_on(engine.generate(&request, &CancelToken::default()))?;
    let drawn = rollout.groups.iter().flat_map(|group| &group.completions).flat_map(|completion| &completion.tokens);
    Ok(prompt.iter().chain(drawn).copied().collect())
}

/// `input_ids` `[rows, tokens]`.
struct InputIds {
    path: PathBuf,
    rows: Vec<Vec<u32>>,
    tokens: usize,
}

impl InputIds {
    fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let bad = |why: String| InputError { path: path.to_owned(), why };
        let file = RawTensors::open(path)?;
        let (dtype, shape) = file.find("input_ids").ok_or_else(|| bad("there is no `input_ids`".to_owned()))?;
        if dtype != Dtype::I32 {
            return Err(bad(format!("`input_ids` is {dtype:?}, expected I32")).into());
        }
        let &[rows, tokens] = shape else {
            return Err(bad(format!("`input_ids` has shape {shape:?}, expected [rows, tokens]")).into());
        };
        if rows == 0 || tokens == 0 {
            return Err(bad(format!("`input_ids` [{rows}, {tokens}] holds no tokens")).into());
        }
        let bytes = file.read("input_ids")?;
        let ids = bytes.as_chunks::<4>().0.iter().map(|id| i32::from_le_bytes(*id));
        let ids: Vec<u32> = ids
            .map(|id| u32::try_from(id).map_err(|_| bad(format!("`input_ids` holds the negative id {id}"))))
            .collect::<Result<_, _>>()?;
        Ok(InputIds { path: path.to_owned(), rows: ids.chunks_exact(tokens).map(<[u32]>::to_vec).collect(), tokens })
    }

    /// The first `count` ids of row 0.
    fn prompt(&self, count: usize) -> Result<&[u32], InputError> {
        let found = self.rows.first().and_then(|row| row.get(..count));
        found.ok_or_else(|| InputError {
            path: self.path.clone(),
            why: format!("--prompt-tokens {count} is more than the {} ids of row 0", self.tokens),
        })
    }
}

/// An input file that does not hold what it should.
#[derive(Debug)]
struct InputError {
    path: PathBuf,
    why: String,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl Error for InputError {}
