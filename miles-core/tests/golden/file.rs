//! Reading a golden file, and comparing with a message that says where the first difference is.

use std::path::Path;

use miles_core::format::{Source, SourceDtype};
use miles_core::number::bf16;
use safetensors::{Dtype, SafeTensors};

pub struct Golden(Vec<u8>);

pub struct Input {
    pub values: Vec<f32>,
    pub rows: usize,
    pub cols: usize,
    pub dtype: SourceDtype,
}

impl Golden {
    pub fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(name);
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    pub fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap()
    }

    /// All `(case, field)` pairs, sorted.
    pub fn keys(&self) -> Vec<(String, String)> {
        let mut keys: Vec<_> = self
            .tensors()
            .names()
            .into_iter()
            .map(|name| name.split_once('/').unwrap_or(("", name)))
            .map(|(case, field)| (case.to_owned(), field.to_owned()))
            .collect();
        keys.sort();
        keys
    }

    pub fn bytes(&self, key: &str) -> Vec<u8> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(key).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(tensor.dtype(), Dtype::U8, "{key}");
        tensor.data().to_vec()
    }

    pub fn bits32(&self, key: &str) -> Vec<u32> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(key).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert!(matches!(tensor.dtype(), Dtype::F32 | Dtype::U32), "{key}");
        tensor.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    pub fn f32(&self, key: &str) -> Vec<f32> {
        self.bits32(key).into_iter().map(f32::from_bits).collect()
    }

    pub fn bits16(&self, key: &str) -> Vec<u16> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(key).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(tensor.dtype(), Dtype::BF16, "{key}");
        tensor.data().as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
    }

    pub fn input(&self, key: &str) -> Input {
        let tensors = self.tensors();
        let tensor = tensors.tensor(key).unwrap_or_else(|e| panic!("{key}: {e}"));
        let [rows, cols] = tensor.shape() else { panic!("{key}: {:?}", tensor.shape()) };
        let (values, dtype) = match tensor.dtype() {
            Dtype::BF16 => (self.bits16(key).into_iter().map(bf16::decode).collect(), SourceDtype::Bf16),
            _ => (self.f32(key), SourceDtype::F32),
        };
        Input { values, rows: *rows, cols: *cols, dtype }
    }
}

impl Input {
    pub fn source<'a>(&'a self, name: &'a str) -> Source<'a> {
        Source::new(&self.values, self.rows, self.cols, self.dtype, Some(name)).unwrap()
    }
}

#[track_caller]
pub fn assert_bytes(key: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{key}: length");
    if let Some(i) = (0..found.len()).find(|&i| found[i] != expected[i]) {
        panic!("{key}: byte {i} is {:#04x}, expected {:#04x}", found[i], expected[i]);
    }
}

/// Equal bits; two NaN are equal whatever their payload.
#[track_caller]
pub fn assert_f32(key: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{key}: length");
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    if let Some(i) = (0..found.len()).find(|&i| !same(found[i], expected[i])) {
        panic!("{key}: element {i} is {:e}, expected {:e}", found[i], expected[i]);
    }
}

/// Equal BF16 bits; two NaN are equal whatever their payload.
#[track_caller]
pub fn assert_bf16(key: &str, found: &[half::bf16], expected: &[u16]) {
    let widen = |bits: u16| bf16::decode(bits);
    let found: Vec<f32> = found.iter().map(|x| widen(x.to_bits())).collect();
    let expected: Vec<f32> = expected.iter().map(|&bits| widen(bits)).collect();
    assert_f32(key, &found, &expected);
}
