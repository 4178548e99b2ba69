//! The plan of a conversion: the files of the output with their headers, and the units of work that fill them.

use std::collections::BTreeMap;

use super::ConvertOptions;
use super::error::ConvertError;
use super::need::Need;
use crate::Result;
use crate::checkpoint::StoredModel;
use crate::checkpoint::converted::ConvertedDirectory;
use crate::checkpoint::plan::{Piece, StoredPart};
use crate::checkpoint::reader::TensorRef;
use crate::digest::Digest;
use crate::format::builtin_rule;
use crate::network::{Inventory, ParamId};
use crate::plugin::Quantizer;
use crate::policy::make::quantized_together;
use crate::precision::PrecisionMap;
use crate::tensor::Dtype;

/// Everything that is decided before a weight is read.
pub(super) struct ConvertPlan {
    pub(super) directory: ConvertedDirectory,
    /// In the order of their first byte in the output.
    pub(super) units: Vec<Unit>,
    /// Bytes that depend on no weight.
    pub(super) constants: Vec<Constant>,
}

/// Tensors that are made together.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) work: Work,
    /// Where the bytes go, in the order of the members.
    pub(super) outputs: Vec<Output>,
    /// Bytes read from the source.
    pub(super) source_bytes: u64,
    pub(super) need: Need,
}

/// How a unit is made.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// One parameter that is stored in one piece in high precision and stays there: it passes in chunks.
    Stream(ParamId, Dtype),
    /// Parameters of the policy that are quantized together, or one that has to be gathered or dequantized.
    Make(Vec<ParamId>),
    /// A parameter beside the policy that has to be gathered or dequantized.
    Carry(ParamId, Dtype),
    /// A stored tensor that is no parameter, in chunks.
    Copy(TensorRef),
}

/// Bytes of one member of a unit in one place of the output.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// Member of the unit.
    pub(super) member: usize,
    /// File.
    pub(super) shard: usize,
    /// First byte in the file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Which part of a quantized tensor; `None`: all of a tensor in high precision.
    pub(super) part: Option<StoredPart>,
}

/// Bytes that are known from the plan.
#[derive(Clone, Debug)]
pub(super) struct Constant {
    pub(super) shard: usize,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// What a unit is found by: its first parameter, or the stored tensor that it copies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Parameter(ParamId),
    Other(usize),
}

impl ConvertPlan {
    pub(super) fn new(
        model: &StoredModel,
        map: &PrecisionMap,
        quantizer: &dyn Quantizer,
        options: &ConvertOptions,
    ) -> Result<Self> {
        let directory = model.converted(map, (options.max_shard_bytes, options.mxfp8))?;
        let mut plan = ConvertPlan { directory, units: Vec::new(), constants: Vec::new() };
        let mut found: BTreeMap<Key, usize> = BTreeMap::new();
        let mut others = 0;
        for (shard, file) in plan.directory.plan.shards.iter().enumerate() {
            let mut offset = file.header.len() as u64;
            for (tensor, piece) in
                file.tensors.iter().flat_map(|tensor| tensor.pieces.iter().map(move |piece| (tensor, piece)))
            {
                // Experts are stored one by one, so a tensor has one piece.
                let bytes = tensor.bytes();
                let mut output = Output { member: 0, shard, offset, bytes, part: None };
                offset += bytes;
                let (key, work) = match piece {
                    Piece::Dense(id, dtype) => (Key::Parameter(*id), dense_work(model, *id, *dtype)),
                    Piece::Part(id, part) => {
                        if let Some(bytes) = plan.directory.constant(model, *id, part) {
                            plan.constants.push(Constant { shard, offset: output.offset, bytes });
                            continue;
                        }
                        output.part = Some(part.clone());
                        let members = made_together(model.inventory(), map, *id);
                        output.member = members.iter().position(|member| member == id).unwrap_or(0);
                        (Key::Parameter(members[0]), Work::Make(members))
                    }
                    Piece::Other(tensor) => {
                        others += 1;
                        (Key::Other(others), Work::Copy(*tensor))
                    }
                };
                let unit = *found.entry(key).or_insert_with(|| {
                    plan.units.push(Unit { work, outputs: Vec::new(), source_bytes: 0, need: Need::default() });
                    plan.units.len() - 1
                });
                plan.units[unit].outputs.push(output);
            }
        }
        for unit in &mut plan.units {
            unit.outputs.sort_by_key(|output| output.member);
            unit.source_bytes = unit.source_bytes(model);
            unit.need = Need::of(unit, model, map, quantizer);
        }
        Ok(plan)
    }

