//! Every built-in format on any bit patterns: sizes, scales, digests, independence of rows.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use miles_core::format::layout::{ScaleLayout, canonical_scales, swizzled_scales};
use miles_core::format::{BlockScales, FormatError, NonFinite, QuantizedTensor, Source, SourceDtype};
use miles_core::number::bf16;
use miles_fuzz::{Request, refuses_request, same_bits, tiled};

#[derive(Debug, Arbitrary)]
struct Case {
    request: Request,
    is_bf16: bool,
    rows: u8,
    cols: u16,
    words: Vec<u32>,
}

fuzz_target!(|case: Case| {
    let Case { request, is_bf16, rows, cols, words } = case;
    let (rows, cols) = (usize::from(rows % 140), usize::from(cols % 300));
    let widened = |word: u32| if is_bf16 { bf16::decode(word as u16) } else { f32::from_bits(word) };
    let values: Vec<f32> = tiled(&words, rows * cols).into_iter().map(widened).collect();
    let dtype = if is_bf16 { SourceDtype::Bf16 } else { SourceDtype::F32 };
    let source = Source::new(&values, rows, cols, dtype, Some("t")).unwrap();
    let (rule, spec) = (request.rule(), request.spec());
    let tensor = match rule.quantize(&source, &spec) {
        Ok(tensor) => tensor,
        Err(FormatError::NonFinite { row, column, .. }) => {
            return assert!(spec.non_finite == NonFinite::Error && !values[row * cols + column].is_finite());
        }
        Err(error) if refuses_request(&error) => return assert!(rule.layout(rows, cols, &spec) == Err(error)),
        Err(other) => panic!("{other}"),
    };
    let is_finite = values.iter().all(|x| x.is_finite());
    assert!(spec.non_finite == NonFinite::Hardware || is_finite, "a non-finite value went through");
    assert_eq!(&rule.layout(rows, cols, &spec).unwrap(), tensor.layout());
    assert_eq!(tensor.codes().len(), tensor.layout().codes_bytes);
    assert_eq!(tensor.scales().len(), tensor.scale_rows() * tensor.scale_cols());
    let decoded = rule.dequantize(&tensor).unwrap();
    assert_eq!(decoded.len(), values.len());
    // A rotation mixes the elements of a block.
    let keeps_signs = !rule.id().as_str().contains("hadamard");
    for (index, (x, y)) in values.iter().zip(&decoded).enumerate().filter(|(_, (x, _))| keeps_signs && x.is_finite()) {
        assert!(y.is_nan() || *y == 0.0 || y.is_sign_negative() == x.is_sign_negative(), "{index}: {x:e} became {y:e}");
    }
    if values.iter().all(|x| *x == 0.0) {
        assert!(decoded.iter().all(|y| *y == 0.0), "zeros became something else");
    }
    let again = QuantizedTensor::from_parts(rule, Some("t"), tensor.to_parts()).unwrap();
    assert_eq!(again.digest(), tensor.digest());
    assert_eq!(again.canonical_bytes(), tensor.canonical_bytes());
    check_layouts(&tensor);
    if is_bf16 {
        let words: Vec<[u8; 2]> = values.iter().map(|&x| bf16::encode(x).to_le_bytes()).collect();
        let narrow = Source::bf16(&words, rows, cols, Some("t")).unwrap();
        assert_eq!(rule.quantize(&narrow, &spec).unwrap().digest(), tensor.digest(), "the storage of a source matters");
    }
    if request.rows_are_independent() && rows > 1 {
        check_first_row(&request, &source, &decoded);
    }
});

/// A row alone decodes to what it is among others. The first one: stochastic rounding knows a row's number.
fn check_first_row(request: &Request, source: &Source<'_>, decoded: &[f32]) {
    let alone = request.rule().quantize(&source.row_range(0..1), &request.spec()).unwrap();
    let alone = request.rule().dequantize(&alone).unwrap();
    assert!(same_bits(&alone, &decoded[..source.cols()]), "a row depends on its neighbours");
}

fn check_layouts(tensor: &QuantizedTensor) {
    for layout in [ScaleLayout::Linear, ScaleLayout::PaddedLinear, ScaleLayout::Tile128x4, ScaleLayout::Tile8x4] {
        match (tensor.scales(), swizzled_scales(tensor, layout)) {
            (BlockScales::U8(scales), Ok(buffer)) => {
                assert_eq!(&canonical_scales(tensor, layout, &buffer).unwrap(), scales);
            }
            (BlockScales::F32(_), Err(FormatError::LayoutOfF32 { .. })) => {}
            (_, other) => panic!("{:?}", other.err()),
        }
    }
}
