//! Orders of work.

mod synchronous;

pub use synchronous::Synchronous;
