//! Calibrated activation scales of a directory, for a directory that is made from it.
//!
//! NVFP4 checkpoints hold one scale per weight by which engines quantize the activations. This library scales
//! activations per token and never uses it, so it is handed on: from the directory that a [`Template`](super::Template)
//! takes its other files from. Where that directory has none, engines get 1, which leaves block scales as they are.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::CheckpointError;
use super::layout::INPUT_SCALE;
use super::names;
use super::reader::StoredTensors;
use super::scales::floats;

/// What is stored where nothing was calibrated.
pub(super) const NEUTRAL: f32 = 1.0;

/// Scales by the canonical name of their tensor; none for a directory without weights.
pub(super) fn read(dir: &Path) -> Result<BTreeMap<String, f32>, CheckpointError> {
    let stored = match StoredTensors::open(dir) {
        Err(CheckpointError::NoWeights { .. }) => return Ok(BTreeMap::new()),
        opened => opened?,
    };
    let mut scales = BTreeMap::new();
    for tensor in stored.all() {
        let name = names::canonical(&stored.info(tensor).name);
        let Some(weight) = name.strip_suffix(INPUT_SCALE).map(|base| format!("{base}.weight")) else { continue };
        if let [scale] = floats(&stored.read_all(tensor)?)[..] {
            scales.insert(weight, scale);
        }
    }
    Ok(scales)
}
