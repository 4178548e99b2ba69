//! [`Nvfp4`]: one NVFP4 variant as a value made of choices.

use super::{FourOverSix, Hadamard, LargestScale};
use crate::format::FormatError;

/// An NVFP4 rule: the default arithmetic, or a variant that differs from it in the choices it was built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Nvfp4 {
    pub(super) scale_rule: ScaleRule,
    pub(super) tile: Tile,
    pub(super) rounding: Rounding,
    pub(super) hadamard: Option<Hadamard>,
    pub(super) decode_order: DecodeOrder,
    pub(super) zero_scale: ZeroScale,
}

/// How the amax of a block becomes its E4M3 scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleRule {
    /// `amax_b * (S_enc * (1/6))`: TransformerEngine from 2.14 on.
    #[default]
    ReciprocalOfSix,
    /// `(amax_b / 6) * S_enc`: TransformerEngine 2.9 to 2.13.
    DivisionBySix,
    /// The better of two scales.
    FourOverSix(FourOverSix),
}

/// The extent of one block scale of a weight. Activations always have 1x16 blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tile {
    /// 16 values along the line.
    #[default]
    Line,
    /// 16x16 values, so that the column copy is the transpose of the row copy.
    Square,
}

/// How a value times its encode scale becomes an E2M1 code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Rounding {
    /// As hardware converts: to the nearest even code, -0 to code 8, NaN to code 7.
    #[default]
    Nearest,
    /// As the published Python references: as [`Nearest`](Self::Nearest), but code 0 for -0 and for NaN.
    ///
    /// Those references also let a NaN through the amax and so write NaN scales. No rule here does: a NaN is ignored by
    /// the amax whatever the rounding, so codes are equal wherever their scale is a number. They encode an all-zero
    /// tensor with S_enc = `f32::MAX`; codes and block scales are 0 either way.
    PositiveZero,
    /// Up or down by 8 random bits per element, see [`e2m1::encode_stochastic`](crate::number::e2m1::encode_stochastic).
    ///
    /// The bits are a function of (seed, line, element) alone: of no thread, band or call order. Hardware and other
    /// libraries draw theirs by kernel tiling, so bytes are comparable with nobody's; the rule per element is.
    /// Equal (line, element) get equal bits in every tensor: give each tensor and step of a gradient a seed of its own.
    /// A row's bytes depend on its number, so this is no rounding for activations of a batch-invariant forward pass:
    /// see [`Nvfp4::for_activations`].
    Stochastic {
        /// Key of the random bits.
        seed: u64,
    },
}

/// The order of the two multiplications that decode a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DecodeOrder {
    /// `code * ((s * A) * (1/2688))`: TransformerEngine.
    #[default]
    Amax,
    /// `(code * s) * S_dec`: FlashInfer and SGLang.
    Scale,
}

/// The stored outer scale of a row or tensor of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ZeroScale {
    /// 0 for a row, `1 / f32::MAX` for a tensor.
    #[default]
    ByScope,
    /// 0.
    Zero,
    /// `1 / f32::MAX`.
    Smallest,
}

impl Nvfp4 {
    /// The format `nvfp4`.
    pub const DEFAULT: Self = Self {
        scale_rule: ScaleRule::ReciprocalOfSix,
        tile: Tile::Line,
        rounding: Rounding::Nearest,
        hadamard: None,
        decode_order: DecodeOrder::Amax,
        zero_scale: ZeroScale::ByScope,
    };

    /// The same with another rule for block scales.
    ///
    /// # Errors
    /// [`FormatError::Conflict`] when that contradicts a choice made before.
    pub fn with_scale_rule(self, scale_rule: ScaleRule) -> Result<Self, FormatError> {
        Self { scale_rule, ..self }.checked()
    }

    /// The same with another extent of a weight's block scales.
    ///
    /// # Errors
    /// [`FormatError::Conflict`] when that contradicts a choice made before.
    pub fn with_tile(self, tile: Tile) -> Result<Self, FormatError> {
        Self { tile, ..self }.checked()
    }

    /// The same with another rounding of elements.
    ///
    /// # Errors
    /// [`FormatError::Conflict`] when that contradicts a choice made before.
    pub fn with_rounding(self, rounding: Rounding) -> Result<Self, FormatError> {
        Self { rounding, ..self }.checked()
    }

    /// The same on rotated values, or not (`None`).
    ///
    /// # Errors
    /// [`FormatError::Conflict`] when that contradicts a choice made before.
    pub fn with_hadamard(self, hadamard: Option<Hadamard>) -> Result<Self, FormatError> {
        Self { hadamard, ..self }.checked()
    }

    /// The same with another order of decoding.
    #[must_use]
    pub const fn with_decode_order(self, decode_order: DecodeOrder) -> Self {
        Self { decode_order, ..self }
    }

    /// The same with another stored outer scale for zeros.
    #[must_use]
    pub const fn with_zero_scale(self, zero_scale: ZeroScale) -> Self {
        Self { zero_scale, ..self }
    }

    /// The rule for block scales.
    #[must_use]
    pub const fn scale_rule(&self) -> ScaleRule {
        self.scale_rule
    }

    /// The extent of a weight's block scales.
    #[must_use]
    pub const fn tile(&self) -> Tile {
        self.tile
    }

    /// The rounding of elements.
    #[must_use]
    pub const fn rounding(&self) -> Rounding {
        self.rounding
    }

    /// The rotation before quantization.
    #[must_use]
    pub const fn hadamard(&self) -> Option<Hadamard> {
        self.hadamard
    }

    /// The order of decoding.
    #[must_use]
    pub const fn decode_order(&self) -> DecodeOrder {
        self.decode_order
    }

    /// The stored outer scale for zeros.
    #[must_use]
    pub const fn zero_scale(&self) -> ZeroScale {
        self.zero_scale
    }

    /// The largest code times the largest block scale: the amax is scaled to it.
    #[must_use]
    pub const fn largest_product(&self) -> f32 {
        match self.scale_rule {
            ScaleRule::FourOverSix(FourOverSix { largest_scale: LargestScale::At256, .. }) => 1536.0,
            _ => 2688.0,
        }
    }

    /// The rule of the activations that a weight of this rule multiplies in a forward pass: the same, but never
    /// stochastic, because the bytes of a token would depend on its place in the batch.
    #[must_use]
    pub const fn for_activations(self) -> Self {
        match self.rounding {
            Rounding::Stochastic { .. } => Self { rounding: Rounding::Nearest, ..self },
            Rounding::Nearest | Rounding::PositiveZero => self,
        }
    }

    /// Why these choices cannot be one format.
    pub(super) const fn conflict(&self) -> Option<&'static str> {
        match (self.scale_rule, self.tile, self.rounding, self.hadamard) {
            (ScaleRule::FourOverSix(_), _, Rounding::Stochastic { .. }, _) => {
                Some("four-over-six compares the errors of rounding to nearest, which stochastic rounding does not do")
            }
            (_, Tile::Square, Rounding::Stochastic { .. }, _) => {
                Some("16x16 blocks promise a column copy equal to the transpose; stochastic rounding draws by line")
            }
            (_, Tile::Square, _, Some(_)) => {
                Some("16x16 blocks promise a column copy equal to the transpose; a rotation runs along one axis")
            }
            _ => None,
        }
    }

    fn checked(self) -> Result<Self, FormatError> {
        match self.conflict() {
            None => Ok(self),
            Some(why) => Err(FormatError::Conflict { format: self.name(), why }),
        }
    }
}
