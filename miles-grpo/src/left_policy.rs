//! What is known of the policy of a run that has left it, beside its ledger: the network, and the precision map.

use std::path::Path;
use std::sync::Arc;

use miles_core::digest::Digest;
use miles_core::model::huggingface::HuggingFaceConfig;
use miles_core::network::Network;
use miles_core::policy::{KnownPolicy, LedgerFile};

use crate::checkpoint::SavedLoop;
use crate::left_config::{self, LeftMap};
use crate::output::OutputDir;
use crate::{Result, RunConfig};

/// What is known of a run's policy beside its ledger.
pub(crate) struct LeftPolicy {
    /// The network; `None` where the map is not known.
    pub network: Option<Arc<Network>>,
    /// The map, or as much of it as is known.
    pub policy: KnownPolicy,
    /// Why the map is not known.
    pub why: Option<String>,
}

impl LeftPolicy {
    /// Two directories tell the network: the exported policy goes first, then the model, unless the newest checkpoint says
    /// that the map which comes out is not the run's. Without either, a digest of the map may still be on record.
    ///
    /// # Errors
    /// If the config makes no map, or the ledger has to be read and cannot be.
    pub(crate) fn find(
        out: &OutputDir,
        config: Option<&RunConfig>,
        model: Option<&Path>,
        saved: &[SavedLoop],
    ) -> Result<Self> {
        let saved_map = saved.last().map(|saved| saved.state.precision_map);
        let exported = Some(out.policy()).filter(|dir| dir.is_dir());
        let dirs: Vec<&Path> = exported.as_deref().into_iter().chain(model).collect();
        let (mut first, mut why) = (None, format!("there is no {}", out.config().display()));
        if let Some(config) = config {
            why = "neither the exported policy nor the model that the run started from is there".to_owned();
            for dir in dirs {
                match Self::of(out, config, dir)? {
                    Err(reason) => why = reason,
                    Ok(known) if saved_map.is_none_or(|saved| known.policy.precision_map == Some(saved)) => {
                        return Ok(known);
                    }
                    Ok(known) => first = first.or(Some(known)),
                }
            }
        }
        if let Some(known) = first {
            return Ok(known);
        }
        let precision_map = saved_map.map_or_else(|| exported_map(&out.ledger()), |map| Ok(Some(map)))?;
        Ok(LeftPolicy { network: None, policy: KnownPolicy { formats: None, precision_map }, why: Some(why) })
    }

    /// What the config makes of the network of a directory, or why that is not known.
    fn of(out: &OutputDir, config: &RunConfig, dir: &Path) -> Result<Result<Self, String>> {
        let network = match network(dir) {
            Ok(network) => network,
            Err(error) => return Ok(Err(error.to_string())),
        };
        Ok(match left_config::precision_map(&out.config(), config, &network)? {
            LeftMap::UnknownFormat(reason) => Err(reason),
            LeftMap::Made(map) => {
                let policy = KnownPolicy::of(&network, &map);
                Ok(LeftPolicy { network: Some(network), policy, why: None })
            }
        })
    }
}

/// The network of a model directory.
///
/// # Errors
/// If its configuration cannot be read.
pub(crate) fn network(dir: &Path) -> Result<Arc<Network>> {
    let config = HuggingFaceConfig::read(dir).map_err(miles_core::Error::from)?;
    Ok(Arc::new(Network::new(config.model())))
}

/// The digest of the precision map that the last export names.
fn exported_map(ledger: &Path) -> Result<Option<Digest>> {
    let mut newest = None;
    for recorded in LedgerFile::open(ledger)? {
        newest = recorded?.export().map(|export| export.precision_map).or(newest);
    }
    Ok(newest)
}
