//! The policy store that a plan asks for.

use std::sync::Arc;

use miles_core::network::Network;
use miles_core::policy::store::DirectoryOptions;
use miles_core::policy::{DirectoryStore, MemoryStore, PolicyStore, PolicyVersion, ThrottledStore, VerifiedStore};
use miles_core::precision::PrecisionMap;

use crate::Result;
use crate::config::{StoreKind, StorePlan};
use crate::output::OutputDir;

/// Opens the store of a run. Digests are looked at outermost: they cover the way through everything else. A run that
/// goes on from the version `resumed_at` makes it, and those after it, again.
///
/// # Errors
/// If the directory cannot be made or read, or holds versions of another model or map.
pub(crate) fn open(
    plan: &StorePlan,
    out: &OutputDir,
    network: &Arc<Network>,
    map: &Arc<PrecisionMap>,
    resumed_at: Option<PolicyVersion>,
) -> Result<Arc<dyn PolicyStore>> {
    let mut store: Arc<dyn PolicyStore> = match plan.kind {
        StoreKind::Memory => Arc::new(MemoryStore::new(plan.keep_last)),
        StoreKind::Directory => {
            let options = DirectoryOptions { keep_last: plan.keep_last, resumed_at, ..DirectoryOptions::default() };
            let opened = DirectoryStore::open(&out.versions(), Arc::clone(network), Arc::clone(map), options);
            Arc::new(opened.map_err(miles_core::Error::from)?)
        }
    };
    if let Some(bytes_per_second) = plan.bytes_per_second {
        store = Arc::new(ThrottledStore::new(store, bytes_per_second));
    }
    if plan.verified {
        store = Arc::new(VerifiedStore::new(store));
    }
    Ok(store)
}
