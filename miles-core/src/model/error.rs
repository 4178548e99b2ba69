//! What can go wrong with a model's configuration.

/// What can go wrong with a model's configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {}
