//! Words and contracts of miles.
pub mod format;
pub mod number;
