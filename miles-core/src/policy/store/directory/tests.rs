//! What goes into a directory comes out of it, and what does not belong there is refused.

mod damage;
mod durability;
mod faults;
mod power_cut;

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::conformance::fixture::{self, Family, TinyWeights, Undeclared, policy, quantize};
use crate::conformance::{policy_stores, wait};
use crate::format::FormatId;
use crate::policy::{PolicyTensor, ThrottledStore, VerifiedStore};
use crate::precision::{PartitionAxis, PartitionPlan, Recipe, resolve_with};

fn open(dir: &Path, like: &Snapshot, keep_last: usize) -> Result<DirectoryStore, PolicyError> {
    let options = DirectoryOptions { keep_last, ..DirectoryOptions::default() };
    DirectoryStore::open(dir, Arc::clone(like.network()), Arc::clone(like.map()), options)
}

fn dense(version: u64) -> Arc<Snapshot> {
    policy(Family::Dense, Recipe::Mxfp8, version).unwrap()
}

fn publish(store: &impl PolicyStore, snapshot: &Arc<Snapshot>) -> Result<()> {
    wait(store.publish(Arc::clone(snapshot)))
}

fn newest(store: &impl PolicyStore) -> Arc<Snapshot> {
    wait(store.latest()).unwrap().unwrap()
}

fn held(store: &DirectoryStore) -> Vec<u64> {
    store.held().unwrap().iter().map(|version| version.0).collect()
}

/// Equal to the last bit, also in what no digest covers: scopes and amax values.
fn assert_same(found: &Snapshot, expected: &Snapshot) {
    assert_eq!(found.stamp(), expected.stamp());
    for id in expected.network().ids() {
        match (found.tensor(id).as_ref(), expected.tensor(id).as_ref()) {
            (PolicyTensor::Dense(found), PolicyTensor::Dense(expected)) => assert_eq!(found, expected),
            (PolicyTensor::Quantized(found), PolicyTensor::Quantized(expected)) => assert_eq!(found, expected),
            _ => panic!("{}", expected.network().parameter(id).name),
        }
        assert_eq!(found.tensor(id).digest(), expected.tensor_digest(id));
    }
}

fn store_error(error: impl Into<Error>) -> StoreError {
    match error.into() {
        Error::Policy(PolicyError::Store(error)) => *error,
        other => panic!("{other}"),
    }
}

/// The part of a conformance subject: empty stores, each in a directory of its own.
fn empty_store(scratch: &Path, count: &AtomicU64) -> DirectoryStore {
    let dir = scratch.join(count.fetch_add(1, Ordering::Relaxed).to_string());
    open(&dir, &dense(0), 2).unwrap()
}

#[test]
fn the_directory_store_and_every_wrapper_hold_the_contract() {
    let (scratch, count) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
    let rate = std::num::NonZeroU64::new(1 << 40).unwrap();
    let empty = || empty_store(scratch.path(), &count);
    policy_stores(&|| Arc::new(empty())).require().unwrap();
    policy_stores(&|| Arc::new(VerifiedStore::new(empty()))).require().unwrap();
    policy_stores(&|| Arc::new(ThrottledStore::new(empty(), rate))).require().unwrap();
    let memory = || super::super::MemoryStore::new(2);
    policy_stores(&|| Arc::new(ThrottledStore::new(VerifiedStore::new(memory()), rate))).require().unwrap();
    policy_stores(&|| Arc::new(VerifiedStore::new(ThrottledStore::new(memory(), rate)))).require().unwrap();
}

#[test]
fn every_recipe_of_every_family_comes_back_to_the_bit_after_reopening() {
    let scratch = tempfile::tempdir().unwrap();
    for family in Family::ALL {
        for recipe in Recipe::ALL {
            let dir = scratch.path().join(format!("{family}-{recipe}"));
            let snapshots = [3, 12].map(|version| policy(family, recipe, version).unwrap());
            let store = open(&dir, &snapshots[0], 2).unwrap();
            snapshots.iter().for_each(|snapshot| publish(&store, snapshot).unwrap());
            let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names.len(), 2, "{names:?}");
            assert!(names.iter().any(|name| name == "version-0000000012"), "{names:?}");
            drop(store);
            let store = open(&dir, &snapshots[0], 2).unwrap();
            assert_same(&newest(&store), &snapshots[1]);
            assert_same(&wait(store.version(PolicyVersion(3))).unwrap(), &snapshots[0]);
        }
    }
}

