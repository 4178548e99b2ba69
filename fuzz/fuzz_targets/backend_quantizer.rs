//! The CPU backend's quantizer, SIMD and threads included, gives the bytes of the format rule.
#![no_main]

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use miles_backend_cpu_ref::kernel::Isa;
use miles_backend_cpu_ref::{CpuQuantizer, CpuRef};
use miles_core::format::{Source, SourceDtype};
use miles_core::number::bf16;
use miles_core::plugin::Quantizer;
use miles_fuzz::{Request, same_bits, tiled};

#[derive(Debug, Arbitrary)]
struct Case {
    request: Request,
    is_bf16: bool,
    bands: u8,
    rows: u16,
    cols: u16,
    words: Vec<u32>,
}

static QUANTIZERS: LazyLock<[CpuQuantizer; 3]> = LazyLock::new(|| {
    let with = |threads, isa| CpuRef::new().with_threads(NonZeroUsize::new(threads).unwrap()).with_isa(isa);
    [with(1, Isa::SCALAR), with(1, Isa::detect()), with(2, Isa::detect())].map(|cpu| cpu.quantizer().unwrap())
});

fuzz_target!(|case: Case| {
    let Case { request, is_bf16, bands, rows, cols, words } = case;
    // Long enough for vectors and several tiles of 128x128, one input in eight for several bands; the product bounds the
    // time of one input.
    let most_values = if bands % 8 == 7 { 100_000 } else { 17_000 };
    let cols = usize::from(cols % 700);
    let rows = usize::from(rows % 600).min(most_values / cols.max(1));
    let widened = |word: u32| if is_bf16 { bf16::decode(word as u16) } else { f32::from_bits(word) };
    // An allocation of exactly this size: a read behind it is seen by the address sanitizer.
    let values: Box<[f32]> = tiled(&words, rows * cols).into_iter().map(widened).collect();
    let dtype = if is_bf16 { SourceDtype::Bf16 } else { SourceDtype::F32 };
    let source = Source::new(&values, rows, cols, dtype, Some("t")).unwrap();
    let (rule, spec) = (request.rule(), request.spec());
    let expected = rule.quantize(&source, &spec);
    for quantizer in QUANTIZERS.iter() {
        match (&expected, quantizer.quantize(&[source], &spec)) {
            (Ok(expected), Ok(found)) => {
                assert!(expected.canonical_bytes() == found[0].canonical_bytes(), "the bytes differ from the rule's");
                let decoded = quantizer.dequantize(&found[0]).unwrap();
                assert!(same_bits(&decoded, &rule.dequantize(expected).unwrap()), "the values differ from the rule's");
            }
            (Err(expected), Err(found)) => assert_eq!(expected.to_string(), found.to_string()),
            (expected, found) => panic!("rule: {:?}, backend: {:?}", expected.is_ok(), found.is_ok()),
        }
    }
});
