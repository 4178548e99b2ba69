//! Words and contracts of miles.
pub mod digest;
pub mod format;
pub mod number;
