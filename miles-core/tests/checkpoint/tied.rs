//! Tied embeddings (field case O8).

use miles_core::checkpoint::{CheckpointError, WriteOptions, write_checkpoint};
use miles_core::policy::PolicyVersion;

use crate::files::{Tensor, copy, edit, fixture, load, open, refused};

fn add_head(tensors: &mut crate::files::Tensors, change: impl FnOnce(&mut Tensor)) {
    let embedding = &tensors["model.embed_tokens.weight"];
    let mut head = Tensor { dtype: embedding.dtype, shape: embedding.shape.clone(), bytes: embedding.bytes.clone() };
    change(&mut head);
    tensors.insert("lm_head.weight".into(), head);
}

#[test]
fn o8_tied_head_may_be_stored_or_not() {
    let without = open(&fixture("llama-tied")).snapshot_as_stored(PolicyVersion(0)).unwrap();
    let dir = copy("llama-tied");
    edit(dir.path(), |tensors| add_head(tensors, |_| {}));
    let with = open(dir.path()).snapshot_as_stored(PolicyVersion(0)).unwrap();
    assert_eq!(with.stamp(), without.stamp());
}

#[test]
fn o8_tied_head_that_differs_shows_both_digests() {
    for change in [
        (|head: &mut Tensor| head.bytes[5] ^= 1) as fn(&mut Tensor),
        |head| head.shape.reverse(),
        |head| head.dtype = safetensors::Dtype::F16,
    ] {
        let dir = copy("llama-tied");
        edit(dir.path(), |tensors| add_head(tensors, change));
        let error = refused(dir.path());
        let CheckpointError::TiedHeadDiffers { head, embedding, path } = &error else { panic!("{error}") };
        assert_ne!(head, embedding);
        assert!(path.ends_with("model.safetensors"));
        let text = error.to_string();
        assert!(text.contains(&head.to_string()) && text.contains(&embedding.to_string()));
    }
}

#[test]
fn o8_saved_file_never_holds_the_head_of_a_tied_model() {
    let dir = copy("llama-tied");
    edit(dir.path(), |tensors| add_head(tensors, |_| {}));
    let checkpoint = open(dir.path());
    let snapshot = checkpoint.snapshot_as_stored(PolicyVersion(0)).unwrap();
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("policy");
    write_checkpoint(&snapshot, &checkpoint.template(), &target, &WriteOptions::default()).unwrap();
    assert!(!load(&target.join("model.safetensors")).contains_key("lm_head.weight"));
    let untied = open(&fixture("qwen2-bias"));
    assert!(untied.network().find("lm_head.weight").is_some());
    let dir = copy("qwen2-bias");
    edit(dir.path(), |tensors| drop(tensors.remove("lm_head.weight").unwrap()));
    assert!(
        matches!(refused(dir.path()), CheckpointError::MissingTensors { tensors, .. } if tensors == ["lm_head.weight"])
    );
}
