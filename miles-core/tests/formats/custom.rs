//! A user's own format, as a value behind the trait.

use std::sync::Arc;

use miles_core::format::{
    BlockScales, FormatError, FormatId, FormatRule, QuantizeSpec, QuantizedParts, QuantizedTensor, ScaleKind, Source,
    SourceDtype, TensorLayout, builtin_rules,
};

/// One signed byte per element and one `f32` scale per row.
struct Int8PerRow;

impl FormatRule for Int8PerRow {
    fn id(&self) -> FormatId {
        FormatId::new("int8-row").unwrap()
    }

    fn layout(&self, rows: usize, cols: usize, _: &QuantizeSpec) -> Result<TensorLayout, FormatError> {
        Ok(TensorLayout {
            codes_bytes: rows * cols,
            scale_kind: ScaleKind::F32,
            scale_rows: rows,
            scale_cols: 1,
            outer_len: 0,
            amax_len: 0,
        })
    }

    fn quantize(&self, source: &Source<'_>, spec: &QuantizeSpec) -> Result<QuantizedTensor, FormatError> {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for row in source.values().chunks(source.cols()) {
            let scale = row.iter().fold(0.0_f32, |a, b| a.max(b.abs())) / 127.0;
            scales.push(scale);
            codes.extend(row.iter().map(|x| (x / scale).round() as i8 as u8));
        }
        let parts = QuantizedParts::new(source, spec, codes, BlockScales::F32(scales));
        QuantizedTensor::from_parts(self, source.name(), parts)
    }

    fn quantize_joint(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>, FormatError> {
        sources.iter().map(|source| self.quantize(source, spec)).collect()
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>, FormatError> {
        let scales = tensor.scales().as_f32().unwrap();
        let rows = tensor.codes().chunks(tensor.cols()).zip(scales);
        Ok(rows.flat_map(|(row, scale)| row.iter().map(move |&code| f32::from(code as i8) * scale)).collect())
    }
}

#[test]
fn a_users_rule_works_behind_the_trait_object() {
    let rule: Arc<dyn FormatRule> = Arc::new(Int8PerRow);
    let x = [127.0, -64.0, 254.0, 2.0];
    let source = Source::new(&x, 2, 2, SourceDtype::F32, Some("w")).unwrap();
    let tensor = rule.quantize(&source, &QuantizeSpec::weight(rule.id())).unwrap();
    assert_eq!(rule.dequantize(&tensor).unwrap(), x);
    let error = tensor.dequantize_f32().unwrap_err();
    let known: Vec<FormatId> = builtin_rules().map(FormatRule::id).collect();
    assert!(known.starts_with(&[FormatId::nvfp4()]) && known.contains(&FormatId::fp8_block_pow2()), "{known:?}");
    let listed = known.iter().map(FormatId::as_str).collect::<Vec<_>>().join(", ");
    assert_eq!(error.to_string(), format!("format int8-row is not built in (built in: {listed})"));
    assert_eq!(error, FormatError::UnknownFormat { format: rule.id(), known });
}
