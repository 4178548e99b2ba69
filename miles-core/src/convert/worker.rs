//! Worker threads: each takes a task, holds its share of the budget, reads, makes, writes and notes it in the journal.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::ConvertOptions;
use super::budget::Budget;
use super::file_hash::{SegmentHash, SegmentHasher, join, range, segments};
use super::files::OutputFiles;
use super::journal::Journal;
use super::plan::{ConvertPlan, Output, Unit, Work};
use super::schedule::{Schedule, Task};
use super::{banded, read_back, stream};
use crate::Result;
use crate::checkpoint::layout::part_bytes;
use crate::checkpoint::{CheckpointError, StoredModel};
use crate::digest::Digest;
use crate::error::Error;
use crate::network::ParamId;
use crate::plugin::Quantizer;
use crate::policy::make::Maker;
use crate::policy::{FileDigest, PolicyTensor, WeightSource};
use crate::precision::PrecisionMap;
use crate::tensor::{DenseTensor, Dtype};

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source whose units are finished.
    pub done_bytes: u64,
    /// Bytes of the source.
    pub total_bytes: u64,
    /// Units that are finished.
    pub done_units: usize,
    /// Units of the conversion.
    pub units: usize,
}

/// What the workers have made.
pub(super) struct Outcome {
    /// Of the policy's parameters, those beside it, then other tensors.
    pub(super) digests: Vec<Digest>,
    /// Of the files of weights.
    pub(super) files: BTreeMap<String, FileDigest>,
    pub(super) resumed_units: usize,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

/// Does all of the plan's work.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    model: &StoredModel,
    map: &PrecisionMap,
    quantizer: &dyn Quantizer,
    plan: &ConvertPlan,
    files: &OutputFiles,
    journal: &Journal,
    options: &ConvertOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Outcome> {
    let shards = 0..plan.directory.plan.shards.len();
    let mut outputs = vec![0; shards.len()];
    plan.units.iter().flat_map(|unit| &unit.outputs).for_each(|output| outputs[output.shard] += 1);
    let lengths = shards.clone().map(|shard| files.bytes(shard));
    let shared = Shared {
        model,
        maker: Maker { inventory: model.inventory(), map, quantizer, source: model },
        plan,
        files,
        journal,
        budget: Budget::new(options.budget_bytes),
        share_bytes: options.budget_bytes / options.threads.get() as u64,
        schedule: Schedule::new(plan.units.len(), lengths.clone().zip(outputs).collect()),
        digests: Mutex::new(vec![None; model.all().parameters.len() + model.other().len()]),
        segments: Mutex::new(lengths.map(|bytes| vec![None; segments(bytes)]).collect()),
        counts: Counts::default(),
        total_bytes: plan.units.iter().map(|unit| unit.source_bytes).sum(),
        first_error: Mutex::new(None),
        progress,
    };
    let threads = options.threads.get();
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(|| shared.work()))));
    shared.outcome(shards)
}

/// What all workers share.
struct Shared<'a> {
    model: &'a StoredModel,
    maker: Maker<'a, StoredModel>,
    plan: &'a ConvertPlan,
    files: &'a OutputFiles,
    journal: &'a Journal,
    budget: Budget,
    /// What a unit may hold without keeping other threads from work.
    share_bytes: u64,
    schedule: Schedule,
    digests: Mutex<Vec<Option<Digest>>>,
    segments: Mutex<Vec<Vec<Option<SegmentHash>>>>,
    counts: Counts,
    total_bytes: u64,
    /// With its unit: the error of the earliest one is reported.
    first_error: Mutex<Option<(usize, Error)>>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

