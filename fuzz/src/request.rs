//! [`Request`]: a format and a spec, chosen by fuzz bytes; and the values to go with it.

use arbitrary::Arbitrary;
use miles_core::format::{Axis, FormatRule, NonFinite, Operand, QuantizeSpec, ScaleScope, builtin_rules};

/// What to quantize to, and how.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub struct Request {
    format: u8,
    is_weight: bool,
    by_column: bool,
    per_line: bool,
    takes_non_finite: bool,
}

impl Request {
    /// One of the built-in rules.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn rule(&self) -> &'static dyn FormatRule {
        let count = builtin_rules().count();
        builtin_rules().nth(usize::from(self.format) % count).unwrap()
    }

    /// The spec.
    #[must_use]
    pub fn spec(&self) -> QuantizeSpec {
        let format = self.rule().id();
        let spec = if self.is_weight { QuantizeSpec::weight(format) } else { QuantizeSpec::activation(format) };
        spec.with_axis(if self.by_column { Axis::Column } else { Axis::Row })
            .with_scope(if self.per_line { ScaleScope::Row } else { ScaleScope::Tensor })
            .with_non_finite(if self.takes_non_finite { NonFinite::Hardware } else { NonFinite::Error })
    }

    /// Whether a line of the tensor is quantized without regard to the others, blocks running along a row.
    #[must_use]
    pub fn rows_are_independent(&self) -> bool {
        let spec = self.spec();
        (spec.operand, spec.axis, spec.scope) == (Operand::Activation, Axis::Row, ScaleScope::Row)
    }
}

/// `count` items: `items` over and over, the default where there is none. So a few bytes of input fill whole tiles.
#[must_use]
pub fn tiled<T: Copy + Default>(items: &[T], count: usize) -> Vec<T> {
    if items.is_empty() { vec![T::default(); count] } else { items.iter().copied().cycle().take(count).collect() }
}

/// Whether two slices hold the same bits, any two NaN being equal.
#[must_use]
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}
