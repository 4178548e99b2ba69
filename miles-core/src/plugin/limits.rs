//! Limits on the counts that a config or a request may ask for, checked before anything of that size is allocated.
//!
//! They are far above every published run; a number beyond one of them is a mistake.

/// Most worker threads of one backend.
pub const MAX_THREADS: usize = 1024;

/// Most completions of one request: of all its prompts together.
pub const MAX_COMPLETIONS: usize = 1 << 20;
