//! The four hand-offs of a policy version on one backend, as a table.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_lite::future::block_on;
use miles_core::checkpoint::{Checkpoint, WriteOptions, write_checkpoint};
use miles_core::digest::Digest;
use miles_core::network::ParamId;
use miles_core::plugin::{
    ActivationDtype, AdamW, Backend, EngineOptions, MasterDtype, PublicationMode, Trainer, TrainerInputs,
    TrainerOptions,
};
use miles_core::policy::{
    Comparison, HandedOff, Ledger, MemoryStore, PolicyContext, PolicyStore, PolicyTensor, PolicyVersion, Snapshot,
    compare_hand_off, quantize_policy,
};
use miles_core::precision::{PartitionPlan, PrecisionMap};

/// The hand-offs, in order.
pub const HAND_OFFS: [&str; 4] = ["convert", "training", "rollout", "export"];

/// What each hand-off of one backend holds.
#[derive(Debug)]
pub struct BackendProof {
    backend: String,
    version: Arc<Snapshot>,
    hand_offs: Vec<Vec<HandedOff>>,
}

/// The quickstart's bundled model.
#[must_use]
pub fn quickstart_model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/quickstart")
}

/// Takes version 0 of a checkpoint through every hand-off on one backend.
///
/// # Errors
/// If a part cannot be made, or cannot show what it holds. A difference is part of the proof.
pub fn prove(
    backend: &Backend,
    checkpoint: &Checkpoint,
    map: &Arc<PrecisionMap>,
) -> Result<BackendProof, Box<dyn Error>> {
    let dequantize = |tensor: &_| backend.quantizer.dequantize(tensor);
    let converted = convert(backend, checkpoint, map)?;
    let mut trainer = (backend.trainer)(trainer_inputs(backend, checkpoint, map))?;
    let published = publish(trainer.as_mut())?;
    let engine = (backend.engine)(engine_options(checkpoint))?;
    let store = MemoryStore::new(1);
    block_on(store.publish(Arc::clone(&published)))?;
    block_on(engine.load(block_on(store.version(PolicyVersion(0)))?))?;

    let (stored, exported) = (reopened(checkpoint, &converted)?, reopened(checkpoint, &published)?);
    let hand_offs = vec![
        compare_hand_off(&converted, |id| Ok(stored.tensor(id).as_ref().clone()), dequantize)?,
        compare_hand_off(&converted, |id| trainer.operand(id), dequantize)?,
        compare_hand_off(&converted, |id| engine.operand(id), dequantize)?,
        compare_hand_off(&converted, |id| Ok(exported.tensor(id).as_ref().clone()), dequantize)?,
    ];
    Ok(BackendProof { backend: format!("{} ({})", backend.name, backend.device), version: converted, hand_offs })
}

fn convert(backend: &Backend, checkpoint: &Checkpoint, map: &Arc<PrecisionMap>) -> miles_core::Result<Arc<Snapshot>> {
    let ledger = Ledger::discard();
    let context = PolicyContext { run: "convert", step: 0, version: PolicyVersion(0), ledger: &ledger };
    quantize_policy(checkpoint.network(), map, backend.quantizer.as_ref(), checkpoint, context).map(Arc::new)
}

fn publish(trainer: &mut dyn Trainer) -> miles_core::Result<Arc<Snapshot>> {
    let ledger = Ledger::discard();
    trainer.publish(PolicyContext { run: "contract", step: 0, version: PolicyVersion(0), ledger: &ledger })
}

/// A version written as a directory and read back, bytes as stored.
fn reopened(checkpoint: &Checkpoint, version: &Snapshot) -> Result<Snapshot, Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let directory = scratch.path().join("policy");
    write_checkpoint(version, &checkpoint.template(), &directory, &WriteOptions::default())?;
    Ok(Checkpoint::open(&directory)?.snapshot_as_stored(version.stamp().version)?)
}

