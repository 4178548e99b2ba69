//! The seams of the contract, each broken on purpose on the quickstart's model.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_lite::future::block_on;
use miles_backend_cpu_ref::CpuRef;
use miles_core::checkpoint::{Checkpoint, WriteOptions, write_checkpoint};
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source};
use miles_core::network::{ParamId, Role};
use miles_core::plugin::{
    Backend, CancelToken, Completion, CompletionGroup, GenerateRequest, PromptRequest, Quantizer, RolloutEngine,
    Sampling, Support, TrainBatch, TrainSample, Trainer,
};
use miles_core::policy::{
    Ledger, LedgerEvent, PolicyContext, PolicyVersion, Snapshot, WeightSource, quantize_policy, verify,
};
use miles_core::precision::{
    PartitionAxis, PartitionPlan, PrecisionMap, Recipe, Rule, TensorFormat, resolve, resolve_with,
};
use miles_core::tensor::{DenseTensor, Dtype};
use miles_grpo::loss::Clipped;
use safetensors::SafeTensors;

use crate::contract::{engine_options, quickstart_model, trainer_inputs};

/// What became of a broken seam: the error that caught it, or nothing.
pub type Caught = Option<String>;

type Break = fn(&Bench) -> Result<Caught, Box<dyn Error>>;

/// One place where two parts have to agree.
#[derive(Clone, Copy)]
pub struct Seam {
    /// Which place.
    pub name: &'static str,
    /// How it is broken.
    pub broken: &'static str,
    /// Breaks it.
    pub run: Break,
}

/// Every seam, in the order of the flow.
pub const SEAMS: [Seam; 10] = [
    Seam { name: "map", broken: "gate is NVFP4, its partner up is BF16", run: split_pair },
    Seam { name: "weights", broken: "one weight is NaN", run: not_finite },
    Seam { name: "source", broken: "one tensor is quantized again from its F32 master", run: two_sources },
    Seam { name: "quantizer", broken: "the trainer\'s quantizer gives gate and up a scale each", run: scales_apart },
    Seam { name: "format", broken: "the backend is asked for a format that it lacks", run: unknown_format },
    Seam {
        name: "conversion",
        broken: "the engine's copy has the scales of TransformerEngine 2.13",
        run: other_variant,
    },
    Seam {
        name: "partition",
        broken: "the trainer quantizes experts in two shards, the engine whole",
        run: other_plan,
    },
    Seam { name: "publication", broken: "the new version never reaches the engine", run: stale_engine },
    Seam { name: "export", broken: "one bit of one stored code is flipped", run: flipped_bit },
    Seam { name: "checkpoint", broken: "a quantized tensor lost its block scales", run: lost_scale },
];

/// The quickstart's model with its recipe and backend.
pub struct Bench {
    checkpoint: Checkpoint,
    backend: Backend,
    map: Arc<PrecisionMap>,
    scratch: PathBuf,
}

impl Bench {
    /// Opens the model; what seams write goes under `scratch`.
    ///
    /// # Errors
    /// If the bundled model cannot be opened or the backend cannot be made.
    pub fn new(scratch: &Path) -> Result<Self, Box<dyn Error>> {
        let checkpoint = Checkpoint::open(&quickstart_model())?;
        let map = Arc::new(resolve(checkpoint.network(), Recipe::Nvfp4Dequantized, &[])?);
        Ok(Bench { checkpoint, backend: CpuRef::new().backend()?, map, scratch: scratch.to_owned() })
    }

    fn trainer(&self, map: &Arc<PrecisionMap>) -> miles_core::Result<Box<dyn Trainer>> {
        (self.backend.trainer)(trainer_inputs(&self.backend, &self.checkpoint, map))
    }

    fn engine(&self) -> miles_core::Result<Arc<dyn RolloutEngine>> {
        (self.backend.engine)(engine_options(&self.checkpoint))
    }

    fn convert(
        &self,
        map: &Arc<PrecisionMap>,
        source: &dyn WeightSource,
        ledger: &Ledger,
    ) -> miles_core::Result<Arc<Snapshot>> {
        let (network, quantizer) = (self.checkpoint.network(), self.backend.quantizer.as_ref());
        quantize_policy(network, map, quantizer, source, context(0, ledger)).map(Arc::new)
    }

    /// The first quantized tensor.
    fn quantized(&self) -> Result<ParamId, Box<dyn Error>> {
        let is_quantized = |id: &ParamId| matches!(self.map.entry(*id).format, TensorFormat::Quantized(_));
        Ok(self.checkpoint.network().ids().find(is_quantized).ok_or("the recipe quantizes nothing")?)
    }

