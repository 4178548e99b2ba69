//! Model directories, opened up: copies, tokenizers, edited tensors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

/// Copies every file of a directory into another one, which is made.
pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Every file below a directory and its bytes; nothing for a directory that is not there.
pub fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    collect(dir, dir, &mut files);
    files
}

fn collect(root: &Path, dir: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            files.insert(name, fs::read(&path).unwrap());
        }
    }
}

/// Changes a JSON file.
pub fn edit_json(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

/// A stored tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// Every tensor of a safetensors file.
pub fn load(file: &Path) -> BTreeMap<String, Tensor> {
    let bytes = fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let own = |view: TensorView<'_>| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    tensors.iter().map(|(name, view)| (name.to_owned(), own(view))).collect()
}

/// Changes the tensors of a safetensors file.
pub fn edit_tensors(file: &Path, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    let mut tensors = load(file);
    change(&mut tensors);
    let view = |tensor: &'_ Tensor| (tensor.dtype, tensor.shape.clone());
    let views = tensors.iter().map(|(name, tensor)| {
        let (dtype, shape) = view(tensor);
        (name, TensorView::new(dtype, shape, &tensor.bytes).unwrap())
    });
    fs::write(file, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Letters that the tokenizer merges, two by two.
pub const LETTERS: &str = "abcdefgh";

/// Writes a `tokenizer.json` with one token per id: `</s>`, printable characters, and every pair of two [`LETTERS`].
///
/// Pairs are merged, so letters that were sampled one by one are encoded again as other ids, also when `</s>` stood
/// between them.
pub fn write_tokenizer(dir: &Path, vocab_size: usize) {
    let mut vocab = Map::new();
    vocab.insert(END.to_owned(), json!(0));
    let pairs: Vec<(char, char)> =
        LETTERS.chars().flat_map(|first| LETTERS.chars().map(move |second| (first, second))).collect();
    let singles = (0x21..0x7F).chain(0xA1..).filter_map(char::from_u32).filter(|c| c.is_alphanumeric() || c.is_ascii());
    let mut add = |text: String| {
        let id = vocab.len();
        vocab.insert(text, json!(id));
    };
    singles.take(vocab_size - 1 - pairs.len()).for_each(|single| add(single.to_string()));
    pairs.iter().for_each(|(first, second)| add(format!("{first}{second}")));
    assert_eq!(vocab.len(), vocab_size);
    let merges: Vec<[String; 2]> =
        pairs.iter().map(|(first, second)| [first.to_string(), second.to_string()]).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": 0, "content": END, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true
        }],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Fuse" },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges
        }
    });
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

const END: &str = "</s>";
