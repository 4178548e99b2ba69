//! Plug-ins of miles from outside: a format, a quantizer, a reward and a scheduler, with `miles-core` as the only
//! dependency. `tests/` holds them to the conformance suite.

mod format;
mod quantizer;
mod reward;
mod scheduler;

pub use format::Int8Blocks;
pub use quantizer::Wrapper;
pub use reward::Shortness;
pub use scheduler::InOrder;
