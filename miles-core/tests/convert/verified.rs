//! A converted directory whose bytes are not those of its contract is refused, when read and by `verify`.

use std::fs;
use std::path::Path;

use miles_core::Error;
use miles_core::checkpoint::{CheckpointError, ContractError, ContractSidecar, StoredModel};
use miles_core::convert::{ConvertError, verify};
use miles_core::precision::Recipe;

use crate::files::{edit, edit_json, fixture, open};
use crate::support::{options, run};

fn converted(recipe: Recipe) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    run(&fixture("deepseek-v3"), recipe, dir.path(), &options(2)).unwrap();
    dir
}

fn contract_error(error: Error) -> ContractError {
    match error {
        Error::Checkpoint(CheckpointError::Contract { source, .. }) => *source,
        other => panic!("{other}"),
    }
}

fn disagreement(dir: &Path) -> ContractError {
    contract_error(verify(dir, &options(2), &|_| {}).expect_err("the directory was changed"))
}

#[test]
fn every_recipe_is_verified() {
    for recipe in Recipe::ALL {
        let dir = converted(recipe);
        let verified = verify(dir.path(), &options(2), &|_| {}).unwrap();
        assert_eq!(verified.tensors, open(dir.path()).network().parameters.len());
        assert!(verified.files >= 2 && verified.contract.recipe == recipe.name());
    }
}

#[test]
fn a_changed_tensor_is_named_when_it_is_read_and_by_verify() {
    for (name, byte) in [
        ("model.layers.0.mlp.down_proj.weight", 5),
        ("model.layers.0.mlp.down_proj.weight_scale_inv", 0),
        ("model.norm.weight", 2),
    ] {
        let dir = converted(Recipe::Mxfp8);
        let parameter = name.replace("_scale_inv", "");
        edit(dir.path(), |tensors| tensors.get_mut(name).unwrap().bytes[byte] ^= 1);
        let checkpoint = open(dir.path());
        let id = checkpoint.network().find(&parameter).unwrap();
        let mut values = Vec::new();
        for error in
            [checkpoint.read_stored(id).map(drop).unwrap_err(), checkpoint.read_f32(id, &mut values).unwrap_err()]
        {
            assert!(
                matches!(contract_error(error.into()), ContractError::TensorDigest { tensor, .. } if tensor == parameter)
            );
        }
        let ContractError::TensorDigest { tensor, recorded, found } = disagreement(dir.path()) else {
            panic!("{name}")
        };
        assert!(tensor == parameter && recorded != found);
    }
}

#[test]
fn a_changed_file_is_named() {
    let dir = converted(Recipe::Nvfp4Dequantized);
    edit_json(&dir.path().join("hf_quant_config.json"), |value| value["producer"]["name"] = "another".into());
    assert!(
        matches!(disagreement(dir.path()), ContractError::FileDigest { file, .. } if file == "hf_quant_config.json")
    );
    let dir = converted(Recipe::Nvfp4Dequantized);
    edit(dir.path(), |tensors| {
        tensors.get_mut("model.layers.1.mlp.experts.0.up_proj.input_scale").unwrap().bytes[2] ^= 1
    });
    assert!(matches!(disagreement(dir.path()), ContractError::FileDigest { file, .. } if file == "model.safetensors"));
    fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    edit(dir.path(), |tensors| {
        tensors.get_mut("model.layers.1.mlp.experts.0.up_proj.input_scale").unwrap().bytes[2] ^= 1
    });
    assert!(
        matches!(disagreement(dir.path()), ContractError::MissingFile { file } if file == "generation_config.json")
    );
}

#[test]
fn a_sidecar_that_contradicts_itself_or_the_headers_is_refused_at_opening() {
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let dir = converted(Recipe::Mxfp8);
        edit_json(&dir.path().join(ContractSidecar::FILE), change);
        let error = StoredModel::open(dir.path()).expect_err("the sidecar was changed");
        contract_error(error.into())
    };
    let name = "model.layers.0.mlp.down_proj.weight";
    assert!(matches!(refused(&|value| value["contract"] = 2.into()), ContractError::Version { found: 2, known: 1 }));
    assert!(matches!(refused(&|value| value["recipe"] = 1.into()), ContractError::Json { .. }));
    assert!(matches!(
        refused(&|value| value["tensors"][name]["backward"] = "dequantized".into()),
        ContractError::Inconsistent { key: "precision_map", .. }
    ));
    assert!(matches!(
        refused(&|value| value["tensors"][name]["digest"] = value["policy"].clone()),
        ContractError::Inconsistent { key: "policy", .. }
    ));
    let dir = converted(Recipe::Mxfp8);
    let other = converted(Recipe::Fp8Block);
    fs::copy(other.path().join(ContractSidecar::FILE), dir.path().join(ContractSidecar::FILE)).unwrap();
    let error = StoredModel::open(dir.path()).unwrap_err();
    assert!(matches!(contract_error(error.into()), ContractError::Stored { .. }));
}

#[test]
fn without_a_contract_there_is_nothing_to_verify() {
    let error = verify(&fixture("qwen3"), &options(1), &|_| {}).unwrap_err();
    assert!(matches!(error, Error::Convert(ConvertError::NoContract { .. })), "{error}");
}
