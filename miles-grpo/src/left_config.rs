//! The `run.toml` of a run that has left it: read back, and turned into the run's precision map.

use std::path::Path;

use miles_core::network::Network;
use miles_core::precision::{PartitionPlan, PrecisionError, PrecisionMap};

use crate::config::{ConfigErrors, ConfigIssue, PrecisionPlan, Why};
use crate::setup;
use crate::{Error, Result, RunConfig};

/// Reads a `run.toml`; `None` where there is none.
///
/// # Errors
/// If it cannot be read or is no config; every fault names the file.
pub(crate) fn read(path: &Path) -> Result<Option<RunConfig>> {
    if !path.exists() {
        return Ok(None);
    }
    RunConfig::read(path, &[]).map(Some).map_err(|errors| named(path, errors).into())
}

/// What the config of a run makes of a network.
pub(crate) enum LeftMap {
    /// The run's precision map.
    Made(PrecisionMap),
    /// None here: this program does not know a format of it, for this reason.
    UnknownFormat(String),
}

/// The precision map that the config of a run gives a network.
///
/// # Errors
/// If the config makes no map; the fault names the file.
pub(crate) fn precision_map(path: &Path, config: &RunConfig, network: &Network) -> Result<LeftMap> {
    let precision = &config.precision;
    let refused = |error: PrecisionError| {
        let (key, value) = ("precision".to_owned(), precision.recipe.clone());
        Error::from(named(path, ConfigErrors { issues: vec![ConfigIssue { key, value, why: Why::Recipe(error) }] }))
    };
    let plan = PrecisionPlan {
        recipe: precision.recipe.parse().map_err(refused)?,
        rules: precision.rules.clone(),
        activations: precision.activations,
        partition: PartitionPlan::new(precision.expert_tensor_parallel, precision.partition_axis).map_err(refused)?,
    };
    match setup::precision_map(network, &plan) {
        Ok(map) => Ok(LeftMap::Made(map)),
        Err(Error::Core(miles_core::Error::Precision(error))) => Err(refused(error)),
        Err(Error::Core(error @ miles_core::Error::Registry(_))) => Ok(LeftMap::UnknownFormat(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The faults of a config, each with the file that it is in.
fn named(path: &Path, errors: ConfigErrors) -> ConfigErrors {
    let file = path.display().to_string();
    let name = |issue: ConfigIssue| {
        let key = match issue.key.as_str() {
            "(file)" => file.clone(),
            key if key.starts_with(&file) => issue.key,
            key => format!("{file}: {key}"),
        };
        ConfigIssue { key, ..issue }
    };
    ConfigErrors { issues: errors.issues.into_iter().map(name).collect() }
}
