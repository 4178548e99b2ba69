//! Rounding results and backward operands to the activation type.

use miles_core::plugin::ActivationDtype;

use crate::kernel::Compute;
use crate::kernel::rowwise::elementwise::round_bf16_in_place;

/// Rounds to BF16 (nearest even, held as f32) in a BF16 run; leaves an F32 run's values alone.
pub fn round_to(dtype: ActivationDtype, compute: &Compute, values: &mut [f32]) {
    if dtype == ActivationDtype::Bf16 {
        round_to_bf16(compute, values);
    }
}

/// Rounds to BF16, nearest even, held as f32.
pub(crate) fn round_to_bf16(compute: &Compute, values: &mut [f32]) {
    compute.for_row_pieces(values, 1, |_, piece| round_bf16_in_place(compute.isa(), piece));
}
