//! Rewards that need nothing but the completion's text and the expected answer.

mod arithmetic;
mod exact_match;
mod number;

pub use arithmetic::{Arithmetic, BadAnswer};
pub use exact_match::ExactMatch;
pub use number::Number;
