//! Where two runs part, down to the byte where both still have the bytes.

use miles_core::network::Network;
use miles_core::policy::{
    LedgerDiff, LedgerFile, PolicyVersion, Snapshot, TensorDifference, diff_ledgers, tensor_difference, verify_snapshot,
};

use crate::Result;
use crate::left_run::{HeldVersion, LeftRun, Place};

/// How two runs differ.
#[derive(Debug)]
pub struct RunDiff {
    /// By their ledgers.
    pub ledgers: LedgerDiff,
    /// Whether the bytes of the version where they part are there, in A and in B.
    pub is_kept: [bool; 2],
    /// The first version from there on that both have the bytes of; `None` where there is none, or no tensor to look at.
    pub bytes: Option<HeldDifference>,
}

/// One version of two runs, compared byte by byte.
#[derive(Debug)]
pub struct HeldDifference {
    /// Version.
    pub version: PolicyVersion,
    /// Where the bytes of A and B come from.
    pub places: [Place; 2],
    /// Tensors whose bytes here are not those that the ledger of A or B recorded: the run's quantizer did not follow the
    /// format's rule.
    pub unrecorded: [Vec<String>; 2],
    /// The tensor where the ledgers part if it differs here, else the first one that does; `None` when all bytes of
    /// the version are equal.
    pub first: Option<(String, TensorDifference)>,
}

/// Compares two runs up to their first difference.
///
/// # Errors
/// If a ledger cannot be trusted, or bytes that should be there are damaged.
pub fn diff_runs(a: &LeftRun, b: &LeftRun) -> Result<RunDiff> {
    let ledgers = diff_ledgers(&a.ledger(), &b.ledger())?;
    let Some(parting) = &ledgers.parting else { return Ok(RunDiff { ledgers, is_kept: [false; 2], bytes: None }) };
    let (held_a, held_b) = (a.held()?, b.held()?);
    let is_kept = [&held_a, &held_b].map(|held| held.iter().any(|held| held.version == parting.version));
    let mut bytes = None;
    if let Some(tensor) = &parting.tensor {
        let later = held_a.iter().filter(|held| held.version >= parting.version);
        let both = later.filter_map(|a| Some((a, held_b.iter().find(|b| b.version == a.version)?)));
        if let Some((held_a, held_b)) = both.into_iter().next() {
            bytes = Some(compare((a, held_a), (b, held_b), tensor)?);
        }
    }
    Ok(RunDiff { ledgers, is_kept, bytes })
}

fn compare(a: (&LeftRun, &HeldVersion), b: (&LeftRun, &HeldVersion), parted: &str) -> Result<HeldDifference> {
    let (snapshot_a, snapshot_b) = (a.0.tensors(a.1)?, b.0.tensors(b.1)?);
    let network = snapshot_a.network();
    let names = std::iter::once(parted).chain(network.parameters.iter().map(|parameter| parameter.name.as_str()));
    let first = names
        .filter_map(|name| Some((name, difference(&snapshot_a, &snapshot_b, name)?)))
        .map(|(name, difference)| (name.to_owned(), difference))
        .next();
    Ok(HeldDifference {
        version: a.1.version,
        places: [a.1.place.clone(), b.1.place.clone()],
        unrecorded: [unrecorded(a, &snapshot_a)?, unrecorded(b, &snapshot_b)?],
        first,
    })
}

/// `None` also for a tensor that only one of them has.
fn difference(a: &Snapshot, b: &Snapshot, name: &str) -> Option<TensorDifference> {
    let id = |network: &Network| network.find(name);
    tensor_difference(a.tensor(id(a.network())?), b.tensor(id(b.network())?))
}

fn unrecorded((run, held): (&LeftRun, &HeldVersion), snapshot: &Snapshot) -> Result<Vec<String>> {
    let recorded = LedgerFile::find(&run.ledger(), held.version)?;
    let findings = verify_snapshot(snapshot, &recorded);
    Ok(findings.iter().filter_map(|finding| finding.tensor().map(str::to_owned)).collect())
}
