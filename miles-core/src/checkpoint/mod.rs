//! Hugging Face checkpoint directories.

/// What can go wrong with checkpoints.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {}
