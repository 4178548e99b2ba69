//! INT8 and INT4: two's complement integers of 8 and 4 bits.
//!
//! Round to nearest even, saturate at both ends of the range (`-128..=127`, `-8..=7`). NaN has no code of its own and
//! becomes 0, as does negative zero.

/// Largest INT8.
pub const INT8_MAX: f32 = 127.0;
/// Smallest INT8.
pub const INT8_MIN: f32 = -128.0;
/// Largest INT4.
pub const INT4_MAX: f32 = 7.0;
/// Smallest INT4.
pub const INT4_MIN: f32 = -8.0;

/// The INT8 code nearest to `x`.
#[inline]
#[must_use]
pub fn encode_int8(x: f32) -> u8 {
    nearest(x, INT8_MIN, INT8_MAX) as u8
}

/// The value of an INT8 code.
#[inline]
#[must_use]
pub const fn decode_int8(code: u8) -> f32 {
    (code as i8) as f32
}

/// The INT4 code nearest to `x`, in the low four bits.
#[inline]
#[must_use]
pub fn encode_int4(x: f32) -> u8 {
    nearest(x, INT4_MIN, INT4_MAX) as u8 & 0xF
}

/// The value of the INT4 code in the low four bits; the others are ignored.
#[inline]
#[must_use]
pub const fn decode_int4(code: u8) -> f32 {
    (((code << 4) as i8) >> 4) as f32
}

/// Clamped first: both ends are integers, so the order makes no difference, and the conversion cannot overflow.
#[inline]
fn nearest(x: f32, smallest: f32, largest: f32) -> i8 {
    // A NaN survives the clamp and the cast makes it 0.
    x.clamp(smallest, largest).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_nearest_to_its_own_value() {
        for code in 0..=255_u8 {
            assert_eq!(encode_int8(decode_int8(code)), code);
            assert_eq!(decode_int4(code), decode_int4(code & 0xF));
        }
        for code in 0..16_u8 {
            assert_eq!(encode_int4(decode_int4(code)), code);
        }
        assert_eq!((decode_int4(0x7), decode_int4(0x8), decode_int4(0xF)), (7.0, -8.0, -1.0));
    }

    #[test]
    fn ties_go_to_even_and_both_ends_saturate() {
        for (x, int8, int4) in [
            (0.5, 0, 0),
            (-0.5, 0, 0),
            (1.5, 2, 2),
            (-2.5, -2, -2),
            (6.5, 6, 6),
            (7.5, 8, 7),
            (-8.5, -8, -8),
            (126.5, 126, 7),
            (127.5, 127, 7),
            (-127.5, -128, -8),
            (f32::INFINITY, 127, 7),
            (f32::NEG_INFINITY, -128, -8),
            (f32::NAN, 0, 0),
            (-0.0, 0, 0),
        ] {
            assert_eq!(decode_int8(encode_int8(x)), int8 as f32, "{x}");
            assert_eq!(decode_int4(encode_int4(x)), int4 as f32, "{x}");
        }
    }
}
