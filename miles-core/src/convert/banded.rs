//! A matrix that is quantized band by band, never held whole. Its bytes and its digest are those of the whole.

use super::error::ConvertError;
use super::files::OutputFiles;
use super::plan::Output;
use super::stream;
use crate::Result;
use crate::checkpoint::layout::part_bytes;
use crate::checkpoint::{CheckpointError, StoredModel};
use crate::digest::Digest;
use crate::format::{BandedDigest, QuantizedTensor, Source, builtin_rule};
use crate::network::ParamId;
use crate::plugin::Quantizer;
use crate::policy::PolicyError;
use crate::precision::PrecisionMap;
use crate::tensor::Dtype;

/// Makes and writes one parameter in bands of `band_rows` rows, into `outputs`.
pub(super) fn parameter(
    model: &StoredModel,
    map: &PrecisionMap,
    quantizer: &dyn Quantizer,
    (id, band_rows): (ParamId, usize),
    files: &OutputFiles,
    outputs: &[Output],
) -> Result<Digest> {
    let parameter = model.all().parameter(id);
    let (rows, cols) = parameter.rows_cols();
    let no_rule = || PolicyError::TensorMismatch {
        tensor: parameter.name.clone(),
        why: "no built-in format, so that it has no bands".to_owned(),
    };
    let spec = map.weight_spec(id).ok_or_else(no_rule)?;
    let rule = builtin_rule(&spec.format).ok_or_else(no_rule)?;
    let mut digest = BandedDigest::new(&spec, [rows, cols], &rule.layout(rows, cols, &spec)?);
    let mut source = stream::SourceDigest::new(model, id, Dtype::Bf16);
    let mut written = vec![0; outputs.len()];
    for first in (0..rows).step_by(band_rows) {
        let count = band_rows.min(rows - first);
        let band = stream::elements(model, id, Dtype::Bf16, (first * cols, count * cols), &mut source)?;
        let band = Source::bf16(band.as_chunks().0, count, cols, Some(&parameter.name))?;
        // Rows are counted from the start of the band there.
        let placed = |source| ConvertError::Band { first_row: first, source: Box::new(source) };
        let made = quantizer.quantize(&[band], &spec).map_err(placed)?;
        let [made] = made.as_slice() else { return Err(no_rule().into()) };
        write(made, files, outputs, &mut written)?;
        digest.add(made);
    }
    source.check()?;
    Ok(digest.finish())
}

/// Writes the parts of a band behind those of the bands before it.
fn write(
    made: &QuantizedTensor,
    files: &OutputFiles,
    outputs: &[Output],
    written: &mut [u64],
) -> Result<(), CheckpointError> {
    for (output, written) in outputs.iter().zip(written) {
        let Some(part) = &output.part else { continue };
        let bytes = part_bytes(made, part, 0.0);
        files.write(output.shard, output.offset + *written, &bytes)?;
        *written += bytes.len() as u64;
    }
    Ok(())
}
