//! Where two runs part: by their ledgers, down to the byte where both still have the bytes, and by what they exported.

use miles_core::network::Network;
use miles_core::policy::{
    Cause, DirectoryDiff, Finding, LedgerDiff, LedgerFile, Parting, PolicyVersion, Side, Snapshot, TensorDifference,
    diff_directories, diff_ledgers, tensor_difference, verify_snapshot,
};

use crate::left_run::{HeldVersion, LeftRun, Place};
use crate::{Error, Result};

/// How two runs differ.
#[derive(Debug)]
pub struct RunDiff {
    /// By their ledgers.
    pub ledgers: LedgerDiff,
    /// Whether the bytes of the version where they part are there, in A and in B.
    pub is_kept: [bool; 2],
    /// The first version from there on that both have the bytes of; `None` where there is none, or no tensor to look at.
    pub bytes: Option<HeldDifference>,
    /// Why bytes that are there could not be compared. That the runs part is certain without them.
    pub unread: Option<Error>,
    /// How the exported policies differ; `None` where neither run has one, or the ledgers part before any export.
    pub policies: Option<PolicyDiff>,
}

/// How the exported policies of two runs differ.
#[derive(Debug)]
pub enum PolicyDiff {
    /// Only one run has one.
    OnlyIn(Side),
    /// Both have one.
    Both(Box<DirectoryDiff>),
}

impl RunDiff {
    /// Whether neither the ledgers nor the exported policies differ.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        let is_equal = |policies: &PolicyDiff| matches!(policies, PolicyDiff::Both(diff) if diff.is_equal());
        self.ledgers.parting.is_none() && self.policies.as_ref().is_none_or(is_equal)
    }
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
/// If a ledger cannot be trusted, or the ledgers are equal and an exported policy cannot be read.
pub fn diff_runs(a: &LeftRun, b: &LeftRun) -> Result<RunDiff> {
    let ledgers = diff_ledgers(&a.ledger(), &b.ledger())?;
    let mut diff = RunDiff { ledgers, is_kept: [false; 2], bytes: None, unread: None, policies: None };
    let Some(parting) = diff.ledgers.parting.clone() else {
        diff.policies = policies(a, b)?;
        return Ok(diff);
    };
    let looked_at = match parting.cause {
        Cause::Export | Cause::ExportOnlyIn(_) => policies(a, b).map(|policies| diff.policies = policies),
        _ => diff.look_at_bytes(a, b, &parting),
    };
    diff.unread = looked_at.err();
    Ok(diff)
}

fn policies(a: &LeftRun, b: &LeftRun) -> Result<Option<PolicyDiff>> {
    Ok(match (a.policy(), b.policy()) {
        (None, None) => None,
        (Some(_), None) => Some(PolicyDiff::OnlyIn(Side::A)),
        (None, Some(_)) => Some(PolicyDiff::OnlyIn(Side::B)),
        (Some(a), Some(b)) => Some(PolicyDiff::Both(Box::new(diff_directories(&a, &b)?))),
    })
}

impl RunDiff {
    fn look_at_bytes(&mut self, a: &LeftRun, b: &LeftRun, parting: &Parting) -> Result<()> {
        let (held_a, held_b) = (a.held()?, b.held()?);
        self.is_kept = [&held_a, &held_b].map(|held| held.iter().any(|held| held.version == parting.version));
        let Some(tensor) = &parting.tensor else { return Ok(()) };
        let later = held_a.iter().filter(|held| held.version >= parting.version);
        let mut both = later.filter_map(|a| Some((a, held_b.iter().find(|b| b.version == a.version)?)));
        if let Some((held_a, held_b)) = both.next() {
            self.bytes = Some(compare((a, held_a), (b, held_b), tensor)?);
        }
        Ok(())
    }
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
    let differs = |finding: &&Finding| matches!(finding, Finding::Tensor { .. } | Finding::Format { .. });
    Ok(findings.iter().filter(differs).filter_map(|finding| finding.tensor().map(str::to_owned)).collect())
}