/// A trainer that starts from a checkpoint.
#[must_use]
pub fn trainer_inputs<'a>(backend: &Backend, checkpoint: &'a Checkpoint, map: &Arc<PrecisionMap>) -> TrainerInputs<'a> {
    TrainerInputs {
        network: Arc::clone(checkpoint.network()),
        map: Arc::clone(map),
        weights: checkpoint,
        quantizer: Arc::clone(&backend.quantizer),
        options: TrainerOptions {
            activations: ActivationDtype::Bf16,
            optimizer: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
            max_grad_norm: None,
            micro_batch_tokens: 1024,
            train_router: true,
            masters: MasterDtype::F32,
            seed: 0,
            threads: None,
        },
        scratch: None,
    }
}

/// An engine for a checkpoint's network.
#[must_use]
pub fn engine_options(checkpoint: &Checkpoint) -> EngineOptions {
    EngineOptions {
        network: Arc::clone(checkpoint.network()),
        activations: ActivationDtype::Bf16,
        max_running: 8,
        context_tokens: checkpoint.network().config.context_tokens,
        threads: None,
        partition: PartitionPlan::WHOLE,
        publication: PublicationMode::Finish,
    }
}

impl BackendProof {
    /// Name and device.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Digest of the version that the checkpoint became.
    #[must_use]
    pub fn policy_digest(&self) -> Digest {
        self.version.stamp().digest
    }

    /// Whether every tensor is the version's at every hand-off.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.hand_offs.iter().flatten().all(|held| !matches!(held.comparison, Comparison::Differs(_)))
    }

    /// Tensors of one role and format, in the order of the network.
    fn groups(&self) -> Vec<(String, Vec<ParamId>)> {
        let (network, map) = (self.version.network(), self.version.map());
        let mut groups: Vec<(String, Vec<ParamId>)> = Vec::new();
        for id in network.ids() {
            let name = format!("{} {}", network.parameter(id).role.name(), map.entry(id).format);
            match groups.iter_mut().find(|(known, _)| *known == name) {
                Some((_, ids)) => ids.push(id),
                None => groups.push((name, vec![id])),
            }
        }
        groups
    }

    /// The digest over a group's digests at one hand-off, or how it is held when that is not as codes.
    fn cell(&self, hand_off: usize, ids: &[ParamId]) -> String {
        let held = || ids.iter().map(|id| &self.hand_offs[hand_off][id.index()]);
        let digests: Vec<u8> = held().flat_map(|held| *held.digest.as_bytes()).collect();
        let mark = if held().any(|held| held.comparison == Comparison::EqualValues) { " (values)" } else { "" };
        format!("{}{mark}", &Digest::of(&digests).to_string()[..12])
    }

    /// The first difference of a group, hand-off by hand-off.
    fn verdict(&self, ids: &[ParamId]) -> String {
        for (name, hand_off) in HAND_OFFS.iter().zip(&self.hand_offs) {
            for id in ids {
                if let Comparison::Differs(difference) = &hand_off[id.index()].comparison {
                    let tensor = &self.version.network().parameter(*id).name;
                    return format!("{name}: {tensor}: {}", difference.to_string().replace('\n', "; "));
                }
            }
        }
        "equal".to_owned()
    }
}

/// Codes and scales, or elements: what every copy of the version holds.
fn stored_bytes(tensor: &PolicyTensor) -> usize {
    match tensor {
        PolicyTensor::Dense(_) => tensor.bytes(),
        PolicyTensor::Quantized(codes) => tensor.bytes() - size_of_val(codes.amax()),
    }
}

impl fmt::Display for BackendProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.backend)?;
        let mut lines = vec![["tensors", "count", "bytes"].into_iter().chain(HAND_OFFS).map(str::to_owned).collect()];
        let mut verdicts = vec!["verdict".to_owned()];
        for (name, ids) in self.groups() {
            let bytes: usize = ids.iter().map(|&id| stored_bytes(self.version.tensor(id))).sum();
            let mut line: Vec<String> = vec![name, ids.len().to_string(), bytes.to_string()];
            line.extend((0..HAND_OFFS.len()).map(|hand_off| self.cell(hand_off, &ids)));
            lines.push(line);
            verdicts.push(self.verdict(&ids));
        }
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
        for (line, verdict) in lines.iter().zip(&verdicts) {
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    1 | 2 => write!(f, "{cell:>width$}  ")?,
                    _ => write!(f, "{cell:<width$}  ")?,
                }
            }
            writeln!(f, "{verdict}")?;
        }
        Ok(())
    }
}
