//! The panels of a packed weight.

use std::ops::Range;

use super::Isa;
use super::pack::{FP8_BLOCK, MXFP8_BLOCK, PackedWeight, Store};
use super::panel::{Bf16Panel, F32Panel, Fp8BlockPanel, Line, Mxfp8Panel, PanelSource, fill};
use super::split::PANEL;

impl PanelSource for PackedWeight {
    fn fill(&self, isa: Isa, panel: usize, k: Range<usize>, lines: &mut [Line]) {
        let k_len = self.k();
        match &self.store {
            Store::F32(all) => fill(isa, F32Panel(&all[panel * k_len..(panel + 1) * k_len]), k, lines),
            Store::Bf16(codes) => fill(isa, Bf16Panel(&codes[panel * k_len..(panel + 1) * k_len]), k, lines),
            Store::Mxfp8 { codes, scales, extreme } if extreme[panel] => {
                fill(isa, mxfp8_panel::<true>(codes, scales, k_len, panel), k, lines);
            }
            Store::Mxfp8 { codes, scales, .. } => {
                fill(isa, mxfp8_panel::<false>(codes, scales, k_len, panel), k, lines)
            }
            Store::Nvfp4 { .. } | Store::Fp8Block { .. } => no_common_product(),
        }
    }
}

/// One panel of an MXFP8 weight.
#[inline(always)]
pub(crate) fn mxfp8_panel<'a, const EXTREME: bool>(
    codes: &'a [[u8; PANEL]],
    scales: &'a [[u8; PANEL]],
    k: usize,
    panel: usize,
) -> Mxfp8Panel<'a, EXTREME> {
    let blocks = k.div_ceil(MXFP8_BLOCK);
    Mxfp8Panel { codes: &codes[panel * k..(panel + 1) * k], scales: &scales[panel * blocks..(panel + 1) * blocks] }
}

/// One panel of a block-FP8 weight.
#[inline(always)]
pub(crate) fn fp8_panel<'a, const EXTREME: bool>(
    codes: &'a [[u8; PANEL]],
    scales: &'a [Line],
    k: usize,
    panel: usize,
) -> Fp8BlockPanel<'a, EXTREME> {
    let blocks = k.div_ceil(FP8_BLOCK);
    Fp8BlockPanel { codes: &codes[panel * k..(panel + 1) * k], scales: &scales[panel * blocks..(panel + 1) * blocks] }
}

/// Refuses a pair of formats.
#[cold]
#[inline(never)]
pub(crate) fn no_common_product() -> ! {
    panic!("activations and weight are of formats that have no common product")
}
