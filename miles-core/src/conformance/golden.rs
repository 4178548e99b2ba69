//! The golden bytes that the suite carries: `data/golden.safetensors`, written by `data/make_golden.py`.
//!
//! They come from independent implementations of each format (see `tests/data/golden/README.md`), so they are the one
//! witness that shares no code with the rules.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::compare::{same, same_bytes, same_floats};
use super::grid::Grid;
use super::{Failure, Verdict};
use crate::Error;
use crate::format::{
    Axis, FormatError, FormatId, FormatRule, NonFinite, QuantizeSpec, QuantizedTensor, ScaleKind, ScaleScope,
    SourceDtype,
};
use crate::number::{bf16, e4m3, e8m0};

/// Tensors that are quantized together by one spec, and the bytes that come out.
pub(super) struct Record {
    /// Name of the case.
    pub case: String,
    /// How to quantize.
    pub spec: QuantizeSpec,
    /// Sources in order: one, or gate and up.
    pub sources: Vec<(Grid, SourceDtype)>,
    /// Parts of each source's result.
    parts: Vec<BTreeMap<String, Part>>,
}

enum Part {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

/// Every record of one format.
pub(super) fn records(format: &FormatId) -> Result<Vec<Record>, Failure> {
    let file = SafeTensors::deserialize(GOLDEN)?;
    let mut records: BTreeMap<String, Record> = BTreeMap::new();
    let mut names = file.names();
    names.sort_unstable();
    for name in names {
        let fields: Vec<&str> = name.split('|').collect();
        let [case, recorded, operand, axis, scope, part] = fields[..] else { continue };
        if recorded != format.as_str() {
            continue;
        }
        let key = format!("{case} {operand} {axis} {scope}");
        if !records.contains_key(&key) {
            let spec = spec(format, operand, axis, scope);
            let sources = sources(&file, case)?;
            let parts = sources.iter().map(|_| BTreeMap::new()).collect();
            records.insert(key.clone(), Record { case: key.clone(), spec, sources, parts });
        }
        let (member, part) = match part.split_once('.') {
            Some(("up", part)) => (1, part),
            Some((_, part)) => (0, part),
            None => (0, part),
        };
        if let Some(parts) = records.get_mut(&key).and_then(|record| record.parts.get_mut(member)) {
            parts.insert(part.to_owned(), read_part(&file.tensor(name)?)?);
        }
    }
    Ok(records.into_values().collect())
}

/// The formats that golden bytes exist for.
#[cfg(test)]
pub(super) fn formats() -> Result<Vec<FormatId>, Failure> {
    let file = SafeTensors::deserialize(GOLDEN)?;
    let mut names: Vec<&str> = file.names().into_iter().filter_map(|name| name.split('|').nth(1)).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| Ok(FormatId::new(name)?)).collect()
}

impl Record {
    /// Whether the golden bytes have a scale that no tensor holds, so that quantizing is [`FormatError::NanScale`].
    pub fn has_nan_scale(&self, rule: &dyn FormatRule) -> bool {
        let kind = |grid: &Grid| rule.layout(grid.rows, grid.cols, &self.spec).map(|layout| layout.scale_kind);
        self.sources.iter().zip(&self.parts).any(|((grid, _), parts)| match (kind(grid), parts.get("scales")) {
            (Ok(ScaleKind::E8m0), Some(Part::Bytes(scales))) => scales.contains(&e8m0::NAN),
            (Ok(ScaleKind::E4m3), Some(Part::Bytes(scales))) => scales.iter().any(|&scale| e4m3::is_nan(scale)),
            _ => false,
        })
    }

    /// What came of quantizing by `rule`: the golden parts, or the refusal of a scale that is NaN.
    pub fn check_outcome(&self, rule: &dyn FormatRule, outcome: Result<Vec<QuantizedTensor>, Error>) -> Verdict {
        match (self.has_nan_scale(rule), outcome) {
            (false, outcome) => self.check(&outcome?),
            (true, Err(Error::Format(FormatError::NanScale { .. }))) => Ok(()),
            (true, Err(other)) => Err(Failure::from(other).at("a golden scale is NaN, refused with another error")),
            (true, Ok(_)) => Err(Failure::new("a golden scale is NaN, and not refused")),
        }
    }

