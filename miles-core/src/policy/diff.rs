//! Where two runs part.

use std::fmt;
use std::path::Path;

use super::{ExportEvent, FileDigest, LedgerEvent, LedgerFile, PolicyError, PolicyVersion, RecordedVersion};

/// One of the two things that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

/// Why two ledgers part where they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The tensor has another format: the precision maps differ.
    Format,
    /// The values that were quantized differ: they parted before the quantizer.
    Source,
    /// The same values were quantized to the same format with another result: the quantizers parted.
    Output,
    /// Only one ledger has the tensor in this version: the models differ.
    TensorOnlyIn(Side),
    /// Only one ledger has the version, and both have later ones.
    VersionOnlyIn(Side),
    /// One ledger ends before this version.
    Ended(Side),
    /// The tensors are equal, and only one ledger has an export of them.
    ExportOnlyIn(Side),
    /// The tensors are equal, and were exported otherwise.
    Export,
}

/// The first thing in which two exports of equal tensors differ.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ExportDifference {
    /// A key other than `files`.
    Field {
        /// Key.
        field: &'static str,
        /// Value in A and B.
        values: [String; 2],
    },
    /// A file.
    File {
        /// Path in the directory.
        file: String,
        /// Length and digest in A and B; `None` where it was not exported.
        digests: [Option<FileDigest>; 2],
    },
}

/// The first place where two ledgers part: by version, then by the order of A's events, then the export.
#[derive(Clone, Debug, PartialEq)]
pub struct Parting {
    /// Version.
    pub version: PolicyVersion,
    /// Tensor; `None` where a whole version is missing, or the exports differ.
    pub tensor: Option<String>,
    /// Why.
    pub cause: Cause,
    /// The events of A and B, where they exist.
    pub events: [Option<LedgerEvent>; 2],
    /// How the exports differ, for [`Cause::Export`].
    pub export: Option<ExportDifference>,
}

/// What two ledgers have in common, and where they part.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerDiff {
    /// Versions that are equal in every tensor and every export.
    pub equal_versions: usize,
    /// Tensors compared and equal, over all versions.
    pub equal_tensors: usize,
    /// Exports compared and equal.
    pub equal_exports: usize,
    /// The first two quantizers that made equal bytes under different names.
    pub quantizers: Option<[String; 2]>,
    /// The first difference.
    pub parting: Option<Parting>,
}

/// Compares two ledgers up to the first difference: quantizations, and what was exported. Names of runs, steps and
/// quantizers are not differences.
///
/// # Errors
/// If a ledger cannot be read or trusted.
pub fn diff_ledgers(a: &Path, b: &Path) -> Result<LedgerDiff, PolicyError> {
    let (mut a, mut b) = (LedgerFile::open(a)?, LedgerFile::open(b)?);
    let mut diff =
        LedgerDiff { equal_versions: 0, equal_tensors: 0, equal_exports: 0, quantizers: None, parting: None };
    loop {
        let parting = match (a.next().transpose()?, b.next().transpose()?) {
            (None, None) => return Ok(diff),
            (None, Some(longer)) => Some(whole(longer.version(), Cause::Ended(Side::A))),
            (Some(longer), None) => Some(whole(longer.version(), Cause::Ended(Side::B))),
            (Some(a), Some(b)) if a.version() < b.version() => Some(whole(a.version(), Cause::VersionOnlyIn(Side::A))),
            (Some(a), Some(b)) if a.version() > b.version() => Some(whole(b.version(), Cause::VersionOnlyIn(Side::B))),
            (Some(a), Some(b)) => compare(&a, &b, &mut diff),
        };
        if parting.is_some() {
            return Ok(LedgerDiff { parting, ..diff });
        }
        diff.equal_versions += 1;
    }
}

fn whole(version: PolicyVersion, cause: Cause) -> Parting {
    Parting { version, tensor: None, cause, events: [None, None], export: None }
}

fn compare(a: &RecordedVersion, b: &RecordedVersion, diff: &mut LedgerDiff) -> Option<Parting> {
    let version = a.version();
    for event in a.events() {
        let tensor = Some(event.tensor.clone());
        let Some(other) = b.event(&event.tensor) else {
            let events = [Some(event.clone()), None];
            return Some(Parting { version, tensor, cause: Cause::TensorOnlyIn(Side::A), events, export: None });
        };
        if let Some(cause) = cause(event, other) {
            let events = [Some(event.clone()), Some(other.clone())];
            return Some(Parting { version, tensor, cause, events, export: None });
        }
        diff.equal_tensors += 1;
        if event.quantizer != other.quantizer && diff.quantizers.is_none() {
            diff.quantizers = Some([event.quantizer.clone(), other.quantizer.clone()]);
        }
    }
    if let Some(only_b) = b.events().iter().find(|event| a.event(&event.tensor).is_none()) {
        let (tensor, cause) = (Some(only_b.tensor.clone()), Cause::TensorOnlyIn(Side::B));
        return Some(Parting { version, tensor, cause, events: [None, Some(only_b.clone())], export: None });
    }
    compare_exports(a, b, diff)
}