    /// Refuses a budget that some unit alone exceeds.
    pub(super) fn check_budget(&self, model: &StoredModel, budget_bytes: u64) -> Result<(), ConvertError> {
        match self.units.iter().max_by_key(|unit| unit.need.least_bytes()) {
            Some(unit) if unit.need.least_bytes() > budget_bytes => Err(ConvertError::BudgetTooSmall {
                tensor: unit.name(model),
                needed_bytes: unit.need.least_bytes(),
                budget_bytes,
            }),
            _ => Ok(()),
        }
    }

    /// Names of what is carried along beside the policy: parameters, then other tensors.
    pub(super) fn beside<'m>(&self, model: &'m StoredModel) -> impl Iterator<Item = String> + 'm {
        let parameters = model.all().parameters.iter().skip(model.inventory().parameters.len());
        let others = model.other().iter().map(|tensor| model.bound().name(*tensor).to_owned());
        parameters.map(|parameter| parameter.name.clone()).chain(others)
    }

    /// Where the digests of a unit's members belong: the policy's parameters, those beside, then other tensors.
    pub(super) fn digest_places(&self, model: &StoredModel, unit: &Unit) -> Vec<usize> {
        match &unit.work {
            Work::Stream(id, _) | Work::Carry(id, _) => vec![id.index()],
            Work::Make(members) => members.iter().map(|id| id.index()).collect(),
            Work::Copy(tensor) => {
                let other = model.other().iter().position(|other| other == tensor);
                other.map(|index| model.all().parameters.len() + index).into_iter().collect()
            }
        }
    }

    /// Hash over everything that the output depends on, as far as it is known without reading weights.
    pub(super) fn identity(
        &self,
        model: &StoredModel,
        map: &PrecisionMap,
        quantizer: &dyn Quantizer,
    ) -> Result<Digest> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(model.identity()?.as_bytes());
        hasher.update(map.digest().as_bytes());
        hasher.update(format!("{}\n{}\n", quantizer.id(), env!("CARGO_PKG_VERSION")).as_bytes());
        for shard in &self.directory.plan.shards {
            hasher.update(shard.name.as_bytes());
            hasher.update(&shard.header);
        }
        for (name, text) in &self.directory.plan.texts {
            hasher.update(format!("{name}\n{text}").as_bytes());
        }
        Ok(hasher.finalize().into())
    }
}

impl Unit {
    /// Name of the first member.
    fn name(&self, model: &StoredModel) -> String {
        match &self.work {
            Work::Stream(id, _) | Work::Carry(id, _) => model.all().parameter(*id).name.clone(),
            Work::Make(members) => model.all().parameter(members[0]).name.clone(),
            Work::Copy(tensor) => model.bound().name(*tensor).to_owned(),
        }
    }

    pub(super) fn output_bytes(&self) -> u64 {
        self.outputs.iter().map(|output| output.bytes).sum()
    }

    fn source_bytes(&self, model: &StoredModel) -> u64 {
        match &self.work {
            Work::Stream(id, _) | Work::Carry(id, _) => model.bound().source_bytes(*id, model.all().parameter(*id)),
            Work::Make(members) => {
                members.iter().map(|id| model.bound().source_bytes(*id, model.all().parameter(*id))).sum()
            }
            Work::Copy(_) => self.output_bytes(),
        }
    }
}

/// The members of a quantized parameter's unit: of a pair without an outer scale to share, each is one by itself.
fn made_together(inventory: &Inventory, map: &PrecisionMap, id: ParamId) -> Vec<ParamId> {
    let (rows, cols) = inventory.parameter(id).rows_cols();
    let shares_nothing = map.weight_spec(id).is_some_and(|spec| {
        let layout = builtin_rule(&spec.format).and_then(|rule| rule.layout(rows, cols, &spec).ok());
        layout.is_some_and(|layout| layout.outer_len == 0)
    });
    if shares_nothing { vec![id] } else { quantized_together(inventory, map, id) }
}

fn dense_work(model: &StoredModel, id: ParamId, dtype: Dtype) -> Work {
    let is_policy = id.index() < model.inventory().parameters.len();
    match (model.bound().in_one_piece(id), is_policy) {
        (Some(_), _) => Work::Stream(id, dtype),
        (None, true) => Work::Make(vec![id]),
        (None, false) => Work::Carry(id, dtype),
    }
}
