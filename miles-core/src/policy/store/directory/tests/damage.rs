//! Files that are not what was written.

use serde_json::{Value, json};

use super::*;

/// A store with one version, closed, and the paths of its two files.
fn written(recipe: Recipe) -> (tempfile::TempDir, Arc<Snapshot>, [PathBuf; 2]) {
    let scratch = tempfile::tempdir().unwrap();
    let snapshot = policy(Family::Dense, recipe, 1).unwrap();
    publish(&open(scratch.path(), &snapshot, 1).unwrap(), &snapshot).unwrap();
    let folder = scratch.path().join("version-0000000001");
    let files = [description::FILE, parts::FILE].map(|name| folder.join(name));
    (scratch, snapshot, files)
}

fn read(dir: &Path, like: &Snapshot) -> Result<Arc<Snapshot>> {
    let store = open(dir, like, 1)?;
    wait(store.version(PolicyVersion(1)))
}

/// Any one bit of either file.
#[test]
fn a_flipped_bit_is_an_error_that_names_the_file() {
    let (scratch, snapshot, files) = written(Recipe::Nvfp4Dequantized);
    assert_same(&read(scratch.path(), &snapshot).unwrap(), &snapshot);
    for path in &files {
        let good = fs::read(path).unwrap();
        let step = (good.len() * 8 / 400) | 1;
        for bit in (0..good.len() * 8).step_by(step) {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(path, &bytes).unwrap();
            let error = read(scratch.path(), &snapshot).err();
            let error = error.unwrap_or_else(|| panic!("bit {bit} of {}", path.display()));
            assert!(error.to_string().contains("version-0000000001"), "bit {bit} of {}: {error}", path.display());
        }
        fs::write(path, &good).unwrap();
    }
    assert_same(&read(scratch.path(), &snapshot).unwrap(), &snapshot);
}

/// Codes, scales, outer scales and amax values: each by the tensor's name.
#[test]
fn a_flipped_bit_of_data_names_file_and_tensor() {
    let (scratch, snapshot, [_, path]) = written(Recipe::Nvfp4Dequantized);
    let good = fs::read(&path).unwrap();
    let header_bytes = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&good[8..header_bytes]).unwrap();
    let quantized = header.as_object().unwrap().keys().find(|name| name.ends_with(":amax")).unwrap();
    let tensor = quantized.strip_suffix(":amax").unwrap();
    let parts = ["codes", "scales", "outer", "amax"].map(|part| format!("{tensor}:{part}"));
    for name in parts.iter().map(String::as_str).chain(["model.embed_tokens.weight"]) {
        let start = header[name]["data_offsets"][0].as_u64().unwrap() as usize;
        let mut bytes = good.clone();
        bytes[header_bytes + start] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = store_error(read(scratch.path(), &snapshot).unwrap_err());
        let StoreError::Damaged { path: named, tensor: found, .. } = &error else { panic!("{name}: {error}") };
        assert_eq!(*named, path);
        assert!(name.starts_with(found.as_str()), "{name}: {found}");
    }
}

#[test]
fn a_truncated_file_is_an_error_at_every_length() {
    let (scratch, snapshot, files) = written(Recipe::Mxfp8);
    for path in &files {
        let good = fs::read(path).unwrap();
        for length in (0..good.len()).step_by(good.len() / 97 + 1) {
            fs::write(path, &good[..length]).unwrap();
            let error = read(scratch.path(), &snapshot).unwrap_err();
            assert!(error.to_string().contains("version-0000000001"), "{length}: {error}");
        }
        fs::remove_file(path).unwrap();
        let error = read(scratch.path(), &snapshot).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        fs::write(path, &good).unwrap();
    }
}

/// O12: a scale that is not there is an error, never 1.
#[test]
fn o12_a_missing_scale_is_an_error_that_names_it() {
    let (scratch, snapshot, [_, path]) = written(Recipe::Nvfp4Dequantized);
    let good = fs::read(&path).unwrap();
    for part in ["scales", "outer", "amax"] {
        let mut bytes = good.clone();
        let at = good.windows(part.len() + 2).position(|w| w == format!(":{part}\"").as_bytes()).unwrap();
        bytes[at] = b';';
        fs::write(&path, &bytes).unwrap();
        let error = store_error(read(scratch.path(), &snapshot).unwrap_err());
        let StoreError::BadPart { part: found, why, .. } = &error else { panic!("{error}") };
        assert_eq!((*found, why.as_str()), (part, "missing"));
    }
}

#[test]
fn a_description_that_claims_something_else_is_refused() {
    let (scratch, snapshot, [path, _]) = written(Recipe::Mxfp8);
    let good: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let changes: [(&str, Value, &str); 6] = [
        ("layout", json!(2), "layout 2"),
        ("version", json!(7), "version 7"),
        ("map", json!("0".repeat(64)), "precision map"),
        ("network", json!("0".repeat(64)), "network"),
        ("tensors", json!([]), "0 tensors"),
        ("digest", json!("xyz"), "hexadecimal"),
    ];
    for (key, value, words) in changes {
        let mut changed = good.clone();
        changed[key] = value;
        fs::write(&path, changed.to_string()).unwrap();
        let error = read(scratch.path(), &snapshot).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("snapshot.json"), "{key}: {error}");
    }
    let mut extra = good.clone();
    extra["default_scale"] = json!(1.0);
    fs::write(&path, extra.to_string()).unwrap();
    assert!(read(scratch.path(), &snapshot).unwrap_err().to_string().contains("default_scale"));
    // Equal in meaning is not enough: the file is the one that was written.
    fs::write(&path, good.to_string()).unwrap();
    assert!(matches!(store_error(read(scratch.path(), &snapshot).unwrap_err()), StoreError::BadDescription { .. }));
}

#[test]
fn a_hostile_size_is_refused_before_it_is_allocated() {
    let (scratch, snapshot, [description, tensors]) = written(Recipe::Mxfp8);
    let limit = crate::checkpoint::limits::MAX_JSON_BYTES;
    let good = fs::read(&description).unwrap();
    fs::File::options().write(true).open(&description).unwrap().set_len(limit + 1).unwrap();
    let error = store_error(read(scratch.path(), &snapshot).unwrap_err());
    assert!(matches!(error, StoreError::OverLimit { .. }), "{error}");
    fs::write(&description, good).unwrap();
    let mut bytes = fs::read(&tensors).unwrap();
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&tensors, bytes).unwrap();
    let error = store_error(read(scratch.path(), &snapshot).unwrap_err());
    assert!(matches!(error, StoreError::Container(_)), "{error}");
}
