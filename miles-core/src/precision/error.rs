//! What can go wrong with precision rules.

/// What can go wrong with precision rules.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrecisionError {}
