//! Training objectives over sampled tokens.

mod clipped;
mod cross_entropy;
mod denominator;

pub use clipped::Clipped;
pub use cross_entropy::CrossEntropy;
pub use denominator::Denominator;

#[cfg(test)]
mod tests;
