//! [`OuterScale`]: what blocks need to know about their row or tensor.

use super::{Nvfp4, ZeroScale};
use crate::format::ScaleScope;

/// The outer scale of one row or tensor: everything that blocks need to know about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterScale {
    amax: f32,
    encode: f32,
    multiplier: f32,
    decode: f32,
}

impl OuterScale {
    /// The scale of the default format for values whose largest magnitude is `amax`.
    #[must_use]
    pub fn from_amax(amax: f32) -> Self {
        Self::to_product(amax, Nvfp4::DEFAULT.largest_product())
    }

    /// The scale that takes `amax` to `largest_product` ([`Nvfp4::largest_product`]).
    #[must_use]
    pub fn to_product(amax: f32, largest_product: f32) -> Self {
        let quotient = (largest_product / amax).min(f32::MAX);
        let encode = if amax == 0.0 || quotient == 0.0 { 1.0 } else { quotient };
        Self { amax, encode, multiplier: encode * SIXTH, decode: 1.0 / encode }
    }

    /// The largest magnitude.
    #[must_use]
    pub const fn amax(&self) -> f32 {
        self.amax
    }

    /// The encode scale S_enc.
    #[must_use]
    pub const fn encode(&self) -> f32 {
        self.encode
    }

    /// S_enc times 1/6, the factor from a block's amax to its scale.
    #[must_use]
    pub const fn multiplier(&self) -> f32 {
        self.multiplier
    }

    /// The decode scale S_dec that the arithmetic uses.
    #[must_use]
    pub const fn decode(&self) -> f32 {
        self.decode
    }

    /// The decode scale that is stored for one row: 0 for a row of zeros.
    #[must_use]
    pub const fn row_decode(&self) -> f32 {
        self.stored(ZeroScale::Zero, ScaleScope::Row)
    }

    /// The decode scale that is stored for a whole tensor: `1 / f32::MAX` for a tensor of zeros.
    #[must_use]
    pub const fn tensor_decode(&self) -> f32 {
        self.stored(ZeroScale::Smallest, ScaleScope::Tensor)
    }

    /// The decode scale that is stored under a policy for zeros.
    #[must_use]
    pub const fn stored(&self, zero: ZeroScale, scope: ScaleScope) -> f32 {
        match (zero, scope) {
            _ if self.amax != 0.0 => self.decode,
            (ZeroScale::Zero, _) | (ZeroScale::ByScope, ScaleScope::Row) => 0.0,
            _ => 1.0 / f32::MAX,
        }
    }
}

const SIXTH: f32 = f32::from_bits(0x3E2A_AAAB);
