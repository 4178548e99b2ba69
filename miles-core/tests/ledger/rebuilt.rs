//! Recorded versions, made again from the values that they were quantized from.

use std::collections::BTreeMap;
use std::sync::Arc;

use miles_core::checkpoint::CheckpointError;
use miles_core::checkpoint::tensors::StateWriter;
use miles_core::format::FormatId;
use miles_core::policy::{
    Finding, LedgerFile, PolicyVersion, StoredMasters, WeightSource, rebuild, recorded_map, verify_rebuilt,
};

use crate::exported::{Exported, Values};

#[test]
fn masters_in_a_state_file_give_the_recorded_version_again() {
    for format in [FormatId::nvfp4(), FormatId::mxfp8(), FormatId::fp8_block(), FormatId::fp8_block_pow2()] {
        let exported = Exported::new(Some(format.clone()));
        let network = Arc::clone(exported.snapshots[0].network());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("masters.safetensors");
        let shapes: Vec<_> = network.parameters.iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
        let mut writer = StateWriter::create(&path, &shapes, &BTreeMap::new()).unwrap();
        let (source, mut values) = (Values { network: &network, seed: 1 }, Vec::new());
        for id in network.ids() {
            source.read(id, &mut values).unwrap();
            writer.write(&network.parameter(id).name, &values).unwrap();
        }
        writer.finish().unwrap();
        let masters = StoredMasters::open(&network, &path).unwrap();
        let recorded = |version| LedgerFile::find(&exported.ledger(), PolicyVersion(version)).unwrap();
        let map = Arc::new(recorded_map(&network, &recorded(1)).unwrap());
        let rebuilt = rebuild(&network, &map, PolicyVersion(1), &masters).unwrap();
        assert_eq!(verify_rebuilt(&rebuilt, &recorded(1)).len(), 0, "{format}");
        let findings = verify_rebuilt(&rebuilt, &recorded(0));
        let count = |is: fn(&Finding) -> bool| findings.iter().filter(|finding| is(finding)).count();
        let all = network.parameters.len();
        assert_eq!(count(|finding| matches!(finding, Finding::Tensor { .. })), all, "{format}: masters of version 1");
        assert_eq!(count(|finding| matches!(finding, Finding::Field { field: "source_digest", .. })), all, "{format}");

        let mut writer = StateWriter::create(&path, &shapes[..1], &BTreeMap::new()).unwrap();
        source.read(network.ids().next().unwrap(), &mut values).unwrap();
        writer.write(&shapes[0].0, &values).unwrap();
        writer.finish().unwrap();
        let error = StoredMasters::open(&network, &path).err().unwrap();
        assert!(matches!(error, CheckpointError::NoSuchTensor { .. }), "{error}");
    }
}
