//! [`Request`]: a format and a spec, chosen by fuzz bytes; and the values to go with it.

use arbitrary::Arbitrary;
use miles_core::format::nvfp4::combinations;
use miles_core::format::{
    Axis, Cut, FormatError, FormatRule, NonFinite, Operand, Partition, QuantizeSpec, ScaleScope, builtin_rules,
};

/// What to quantize to, and how.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub struct Request {
    format: u8,
    /// One of the combinations of variants, in place of `format`.
    combination: Option<u16>,
    is_weight: bool,
    by_column: bool,
    scope: u8,
    takes_non_finite: bool,
    partition: Option<(bool, u16, Option<u16>)>,
}

impl Request {
    /// One of the built-in rules or combinations of variants.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn rule(&self) -> &'static dyn FormatRule {
        if let Some(combination) = self.combination {
            return combinations().nth(usize::from(combination) % combinations().count()).unwrap();
        }
        let count = builtin_rules().count();
        builtin_rules().nth(usize::from(self.format) % count).unwrap()
    }

    /// The spec.
    #[must_use]
    pub fn spec(&self) -> QuantizeSpec {
        let format = self.rule().id();
        let spec = if self.is_weight { QuantizeSpec::weight(format) } else { QuantizeSpec::activation(format) };
        spec.with_axis(if self.by_column { Axis::Column } else { Axis::Row })
            .with_scope(SCOPES[usize::from(self.scope) % SCOPES.len()])
            .with_non_finite(if self.takes_non_finite { NonFinite::Hardware } else { NonFinite::Error })
            .with_partition(self.partition())
    }

    /// Whether a line of the tensor is quantized without regard to the others, blocks running along a row.
    #[must_use]
    pub fn rows_are_independent(&self) -> bool {
        let spec = self.spec();
        let is_per_row = (spec.operand, spec.axis, spec.scope) == (Operand::Activation, Axis::Row, ScaleScope::Row);
        is_per_row && spec.partition.is_whole()
    }

    fn partition(&self) -> Partition {
        let Some((by_rows, shards, shard)) = self.partition else { return Partition::WHOLE };
        // Mostly cuts that a tensor of this size can have.
        let shards = if shards % 8 == 7 { shards } else { shards % 8 };
        let Ok(whole) = Partition::new(if by_rows { Cut::Rows } else { Cut::Cols }, shards) else {
            return Partition::WHOLE;
        };
        shard.map_or(whole, |shard| whole.shard(shard % shards).unwrap())
    }
}

const SCOPES: [ScaleScope; 5] =
    [ScaleScope::Row, ScaleScope::Tensor, ScaleScope::Block, ScaleScope::Group, ScaleScope::Expert];

/// Whether a format that holds other tensors may say this of a shape and a spec.
#[must_use]
pub fn refuses_request(error: &FormatError) -> bool {
    matches!(
        error,
        FormatError::OddLength { .. }
            | FormatError::PartialBlock { .. }
            | FormatError::UnevenShards { .. }
            | FormatError::Scope { .. }
    )
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
