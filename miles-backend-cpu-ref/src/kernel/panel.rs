//! Sixteen output columns of a packed weight, in the forms a chain over k can read.
//!
//! A panel is k-major: for each k the codes of its 16 columns lie side by side, so one step of the contraction is one
//! vector load, one decode and one FMA per row. Codes stay codes in memory and are decoded in registers.

use std::ops::Range;

use super::Isa;
use super::decode::{E4M3_LIFT, bf16, e4m3_is_nan, e4m3_low, e8m0, power_of_two};
use super::split::PANEL;

/// One value per column of a panel, on its own cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [f32; PANEL]);

impl Line {
    /// All +0.
    pub const ZERO: Line = Line([0.0; PANEL]);
}

/// A panel of codes that decode one by one.
pub(crate) trait Panel: Copy {
    /// The codes of the 16 columns at one k.
    type Codes: Copy;
    /// Consecutive k that share a scale.
    const BLOCK: usize;
    /// Whether each block is a chain of its own from +0, promoted by `acc = fma(2 partial, RN(s_x * s_w), acc)`; otherwise
    /// scales belong to the decoded value and the chain runs through.
    const PROMOTED: bool;

    /// All codes, `[k]`.
    fn codes(&self) -> &[Self::Codes];
    /// The scales of a block; their meaning is the type's own, see `decode` and `PROMOTED`.
    fn scales(&self, block: usize) -> [f32; PANEL];
    /// The values at one k.
    fn decode(codes: &Self::Codes, scales: &[f32; PANEL]) -> [f32; PANEL];
}

/// Something that can write any k range of any panel as plain values.
pub(crate) trait PanelSource: Sync {
    /// Writes values for `k` of `panel`; columns beyond the matrix are +0. `lines` has one line per k.
    fn fill(&self, isa: Isa, panel: usize, k: Range<usize>, lines: &mut [Line]);
}

/// Decodes `k` of a panel. The range starts at a multiple of the block length.
#[inline(never)]
pub(crate) fn fill<P: Panel>(isa: Isa, panel: P, k: Range<usize>, lines: &mut [Line]) {
    isa.run(
        #[inline(always)]
        || fill_body(panel, k, lines),
    );
}

#[inline(always)]
fn fill_body<P: Panel>(panel: P, k: Range<usize>, lines: &mut [Line]) {
    let codes = &panel.codes()[k.clone()];
    for (i, (codes, lines)) in codes.chunks(P::BLOCK).zip(lines.chunks_mut(P::BLOCK)).enumerate() {
        let scales = panel.scales(k.start / P::BLOCK + i);
        for (codes, line) in codes.iter().zip(lines) {
            line.0 = P::decode(codes, &scales);
        }
    }
}

/// FP32 values.
#[derive(Clone, Copy)]
pub(crate) struct F32Panel<'a>(pub &'a [Line]);

impl Panel for F32Panel<'_> {
    type Codes = Line;
    const BLOCK: usize = usize::MAX;
    const PROMOTED: bool = false;

    #[inline(always)]
    fn codes(&self) -> &[Line] {
        self.0
    }
    #[inline(always)]
    fn scales(&self, _block: usize) -> [f32; PANEL] {
        [0.0; PANEL]
    }
    #[inline(always)]
    fn decode(codes: &Line, _scales: &[f32; PANEL]) -> [f32; PANEL] {
        codes.0
    }
}

/// BF16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Panel<'a>(pub &'a [[u16; PANEL]]);

impl Panel for Bf16Panel<'_> {
    type Codes = [u16; PANEL];
    const BLOCK: usize = usize::MAX;
    const PROMOTED: bool = false;

    #[inline(always)]
    fn codes(&self) -> &[[u16; PANEL]] {
        self.0
    }
    #[inline(always)]
    fn scales(&self, _block: usize) -> [f32; PANEL] {
        [0.0; PANEL]
    }
    #[inline(always)]
    fn decode(codes: &[u16; PANEL], _scales: &[f32; PANEL]) -> [f32; PANEL] {
        let mut values = [0.0; PANEL];
        for j in 0..PANEL {
            values[j] = bf16(codes[j]);
        }
        values
    }
}

/// E4M3 codes with an E8M0 scale per 32 k and column.
///
/// `EXTREME` panels hold a NaN code or a scale above 2⁷; the others decode by a single multiplication with 2^(E-7), exact
/// because the code reads as its value times 2⁻¹²⁰.
#[derive(Clone, Copy)]
pub(crate) struct Mxfp8Panel<'a, const EXTREME: bool> {
    pub codes: &'a [[u8; PANEL]],
    pub scales: &'a [[u8; PANEL]],
}

/// Largest E8M0 code that a panel decoded by one multiplication may hold.
pub(crate) const MXFP8_LARGEST_PLAIN_SCALE: u8 = 134;

impl<const EXTREME: bool> Panel for Mxfp8Panel<'_, EXTREME> {
    type Codes = [u8; PANEL];
    const BLOCK: usize = 32;
    const PROMOTED: bool = false;

    #[inline(always)]
    fn codes(&self) -> &[[u8; PANEL]] {
        self.codes
    }
    #[inline(always)]
    fn scales(&self, block: usize) -> [f32; PANEL] {
        self.scales[block].map(|code| if EXTREME { e8m0(code) } else { f32::from_bits((u32::from(code) + 120) << 23) })
    }
    #[inline(always)]
    fn decode(codes: &[u8; PANEL], scales: &[f32; PANEL]) -> [f32; PANEL] {
        let mut values = [0.0; PANEL];
        for j in 0..PANEL {
            values[j] =
                if EXTREME { e4m3_or_nan(codes[j], E4M3_LIFT) * scales[j] } else { e4m3_low(codes[j]) * scales[j] };
        }
        values
    }
}

/// E4M3 codes with an FP32 scale per 128 k and column.
///
/// Decodes to the value times 2⁻¹²⁰; the activation values carry 2¹¹⁹ ([`FP8_ROW_LIFT`]), so each partial chain is exactly half of
/// what it stands for and its promotion doubles it.
/// `EXTREME` panels hold a NaN code.
#[derive(Clone, Copy)]
pub(crate) struct Fp8BlockPanel<'a, const EXTREME: bool> {
    pub codes: &'a [[u8; PANEL]],
    pub scales: &'a [Line],
}

/// Factor of the activation values of a promoted product: the largest power of two that keeps 448 finite.
pub(crate) const FP8_ROW_LIFT: f32 = power_of_two(119);

impl<const EXTREME: bool> Panel for Fp8BlockPanel<'_, EXTREME> {
    type Codes = [u8; PANEL];
    const BLOCK: usize = 128;
    const PROMOTED: bool = true;

    #[inline(always)]
    fn codes(&self) -> &[[u8; PANEL]] {
        self.codes
    }
    #[inline(always)]
    fn scales(&self, block: usize) -> [f32; PANEL] {
        self.scales[block].0
    }
    #[inline(always)]
    fn decode(codes: &[u8; PANEL], _scales: &[f32; PANEL]) -> [f32; PANEL] {
        let mut values = [0.0; PANEL];
        for j in 0..PANEL {
            values[j] = if EXTREME { e4m3_or_nan(codes[j], 1.0) } else { e4m3_low(codes[j]) };
        }
        values
    }
}

#[inline(always)]
fn e4m3_or_nan(code: u8, factor: f32) -> f32 {
    if e4m3_is_nan(code) { f32::NAN } else { e4m3_low(code) * factor }
}
