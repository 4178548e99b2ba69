//! Limits on what files may claim, checked before anything of the claimed size is allocated.
//!
//! They are far above every published model; a file beyond one of them is damaged or hostile.

/// Largest `config.json`, `generation_config.json` or shard index that is read, in bytes.
pub const MAX_JSON_BYTES: u64 = 64 << 20;

/// Largest safetensors header, in bytes (the figure of the safetensors library).
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most tensors of one checkpoint, packed experts counted one by one.
pub const MAX_TENSORS: usize = 1 << 21;

/// Most dimensions of one tensor.
pub const MAX_RANK: usize = 8;

/// Largest extent of one dimension that a `config.json` may give (widths, vocabulary, heads, experts, tokens).
pub const MAX_EXTENT: usize = 1 << 28;

/// Most layers of one model.
pub const MAX_LAYERS: usize = 1 << 14;
