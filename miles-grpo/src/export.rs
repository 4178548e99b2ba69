//! The trained policy as a Hugging Face directory, written from the snapshot that was published last: the very bytes
//! that rollouts were sampled from.

use std::path::Path;

use miles_core::checkpoint::{CheckpointError, ExpertLayout, StoredForm, Template, WriteOptions, write_checkpoint};
use miles_core::policy::{ExportEvent, FileDigest, Ledger, Snapshot};
use miles_core::tensor::Dtype;
use serde::{Deserialize, Serialize};

/// Precision of the exported tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportForm {
    /// The policy's own bytes: codes and scales where it has them.
    AsHeld,
    /// BF16 everywhere, codes dequantized.
    Bf16,
    /// F32 everywhere, codes dequantized.
    F32,
}

/// Layout of exported routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportExperts {
    /// One tensor per expert and projection.
    PerExpert,
    /// One 3-D tensor per projection; high precision only.
    Packed,
}

/// How a policy is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportPlan {
    /// Precision.
    pub form: ExportForm,
    /// Experts.
    pub experts: ExportExperts,
}

/// Writes `dir`, replacing an earlier export; the directory appears whole or not at all.
///
/// # Errors
/// If the formats have no common layout or writing fails.
pub fn export(snapshot: &Snapshot, template: &Template, dir: &Path, plan: ExportPlan) -> Result<(), CheckpointError> {
    let options = WriteOptions {
        form: match plan.form {
            ExportForm::AsHeld => StoredForm::AsHeld,
            ExportForm::Bf16 => StoredForm::Dense(Dtype::Bf16),
            ExportForm::F32 => StoredForm::Dense(Dtype::F32),
        },
        experts: match plan.experts {
            ExportExperts::PerExpert => ExpertLayout::PerExpert,
            ExportExperts::Packed => ExpertLayout::Packed,
        },
        replace: true,
        ..WriteOptions::default()
    };
    write_checkpoint(snapshot, template, dir, &options)
}

/// Writes the digest of every file that [`export`] wrote into the ledger, as they are on the disk now.
///
/// # Errors
/// If a file cannot be read or the ledger fails.
pub fn record(
    snapshot: &Snapshot,
    dir: &Path,
    plan: ExportPlan,
    (run, step): (&str, u64),
    ledger: &Ledger,
) -> miles_core::Result<()> {
    let stamp = snapshot.stamp();
    Ok(ledger.record_export(&ExportEvent {
        run: run.to_owned(),
        step,
        version: stamp.version,
        precision_map: snapshot.map().digest(),
        policy_digest: stamp.digest,
        as_held: plan.form == ExportForm::AsHeld,
        files: FileDigest::of_directory(dir)?,
    })?)
}