    /// Compares results, one per source, with the golden parts.
    fn check(&self, results: &[QuantizedTensor]) -> Verdict {
        same("results", results.len(), self.parts.len())?;
        for (tensor, parts) in results.iter().zip(&self.parts) {
            Failure::unless(parts.contains_key("codes"), || "no golden codes".to_owned())?;
            for (name, part) in parts {
                match (name.as_str(), part) {
                    ("codes", Part::Bytes(golden)) => same_bytes("codes", tensor.codes(), golden)?,
                    ("scales", Part::Bytes(golden)) => {
                        same_bytes("block scales", tensor.scales().as_u8().unwrap_or_default(), golden)?;
                    }
                    ("scales", Part::Floats(golden)) => {
                        same_floats("block scales", tensor.scales().as_f32().unwrap_or_default(), golden)?;
                    }
                    ("outer", Part::Floats(golden)) => same_floats("outer", tensor.outer(), golden)?,
                    ("amax", Part::Floats(golden)) => same_floats("amax", tensor.amax(), golden)?,
                    (other, _) => return Err(Failure::new(format!("nothing compares the golden part {other}"))),
                }
            }
        }
        Ok(())
    }
}

fn spec(format: &FormatId, operand: &str, axis: &str, scope: &str) -> QuantizeSpec {
    let base = match operand {
        "weight" => QuantizeSpec::weight(format.clone()),
        _ => QuantizeSpec::activation(format.clone()),
    };
    base.with_axis(if axis == "column" { Axis::Column } else { Axis::Row })
        .with_scope(if scope == "row" { ScaleScope::Row } else { ScaleScope::Tensor })
        .with_non_finite(NonFinite::Hardware)
}

fn sources(file: &SafeTensors<'_>, case: &str) -> Result<Vec<(Grid, SourceDtype)>, Failure> {
    let single = format!("input/{case}");
    let names = match file.tensor(&single) {
        Ok(_) => vec![single],
        Err(_) => ["gate", "up"].iter().map(|half| format!("input/{case}.{half}")).collect(),
    };
    let read = |name: &String| {
        let tensor = file.tensor(name)?;
        let [rows, cols] = tensor.shape() else { return Err(Failure::new(format!("{name} is no matrix"))) };
        let (values, dtype) = match tensor.dtype() {
            Dtype::BF16 => {
                let bits = tensor.data().as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
                (bits.map(bf16::decode).collect(), SourceDtype::Bf16)
            }
            _ => (floats(tensor.data()), SourceDtype::F32),
        };
        Ok((Grid::new(values, *rows, *cols), dtype))
    };
    names.iter().map(read).collect()
}

fn read_part(tensor: &TensorView<'_>) -> Result<Part, Failure> {
    match tensor.dtype() {
        Dtype::U8 => Ok(Part::Bytes(tensor.data().to_vec())),
        Dtype::F32 => Ok(Part::Floats(floats(tensor.data()))),
        other => Err(Failure::new(format!("golden parts are U8 or F32, not {other:?}"))),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

static GOLDEN: &[u8] = include_bytes!("data/golden.safetensors");

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::format::{builtin_rule, builtin_rules};

    /// Variants whose golden bytes are here before their rules are: each leaves this list when its rule is built in.
    #[test]
    fn every_record_has_a_rule() {
        let formats = formats().unwrap();
        assert!(formats.len() >= 16, "{formats:?}");
        for format in formats {
            assert!(builtin_rule(&format).is_some(), "{format}");
        }
    }

    #[test]
    fn the_rules_reproduce_the_records() {
        let mut checked = 0;
        for rule in builtin_rules() {
            for record in records(&rule.id()).unwrap() {
                let source = |(grid, dtype): &(Grid, SourceDtype)| grid.source(*dtype).unwrap().rows();
                assert!(record.sources.iter().map(source).sum::<usize>() > 0);
                let sources: Vec<_> = record.sources.iter().map(|(grid, dtype)| grid.source(*dtype).unwrap()).collect();
                let outcome = rule.quantize_joint(&sources, &record.spec).map_err(Error::from);
                record.check_outcome(rule, outcome).map_err(|failure| failure.at(&record.case)).unwrap();
                checked += 1;
            }
        }
        assert!(checked > 90, "{checked}");
    }
}