    /// Version 0, written into `ledger` and as a directory.
    fn exported(&self, folder: &str, ledger: &Ledger) -> Result<PathBuf, Box<dyn Error>> {
        let directory = self.scratch.join(folder);
        let version = self.convert(&self.map, &self.checkpoint, ledger)?;
        write_checkpoint(&version, &self.checkpoint.template(), &directory, &WriteOptions::default())?;
        Ok(directory)
    }

    /// The name under which a part of the first quantized tensor is stored.
    fn part(&self, part: &str) -> Result<String, Box<dyn Error>> {
        let name = &self.checkpoint.network().parameter(self.quantized()?).name;
        Ok(name.replace(".weight", &format!(".{part}")))
    }

    /// The bytes of an exported weights file, and where a part of the first quantized tensor stands in them.
    fn stored(&self, directory: &Path, part: &str) -> Result<(Vec<u8>, Range<usize>), Box<dyn Error>> {
        let bytes = fs::read(directory.join(WEIGHTS))?;
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().ok_or("no header")?) as usize;
        let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
        let info = metadata.info(&self.part(part)?).ok_or("the part is not stored")?;
        let (start, end) = info.data_offsets;
        Ok((bytes, header + start..header + end))
    }
}

fn context(version: u64, ledger: &Ledger) -> PolicyContext<'_> {
    PolicyContext { run: "break-the-contract", step: version, version: PolicyVersion(version), ledger }
}

/// The error of something that should have failed.
fn caught<T>(outcome: Result<T, impl std::fmt::Display>) -> Result<Caught, Box<dyn Error>> {
    Ok(outcome.err().map(|error| error.to_string()))
}

fn split_pair(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let network = bench.checkpoint.network();
    let up = Rule::name(&network.parameter(bench.quantized()?).name.replace("gate_proj", "up_proj"), bf16());
    caught(resolve(network, Recipe::Nvfp4Dequantized, &[up]))
}

fn bf16() -> TensorFormat {
    TensorFormat::Dense(Dtype::Bf16)
}

/// A checkpoint with one weight replaced.
struct Poisoned<'a> {
    source: &'a Checkpoint,
    id: ParamId,
}

impl WeightSource for Poisoned<'_> {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> miles_core::Result<()> {
        self.source.read(id, into)?;
        if id == self.id {
            into[7] = f32::NAN;
        }
        Ok(())
    }
}

fn not_finite(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    caught(bench.convert(
        &bench.map,
        &Poisoned { source: &bench.checkpoint, id: bench.quantized()? },
        &Ledger::discard(),
    ))
}

fn two_sources(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let (ledger, id) = (Ledger::discard(), bench.quantized()?);
    let parameter = bench.checkpoint.network().parameter(id);
    let mut values = Vec::new();
    bench.checkpoint.read(id, &mut values)?;
    // What an optimizer step leaves: bits that BF16 has no room for.
    values.iter_mut().for_each(|value| *value *= 1.000_1);
    let event = |dtype: Dtype| -> Result<LedgerEvent, Box<dyn Error>> {
        let source = DenseTensor::from_f32(dtype, parameter.shape.clone(), &values)?;
        Ok(LedgerEvent {
            run: "break-the-contract".to_owned(),
            step: 0,
            version: PolicyVersion(0),
            tensor: parameter.name.clone(),
            source_digest: source.digest(),
            source_dtype: dtype.name().to_owned(),
            format: bench.map.entry(id).format.to_string(),
            quantizer: bench.backend.quantizer.id().to_owned(),
            output_digest: source.digest(),
        })
    };
    ledger.record(&event(Dtype::Bf16)?)?;
    caught(ledger.record(&event(Dtype::F32)?))
}

/// Quantizes what it is given together one by one.
struct Apart(Arc<dyn Quantizer>);

impl Quantizer for Apart {
    fn id(&self) -> &str {
        "apart"
    }