#[derive(Default)]
struct Counts {
    done_bytes: AtomicU64,
    done_units: AtomicUsize,
    resumed_units: AtomicUsize,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Shared<'_> {
    fn work(&self) {
        while let Some(task) = self.schedule.next() {
            let (done, unit) = match task {
                Task::Unit(index) => (self.unit(index), index),
                Task::Segment { shard, segment } => (self.segment(shard, segment), usize::MAX),
            };
            if let Err(error) = done {
                let mut first = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(other, _)| unit < *other) {
                    *first = Some((unit, error));
                }
                self.schedule.stop();
            }
        }
    }

    fn unit(&self, index: usize) -> Result<()> {
        let unit = &self.plan.units[index];
        let share = unit.need.within(self.share_bytes);
        let held = self.budget.take(share.bytes);
        let digests = match self.resumed(index, unit)? {
            Some(digests) => digests,
            None => {
                let digests = self.make(unit, share.band_rows)?;
                self.journal.add(index, &digests)?;
                self.counts.read_bytes.fetch_add(unit.source_bytes, Ordering::Relaxed);
                self.counts.written_bytes.fetch_add(unit.output_bytes(), Ordering::Relaxed);
                digests
            }
        };
        drop(held);
        let places = self.plan.digest_places(self.model, unit);
        let mut all = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        places.into_iter().zip(digests).for_each(|(place, digest)| all[place] = Some(digest));
        drop(all);
        self.schedule.finished(unit.outputs.iter().map(|output| output.shard));
        let counts = &self.counts;
        (self.progress)(Progress {
            done_bytes: counts.done_bytes.fetch_add(unit.source_bytes, Ordering::Relaxed) + unit.source_bytes,
            total_bytes: self.total_bytes,
            done_units: counts.done_units.fetch_add(1, Ordering::Relaxed) + 1,
            units: self.plan.units.len(),
        });
        Ok(())
    }

    /// The digests of a unit that an earlier conversion finished, if its bytes are still there.
    fn resumed(&self, index: usize, unit: &Unit) -> Result<Option<Vec<Digest>>> {
        let Some(recorded) = self.journal.finished(index) else { return Ok(None) };
        let found = read_back::digests(self.model, self.maker.map, unit, self.files)?;
        let found = found.filter(|found| found == recorded);
        if found.is_some() {
            self.counts.resumed_units.fetch_add(1, Ordering::Relaxed);
        }
        Ok(found)
    }

    /// Makes and writes a unit.
    fn make(&self, unit: &Unit, band_rows: Option<usize>) -> Result<Vec<Digest>> {
        if let (Work::Make(members), Some(band_rows)) = (&unit.work, band_rows) {
            let Maker { map, quantizer, .. } = self.maker;
            let (band, outputs) = ((members[0], band_rows), &unit.outputs);
            return Ok(vec![banded::parameter(self.model, map, quantizer, band, self.files, outputs)?]);
        }
        let [first, ..] = unit.outputs.as_slice() else { return Ok(Vec::new()) };
        match &unit.work {
            Work::Stream(id, dtype) => Ok(vec![stream::parameter(self.model, *id, *dtype, self.files, first)?]),
            Work::Copy(tensor) => Ok(vec![stream::other(self.model, *tensor, self.files, first)?]),
            Work::Carry(id, dtype) => {
                let tensor = self.carried(*id, *dtype)?;
                self.files.write(first.shard, first.offset, tensor.bytes())?;
                Ok(vec![tensor.digest()])
            }
            Work::Make(members) => {
                let mut digests = Vec::with_capacity(members.len());
                for (member, made) in self.maker.make(members)?.into_iter().enumerate() {
                    let outputs = unit.outputs.iter().filter(|output| output.member == member);
                    outputs.into_iter().try_for_each(|output| self.write(output, &made.tensor))?;
                    digests.push(made.tensor.digest());
                }
                Ok(digests)
            }
        }
    }

    fn write(&self, output: &Output, tensor: &PolicyTensor) -> Result<(), CheckpointError> {
        let bytes = match (tensor, &output.part) {
            (PolicyTensor::Quantized(tensor), Some(part)) => part_bytes(tensor, part, 0.0),
            (PolicyTensor::Dense(tensor), _) => tensor.bytes().into(),
            (PolicyTensor::Quantized(tensor), None) => tensor.codes().into(),
        };
        self.files.write(output.shard, output.offset, &bytes)
    }

    /// A parameter beside the policy that is gathered from a packed tensor, or dequantized.
    fn carried(&self, id: ParamId, dtype: Dtype) -> Result<DenseTensor> {
        if let Some(tensor) = self.model.tensor(id, dtype)? {
            return Ok(tensor);
        }
        let mut values = Vec::new();
        self.model.read(id, &mut values)?;
        Ok(DenseTensor::from_f32(dtype, self.model.all().parameter(id).shape.clone(), &values)?)
    }

    fn segment(&self, shard: usize, segment: usize) -> Result<()> {
        let file_bytes = self.files.bytes(shard);
        let mut hasher = SegmentHasher::new(file_bytes, segment);
        let (start, length) = range(file_bytes, segment);
        let mut chunk = vec![0; stream::CHUNK_BYTES.min(length as usize)];
        let mut done = 0;
        while done < length {
            let step = (length - done).min(chunk.len() as u64) as usize;
            self.files.read(shard, start + done, &mut chunk[..step])?;
            hasher.update(&chunk[..step]);
            done += step as u64;
        }
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)[shard][segment] = Some(hasher.finish());
        Ok(())
    }

    fn outcome(self, shards: std::ops::Range<usize>) -> Result<Outcome> {
        if let Some((_, error)) = self.first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let segments = self.segments.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut files = BTreeMap::new();
        for (shard, hashes) in shards.zip(segments) {
            let name = self.files.name(shard);
            let digest = hashes.into_iter().collect::<Option<Vec<_>>>().and_then(|hashes| join(&hashes));
            let digest = digest.ok_or_else(|| unfinished(name, "the hash of its bytes"))?;
            files.insert(name.to_owned(), FileDigest { bytes: self.files.bytes(shard), digest });
        }
        let digests = self.digests.into_inner().unwrap_or_else(PoisonError::into_inner);
        let digests: Option<Vec<Digest>> = digests.into_iter().collect();
        Ok(Outcome {
            digests: digests.ok_or_else(|| unfinished("", "a tensor"))?,
            files,
            resumed_units: self.counts.resumed_units.into_inner(),
            read_bytes: self.counts.read_bytes.into_inner(),
            written_bytes: self.counts.written_bytes.into_inner(),
        })
    }
}

fn unfinished(file: &str, what: &str) -> CheckpointError {
    CheckpointError::Unfinished { path: file.into(), tensor: what.to_owned() }
}
