//! Bands of rows in parallel, each through its rule: the built-in formats that have no kernel.
//!
//! Where a rule treats bands of rows apart ([`band_rows`]) the joined bands have the bytes of the whole.

use miles_core::format::{
    BlockScales, FormatError, FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, Source, band_rows,
};
use rayon::prelude::*;

use crate::kernel::Compute;

/// One tensor by `rule`, in bands where that gives the same bytes.
///
/// # Errors
/// What the rule reports.
pub(super) fn quantize(
    compute: &Compute,
    rule: &dyn FormatRule,
    source: &Source<'_>,
    spec: &QuantizeSpec,
) -> Result<QuantizedTensor, FormatError> {
    let whole = || rule.quantize(source, spec);
    let Some(band_rows) = band_rows(spec) else { return whole() };
    let rows_per_task = (BAND_ELEMENTS / source.cols().max(1)).next_multiple_of(band_rows).max(band_rows);
    if source.rows() <= rows_per_task || source.cols() == 0 || compute.threads() == 1 {
        return whole();
    }
    match quantize_bands(compute, rule, source, spec, rows_per_task) {
        Ok(tensor) => Ok(tensor),
        // A band's error counts rows from the band's start; the whole tensor names the right one.
        Err(_) => whole(),
    }
}

fn quantize_bands(
    compute: &Compute,
    rule: &dyn FormatRule,
    source: &Source<'_>,
    spec: &QuantizeSpec,
    rows_per_task: usize,
) -> Result<QuantizedTensor, FormatError> {
    let quantize_band = |band: usize| {
        let first = band * rows_per_task;
        rule.quantize(&source.row_range(first..source.rows().min(first + rows_per_task)), spec)
    };
    let bands = 0..source.rows().div_ceil(rows_per_task);
    let bands: Vec<QuantizedTensor> =
        compute.pool().install(|| bands.into_par_iter().map(quantize_band).collect::<Result<_, FormatError>>())?;
    QuantizedTensor::from_parts(rule, source.name(), join(source, spec, &bands))
}

/// The parts of consecutive row bands, one after the other: every part is row-major on the row axis.
fn join(source: &Source<'_>, spec: &QuantizeSpec, bands: &[QuantizedTensor]) -> QuantizedParts {
    // `concat` allocates what it needs: these vectors live as long as the policy version.
    let bytes = |part: fn(&QuantizedTensor) -> &[u8]| bands.iter().map(part).collect::<Vec<_>>().concat();
    let floats = |part: fn(&QuantizedTensor) -> &[f32]| bands.iter().map(part).collect::<Vec<_>>().concat();
    let scales = match bands.first().map(QuantizedTensor::scales) {
        Some(BlockScales::F32(_)) => BlockScales::F32(floats(|band| band.scales().as_f32().unwrap_or_default())),
        _ => BlockScales::U8(bytes(|band| band.scales().as_u8().unwrap_or_default())),
    };
    QuantizedParts {
        outer: floats(QuantizedTensor::outer),
        amax: floats(QuantizedTensor::amax),
        ..QuantizedParts::new(source, spec, bytes(QuantizedTensor::codes), scales)
    }
}

/// Elements worth a task of their own.
const BAND_ELEMENTS: usize = 64 * 1024;
