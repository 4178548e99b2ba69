//! The GRPO loop.
