//! The loop as a whole, on a small deterministic backend: a softmax over a decayed sum of token embeddings, with exact
//! gradients. It learns, it is batch-invariant, and every fault that the loop must notice can be built into it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc, missing_docs, reason = "tests")]

mod damaged_logs;
mod ending;
mod fake;
mod learning;
mod plug_ins;
mod resume;
mod setup;
mod tokens;