/// Experts cut into shards have one outer scale per shard; a format of one's own has its rule passed in.
#[test]
fn cut_experts_and_formats_from_outside_come_back_to_the_bit() {
    let scratch = tempfile::tempdir().unwrap();
    let network = Family::Moe.network();
    let plan = PartitionPlan::new(3, PartitionAxis::Hidden).unwrap();
    let cut = Arc::new(resolve_with(&network, Recipe::Nvfp4Dequantized, &[], &[], plan).unwrap());
    let quantizer = fixture::RuleQuantizer::new();
    let snapshot = quantize(&network, &cut, &quantizer, &TinyWeights::new(&network, 1), 1).unwrap();
    publish(&open(&scratch.path().join("cut"), &snapshot, 1).unwrap(), &snapshot).unwrap();
    assert_same(&newest(&open(&scratch.path().join("cut"), &snapshot, 1).unwrap()), &snapshot);

    let (dir, snapshot) = (scratch.path().join("own"), fixture::undeclared_policy(Family::Dense, 1).unwrap());
    publish(&open(&dir, &snapshot, 1).unwrap(), &snapshot).unwrap();
    let error = wait(open(&dir, &snapshot, 1).unwrap().latest()).unwrap_err();
    assert!(error.to_string().contains(fixture::UNDECLARED), "{error}");
    let options = DirectoryOptions { rules: vec![Arc::new(Undeclared::new().unwrap())], ..DirectoryOptions::default() };
    let (network, map) = (Arc::clone(snapshot.network()), Arc::clone(snapshot.map()));
    let store = DirectoryStore::open(&dir, network, map, options).unwrap();
    assert_same(&newest(&store), &snapshot);
    let id = FormatId::new(fixture::UNDECLARED).unwrap();
    let own = |tensor: &PolicyTensor| matches!(tensor, PolicyTensor::Quantized(tensor) if *tensor.format() == id);
    assert!(snapshot.network().ids().any(|id| own(snapshot.tensor(id))));
}

#[test]
fn a_version_of_another_map_or_network_is_refused_and_both_digests_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let ours = dense(1);
    let other_map = policy(Family::Dense, Recipe::Fp8Block, 2).unwrap();
    let other_network = policy(Family::Moe, Recipe::Mxfp8, 2).unwrap();
    let store = open(scratch.path(), &ours, 2).unwrap();
    publish(&store, &ours).unwrap();
    for (other, name) in [(&other_map, "precision map"), (&other_network, "network")] {
        let digests = match name {
            "network" => [&ours, other].map(|snapshot| network_digest(snapshot.network())),
            _ => [&ours, other].map(|snapshot| snapshot.map().digest()),
        };
        let refused = store_error(publish(&store, other).unwrap_err());
        let reopened = store_error(open(scratch.path(), other, 2).err().unwrap());
        for error in [refused.to_string(), reopened.to_string()] {
            assert!(
                error.contains(name) && digests.iter().all(|digest| error.contains(&digest.to_string())),
                "{error}"
            );
        }
        assert!(reopened.to_string().contains("snapshot.json"), "{reopened}");
    }
    assert_eq!(held(&store), [1]);
}

#[test]
fn the_newest_versions_and_the_pinned_ones_are_kept_on_disk() {
    let scratch = tempfile::tempdir().unwrap();
    let store = open(scratch.path(), &dense(0), 2).unwrap();
    let mut pinned = None;
    for version in 0..6 {
        publish(&store, &dense(version)).unwrap();
        if version == 1 {
            store.pin(PolicyVersion(1)).unwrap();
            pinned = Some(wait(store.version(PolicyVersion(0))).unwrap());
        }
    }
    assert_eq!(held(&store), [1, 4, 5]);
    assert_same(&wait(store.version(PolicyVersion(1))).unwrap(), &dense(1));
    // A reader keeps what it holds, and a version that is gone is gone for others.
    assert_same(&pinned.unwrap(), &dense(0));
    let error = wait(store.version(PolicyVersion(0))).unwrap_err();
    assert!(error.to_string().contains("[1, 4, 5]"), "{error}");
    store.unpin(PolicyVersion(1)).unwrap();
    assert_eq!(held(&store), [4, 5]);
    assert!(matches!(store.unpin(PolicyVersion(1)), Err(StoreError::NotPinned { .. })));
    assert!(matches!(store.pin(PolicyVersion(1)), Err(PolicyError::UnknownVersion { .. })));
    // Keeping fewer takes effect with the next publication.
    let store = open(scratch.path(), &dense(0), 1).unwrap();
    assert_eq!(held(&store), [4, 5]);
    publish(&store, &dense(6)).unwrap();
    assert_eq!((held(&store), fs::read_dir(scratch.path()).unwrap().count()), (vec![6], 1));
}

/// A run that goes on from version 3 makes versions 3 and 4 again.
#[test]
fn versions_after_the_one_that_a_run_resumes_at_go_at_opening() {
    let scratch = tempfile::tempdir().unwrap();
    let like = dense(0);
    let store = open(scratch.path(), &like, 4).unwrap();
    (1..5).for_each(|version| publish(&store, &dense(version)).unwrap());
    let resumed = |version| {
        let resumed_at = Some(PolicyVersion(version));
        let options = DirectoryOptions { keep_last: 4, resumed_at, ..DirectoryOptions::default() };
        DirectoryStore::open(scratch.path(), Arc::clone(like.network()), Arc::clone(like.map()), options).unwrap()
    };
    assert_eq!(held(&resumed(5)), [1, 2, 3, 4]);
    let store = resumed(3);
    assert_eq!(held(&store), [1, 2]);
    assert_same(&wait(store.newer_than(None)).unwrap(), &dense(2));
    publish(&store, &dense(3)).unwrap();
    assert_same(&newest(&store), &dense(3));
    assert_eq!((held(&resumed(0)), fs::read_dir(scratch.path()).unwrap().count()), (vec![], 0));
}