    fn support(&self, format: &FormatId) -> Support {
        self.0.support(format)
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> miles_core::Result<Vec<QuantizedTensor>> {
        let mut made = Vec::with_capacity(sources.len());
        for source in sources {
            made.extend(self.0.quantize(std::slice::from_ref(source), spec)?);
        }
        Ok(made)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> miles_core::Result<Vec<f32>> {
        self.0.dequantize(tensor)
    }
}

fn scales_apart(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let apart = Backend { quantizer: Arc::new(Apart(Arc::clone(&bench.backend.quantizer))), ..bench.backend.clone() };
    let mut trainer = (apart.trainer)(trainer_inputs(&apart, &bench.checkpoint, &bench.map))?;
    trainer.publish(context(0, &Ledger::discard()))?;
    let engine = bench.engine()?;
    block_on(engine.load(bench.convert(&bench.map, &bench.checkpoint, &Ledger::discard())?))?;
    let batch = sampled(engine.as_ref())?;
    caught(trainer.update(&batch, &Clipped::default(), 1e-3))
}

fn unknown_format(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let rule = Rule::roles(&[Role::ExpertGate, Role::ExpertUp], TensorFormat::Quantized(FormatId::new("mxfp9")?));
    caught(resolve(bench.checkpoint.network(), Recipe::Bf16, &[rule]))
}

fn other_variant(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let format = TensorFormat::Quantized(FormatId::new("nvfp4/te-2.13")?);
    let rule = Rule::roles(&[Role::ExpertGate, Role::ExpertUp, Role::ExpertDown], format);
    let other = Arc::new(resolve(bench.checkpoint.network(), Recipe::Nvfp4Dequantized, &[rule])?);
    let mut trainer = bench.trainer(&bench.map)?;
    trainer.publish(context(0, &Ledger::discard()))?;
    let engine = bench.engine()?;
    block_on(engine.load(bench.convert(&other, &bench.checkpoint, &Ledger::discard())?))?;
    let batch = sampled(engine.as_ref())?;
    caught(trainer.update(&batch, &Clipped::default(), 1e-3))
}

fn other_plan(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let two = PartitionPlan::new(2, PartitionAxis::Intermediate)?;
    let cut = Arc::new(resolve_with(bench.checkpoint.network(), Recipe::Mxfp8Dequantized, &[], &[], two)?);
    let version = bench.convert(&cut, &bench.checkpoint, &Ledger::discard())?;
    caught(block_on(bench.engine()?.load(version)))
}

fn stale_engine(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let (mut trainer, engine) = (bench.trainer(&bench.map)?, bench.engine()?);
    block_on(engine.load(trainer.publish(context(0, &Ledger::discard()))?))?;
    trainer.update(&sampled(engine.as_ref())?, &Clipped::default(), 1e-3)?;
    trainer.publish(context(1, &Ledger::discard()))?;
    caught(trainer.update(&sampled(engine.as_ref())?, &Clipped::default(), 1e-3))
}

fn flipped_bit(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let ledger_path = bench.scratch.join("flipped.jsonl");
    let ledger = Ledger::append(&ledger_path)?;
    let directory = bench.exported("flipped", &ledger)?;
    let (mut bytes, codes) = bench.stored(&directory, "weight")?;
    bytes[codes.start + codes.len() / 2] ^= 0x10;
    fs::write(directory.join(WEIGHTS), bytes)?;
    let verification = verify(&directory, &ledger_path, None)?;
    Ok(verification.findings.iter().find(|finding| finding.tensor().is_some()).map(ToString::to_string))
}

fn lost_scale(bench: &Bench) -> Result<Caught, Box<dyn Error>> {
    let directory = bench.exported("lost", &Ledger::discard())?;
    let (bytes, _) = bench.stored(&directory, "weight_scale")?;
    let lost = bench.part("weight_scale")?;
    let file = SafeTensors::deserialize(&bytes)?;
    let kept = file.tensors().into_iter().filter(|(name, _)| *name != lost);
    safetensors::serialize_to_file(kept, None, &directory.join(WEIGHTS))?;
    caught(Checkpoint::open(&directory))
}

/// A few completions of one prompt, with advantages of both signs.
fn sampled(engine: &dyn RolloutEngine) -> Result<TrainBatch, Box<dyn Error>> {
    let sampling =
        Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_new_tokens: 4, eos_token_ids: Vec::new() };
    let prompts = vec![PromptRequest { key: 0, tokens: vec![3, 1, 4, 1, 5], completions: 4 }];
    let request = GenerateRequest { prompts, sampling, seed: 7, step: 0 };
    let rollout = block_on(engine.generate(&request, &CancelToken::default()))?;
    let completions = rollout.groups.iter().flat_map(|group| group.completions.iter().map(move |c| (group, c)));
    let sample = |(index, (group, completion)): (usize, (&CompletionGroup, &Completion))| TrainSample {
        tokens: [group.prompt_tokens.as_slice(), &completion.tokens].concat(),
        prompt_tokens: group.prompt_tokens.len(),
        rollout_logprobs: completion.logprobs.clone(),
        reference_logprobs: None,
        advantage: if index % 2 == 0 { 1.0 } else { -1.0 },
    };
    let samples = completions.enumerate().map(sample).collect();
    Ok(TrainBatch::new(samples, rollout.stamp, rollout.logprob_temperature)?)
}

/// The file that holds the weights of an exported directory.
const WEIGHTS: &str = "model.safetensors";
