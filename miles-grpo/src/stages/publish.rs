//! Publishing: the master weights become a version once, the store holds it, the engine takes it from the store.

use std::sync::Arc;

use miles_core::plugin::{RolloutEngine, Trainer};
use miles_core::policy::{PolicyContext, PolicyError, PolicyStore, Snapshot};

use super::{Updated, Versioning};
use crate::Result;

/// Makes a version from the trainer's master weights.
///
/// # Errors
/// Whatever the trainer reports.
pub fn quantize(trainer: &mut dyn Trainer, context: PolicyContext<'_>) -> Result<Arc<Snapshot>> {
    Ok(trainer.publish(context)?)
}

/// Makes the version that follows a step's updates.
///
/// # Errors
/// Whatever the trainer reports.
pub fn quantize_updated(
    trainer: &mut dyn Trainer,
    updated: &Updated,
    versioning: Versioning<'_>,
) -> Result<Arc<Snapshot>> {
    quantize(trainer, versioning.after(updated.newest))
}

/// Hands a version to the store, and the store's newest version to the engine. Whether the two are the same is
/// noticed where it matters: the next rollout's stamp is compared with the published one.
///
/// # Errors
/// Whatever the store or the engine reports; a store that holds nothing after a publication.
pub async fn deliver(store: &dyn PolicyStore, engine: &dyn RolloutEngine, snapshot: &Arc<Snapshot>) -> Result<()> {
    store.publish(Arc::clone(snapshot)).await?;
    let held = store.latest().await?.ok_or_else(|| {
        miles_core::Error::from(PolicyError::UnknownVersion { version: snapshot.stamp().version, held: Vec::new() })
    })?;
    engine.load(held).await?;
    Ok(())
}