#[test]
fn what_interrupted_work_left_is_no_version_and_goes() {
    let scratch = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        fs::create_dir(scratch.path().join(name)).unwrap();
        fs::write(scratch.path().join(name).join("tensors.safetensors"), [1, 2, 3]).unwrap();
    };
    publish(&open(scratch.path(), &dense(0), 2).unwrap(), &dense(4)).unwrap();
    let leftovers =
        [".staged-version-0000000004-1-0", ".staged-version-0000000005-1-1", ".removed-version-0000000003-1-2"];
    leftovers.iter().for_each(|name| make(name));
    make("version-5");
    let there = |name: &str| scratch.path().join(name).exists();
    let store = open(scratch.path(), &dense(0), 2).unwrap();
    assert_same(&newest(&store), &dense(4));
    // Version 5 may be another process's work in progress, until version 5 is there.
    assert_eq!(leftovers.map(there), [false, true, false]);
    publish(&store, &dense(5)).unwrap();
    assert_eq!((leftovers.map(there), there("version-5")), ([false; 3], true));
    assert_eq!(held(&store), [4, 5]);
}

#[test]
fn of_two_stores_on_one_directory_one_publishes_a_version() {
    let scratch = tempfile::tempdir().unwrap();
    for version in 0..8 {
        let snapshot = dense(version);
        let start = Barrier::new(2);
        let race = || {
            let store = open(scratch.path(), &snapshot, 2).unwrap();
            start.wait();
            publish(&store, &snapshot)
        };
        let results = thread::scope(|scope| [scope.spawn(race), scope.spawn(race)].map(|race| race.join().unwrap()));
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        let error = results.into_iter().find_map(Result::err).unwrap();
        let monotonic =
            matches!(&error, Error::Policy(PolicyError::NotMonotonic { newest, .. }) if newest.0 == version);
        assert!(monotonic, "{error}");
        assert_same(&newest(&open(scratch.path(), &snapshot, 2).unwrap()), &snapshot);
    }
}

/// The other process's folder appears at the last moment: the rename itself has to refuse.
#[test]
fn a_version_that_appears_before_the_rename_stays_as_it_is() {
    struct Late(std::path::PathBuf, AtomicU64);
    impl Files for Late {
        fn create_dir(&self, dir: &Path) -> std::io::Result<()> {
            StdFiles.create_dir(dir)
        }
        fn create(&self, file: &Path) -> std::io::Result<Box<dyn super::super::FileSink>> {
            StdFiles.create(file)
        }
        fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
            if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
                fs::rename(&self.0, to)?;
            }
            StdFiles.rename(from, to)
        }
        fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
            StdFiles.sync_dir(dir)
        }
        fn remove_dir(&self, dir: &Path) -> std::io::Result<()> {
            StdFiles.remove_dir(dir)
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    let [ours, elsewhere] = ["ours", "elsewhere"].map(|name| scratch.path().join(name));
    let theirs = dense(1);
    publish(&open(&elsewhere, &theirs, 2).unwrap(), &theirs).unwrap();
    let late = Late(elsewhere.join("version-0000000001"), AtomicU64::new(0));
    let options = DirectoryOptions { files: Arc::new(late), ..DirectoryOptions::default() };
    let store = DirectoryStore::open(&ours, Arc::clone(theirs.network()), Arc::clone(theirs.map()), options).unwrap();
    let other_bytes = {
        let (network, map) = (theirs.network(), theirs.map());
        quantize(network, map, &fixture::RuleQuantizer::new(), &TinyWeights::new(network, 77), 1).unwrap()
    };
    let error = publish(&store, &other_bytes).unwrap_err();
    assert!(matches!(error, Error::Policy(PolicyError::NotMonotonic { .. })), "{error}");
    assert_same(&newest(&store), &theirs);
    assert_eq!(fs::read_dir(&ours).unwrap().count(), 1);
}

/// Readers that share nothing with the publisher but the directory: whole versions in growing order, to the last.
#[test]
fn readers_of_another_process_see_whole_versions_while_others_land_and_go() {
    let scratch = tempfile::tempdir().unwrap();
    let snapshots: Vec<_> = (0..20).map(dense).collect();
    let store = open(scratch.path(), &snapshots[0], 1).unwrap();
    publish(&store, &snapshots[0]).unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = PolicyVersion(0);
                while seen != PolicyVersion(19) {
                    let reader = open(scratch.path(), &snapshots[0], 1);
                    // The newest version may go between the listing and the look at its description.
                    let Ok(reader) = reader else { continue };
                    let found = newest(&reader);
                    assert!(found.stamp().version >= seen);
                    seen = found.stamp().version;
                    assert_same(&found, &snapshots[seen.0 as usize]);
                }
            });
        }
        snapshots[1..].iter().for_each(|snapshot| publish(&store, snapshot).unwrap());
    });
    assert_eq!(held(&store), [19]);
}