fn compare_exports(a: &RecordedVersion, b: &RecordedVersion, diff: &mut LedgerDiff) -> Option<Parting> {
    let (mut exports_a, mut exports_b) = (a.exports(), b.exports());
    loop {
        let cause = match (exports_a.next(), exports_b.next()) {
            (None, None) => return None,
            (Some(_), None) => Cause::ExportOnlyIn(Side::A),
            (None, Some(_)) => Cause::ExportOnlyIn(Side::B),
            (Some((export_a, _)), Some((export_b, _))) => match export_difference(export_a, export_b) {
                None => {
                    diff.equal_exports += 1;
                    continue;
                }
                found => return Some(Parting { export: found, ..whole(a.version(), Cause::Export) }),
            },
        };
        return Some(whole(a.version(), cause));
    }
}

fn export_difference(a: &ExportEvent, b: &ExportEvent) -> Option<ExportDifference> {
    let fields: [(&'static str, [String; 2]); 3] = [
        ("as_held", [a, b].map(|export| export.as_held.to_string())),
        ("precision_map", [a, b].map(|export| export.precision_map.to_string())),
        ("policy_digest", [a, b].map(|export| export.policy_digest.to_string())),
    ];
    if let Some((field, values)) = fields.into_iter().find(|(_, [a, b])| a != b) {
        return Some(ExportDifference::Field { field, values });
    }
    let digests = |file: &String| [a, b].map(|export| export.files.get(file).copied());
    let mut files = a.files.keys().chain(b.files.keys());
    let file = files.find(|file| digests(file)[0] != digests(file)[1])?;
    Some(ExportDifference::File { file: file.clone(), digests: digests(file) })
}

fn cause(a: &LedgerEvent, b: &LedgerEvent) -> Option<Cause> {
    if a.format != b.format {
        Some(Cause::Format)
    } else if (a.source_digest, &a.source_dtype) != (b.source_digest, &b.source_dtype) {
        Some(Cause::Source)
    } else if a.output_digest != b.output_digest {
        Some(Cause::Output)
    } else {
        None
    }
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::A => "A",
            Side::B => "B",
        })
    }
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version;
        let tensor = self.tensor.as_deref().unwrap_or_default();
        match self.cause {
            Cause::Ended(side) => return write!(f, "{side} ends before version {version}, which {} has", side.other()),
            Cause::VersionOnlyIn(side) => return write!(f, "version {version}: only {side} has it"),
            Cause::ExportOnlyIn(side) => return write!(f, "version {version}: only {side} has an export of it"),
            Cause::Export => {
                write!(f, "version {version}: the tensors are equal, the exports differ")?;
                return self.export.iter().try_for_each(|difference| write!(f, ": {difference}"));
            }
            Cause::TensorOnlyIn(side) => return write!(f, "version {version}, `{tensor}`: only {side} has the tensor"),
            Cause::Format => write!(f, "version {version}, `{tensor}`: the formats differ (precision maps)")?,
            Cause::Source => write!(
                f,
                "version {version}, `{tensor}`: the values that were quantized differ (they parted before the quantizer)"
            )?,
            Cause::Output => write!(
                f,
                "version {version}, `{tensor}`: the same values gave different bytes (the quantizers parted)"
            )?,
        }
        for (side, event) in [Side::A, Side::B].into_iter().zip(&self.events) {
            let Some(event) = event else { continue };
            let LedgerEvent { source_digest, source_dtype, format, quantizer, output_digest, .. } = event;
            write!(f, "\n{side}: {source_dtype} {source_digest} -> {format} {output_digest} by {quantizer}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ExportDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportDifference::Field { field, values: [a, b] } => write!(f, "`{field}` is {a} in A and {b} in B"),
            ExportDifference::File { file, digests } => {
                write!(f, "file `{file}`")?;
                for (side, digest) in [Side::A, Side::B].into_iter().zip(digests) {
                    match digest {
                        Some(FileDigest { bytes, digest }) => write!(f, "\n{side}: {bytes} bytes, {digest}")?,
                        None => write!(f, "\n{side}: not exported")?,
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
