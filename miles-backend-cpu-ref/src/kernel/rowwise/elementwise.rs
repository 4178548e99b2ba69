//! Sums and the rounding to BF16.

use crate::kernel::Isa;
use crate::kernel::decode::bf16;
use crate::kernel::pack::check;

/// `sum[i] += addend[i]`.
///
/// # Panics
/// When the lengths differ.
pub fn add_in_place(isa: Isa, sum: &mut [f32], addend: &[f32]) {
    check("addend", addend.len(), sum.len());
    isa.run(
        #[inline(always)]
        || add(sum, addend),
    );
}

/// `rows[r, c] += bias[c]` for `[rows, cols]`.
///
/// # Panics
/// When `rows` is not a whole number of rows.
pub fn add_bias_in_place(isa: Isa, rows: &mut [f32], bias: &[f32]) {
    if bias.is_empty() {
        return check("rows", rows.len(), 0);
    }
    check("last row", rows.len() % bias.len(), 0);
    for row in rows.chunks_exact_mut(bias.len()) {
        isa.run(
            #[inline(always)]
            || add(row, bias),
        );
    }
}

#[inline(always)]
fn add(sum: &mut [f32], addend: &[f32]) {
    for (sum, &addend) in sum.iter_mut().zip(addend) {
        *sum += addend;
    }
}

/// Rounds every value to the nearest BF16, ties to even, still held as `f32`; NaN stays (quiet) NaN.
pub fn round_bf16_in_place(isa: Isa, values: &mut [f32]) {
    isa.run(
        #[inline(always)]
        || values.iter_mut().for_each(|value| *value = bf16(bf16_bits(*value))),
    );
}

/// Rounds to BF16 bits, for a BF16 key/value history.
///
/// # Panics
/// When the lengths differ.
pub fn to_bf16(isa: Isa, values: &[f32], bits: &mut [u16]) {
    check("BF16 bits", bits.len(), values.len());
    isa.run(
        #[inline(always)]
        || bits.iter_mut().zip(values).for_each(|(bits, &value)| *bits = bf16_bits(value)),
    );
}

/// The nearest BF16, ties to even; overflow gives infinity, NaN a quiet NaN of the same sign.
#[inline(always)]
#[must_use]
pub fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x0040;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{assert_same_bits, isas, numbers};

    #[test]
    fn rounding_takes_the_nearest_bf16_and_the_even_one_in_a_tie() {
        // All high halves with the low halves around a tie: the neighbours are high and high + 1.
        for high in 0..=u16::MAX {
            for low in [0u32, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let got = bf16_bits(value);
                if value.is_nan() {
                    assert!(bf16(got).is_nan());
                } else {
                    let up = low > 0x8000 || low == 0x8000 && high & 1 == 1;
                    assert_eq!(got, high + u16::from(up), "{value:e}");
                }
            }
        }
    }

    #[test]
    fn both_instruction_sets_round_and_add_alike() {
        let values = numbers(5, 1003);
        let mut bits = vec![0; values.len()];
        to_bf16(isas()[0], &values, &mut bits);
        let want: Vec<f32> = bits.iter().map(|&b| bf16(b)).collect();
        for isa in isas() {
            let mut rounded = values.clone();
            round_bf16_in_place(isa, &mut rounded);
            assert_same_bits(&want, &rounded, "round");
            let mut sum = values[..1000].to_vec();
            add_bias_in_place(isa, &mut sum, &values[..10]);
            assert!(sum.iter().enumerate().all(|(i, &s)| s == values[i] + values[i % 10]));
            let mut sum = values.clone();
            add_in_place(isa, &mut sum, &values);
            assert!(sum.iter().zip(&values).all(|(&s, &v)| s == 2.0 * v));
        }
    }
}
