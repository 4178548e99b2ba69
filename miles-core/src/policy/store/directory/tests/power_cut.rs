//! A publication that ends at each of its file operations.

use std::collections::BTreeSet;

use super::durability::{Data, Disk, Operation, Outcome};
use super::faults::{Fault, FaultyFiles};
use super::*;

fn faulty(dir: &Path, files: &FaultyFiles) -> DirectoryStore {
    let like = dense(0);
    let options = DirectoryOptions { keep_last: 1, files: Arc::new(files.clone()), ..DirectoryOptions::default() };
    DirectoryStore::open(dir, Arc::clone(like.network()), Arc::clone(like.map()), options).unwrap()
}

fn outcomes() -> impl Iterator<Item = Outcome> {
    let data = [Data::Lost, Data::Kept, Data::Half, Data::Zeros];
    let uniform = data.into_iter().flat_map(|data| [true, false].map(|names| Outcome::Uniform(data, names)));
    uniform.chain((0..16).map(Outcome::Drawn))
}

/// The folder's names that are not those of versions.
fn others(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with("version-")).collect()
}

/// Version 2 is published over version 1, which goes. The power is cut at every operation of that, and what a disk may
/// then hold is opened again: the newest version is 1 or 2, every version that is there is whole to the bit, and the
/// publication can be made again. Once the publication has returned it is always 2.
#[test]
fn a_power_cut_never_leaves_a_readable_torn_version() {
    let (old, new, next) = (dense(1), dense(2), dense(3));
    let (mut cuts, mut seen, mut kinds) = (0, BTreeSet::new(), BTreeSet::new());
    loop {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        let files = FaultyFiles::new();
        let store = faulty(&dir, &files);
        publish(&store, &old).unwrap();
        let mut disk = Disk::of(&dir);
        files.arm(Fault::PowerCut(cuts));
        let returned = publish(&store, &new).is_ok();
        let journal = files.journal();
        journal.iter().for_each(|operation| disk.carry_out(operation));
        kinds.extend(journal.iter().map(std::mem::discriminant).map(|kind| format!("{kind:?}")));
        for (index, outcome) in outcomes().enumerate() {
            let left = scratch.path().join(format!("left-{index}"));
            disk.after_a_power_cut(outcome, &left);
            let context = || format!("cut at {cuts}, {outcome:?}, after {:?}", journal.last().map(kind));
            let store = open(&left, &old, 1).unwrap_or_else(|error| panic!("{}: {error}", context()));
            let found = wait(store.latest()).unwrap_or_else(|error| panic!("{}: {error}", context()));
            let found = found.unwrap_or_else(|| panic!("{}: no version is left", context()));
            let version = found.stamp().version;
            assert!(version == PolicyVersion(2) || !returned, "{}: published, and {version} is found", context());
            for version in store.held().unwrap() {
                let snapshot = if version == PolicyVersion(1) { &old } else { &new };
                let held = wait(store.version(version)).unwrap_or_else(|error| panic!("{}: {error}", context()));
                assert_same(&held, snapshot);
            }
            seen.insert((returned, version));
            if version == PolicyVersion(1) {
                publish(&store, &new).unwrap();
            }
            publish(&store, &next).unwrap();
            assert_same(&newest(&open(&left, &old, 1).unwrap()), &next);
            assert_eq!((held(&store), others(&left)), (vec![3], Vec::new()), "{}", context());
        }
        if journal.len() < cuts {
            break;
        }
        cuts += 1;
    }
    // Two files of several writes, two syncs of files, and each other operation.
    assert!(cuts > 15 && kinds.len() == 7, "{cuts} cuts, {kinds:?}");
    let [old, new] = [1, 2].map(PolicyVersion);
    assert_eq!(seen, BTreeSet::from([(false, old), (false, new), (true, new)]));
}

fn kind(operation: &Operation) -> &'static str {
    match operation {
        Operation::CreateDir(_) => "create_dir",
        Operation::Create(_) => "create",
        Operation::Write(..) => "write",
        Operation::Sync(_) => "sync",
        Operation::Rename(..) => "rename",
        Operation::SyncDir(_) => "sync_dir",
        Operation::RemoveDir(_) => "remove_dir",
    }
}

/// The disk is full at one operation: either the publication fails, names the file, and has changed nothing, or the
/// version is there and an old one could not be removed, which the store says. The next publication goes well.
#[test]
fn an_error_at_any_operation_leaves_the_store_usable() {
    let (old, new, next) = (dense(1), dense(2), dense(3));
    let (mut failed, mut removal) = (0, 0);
    for at in 0.. {
        let scratch = tempfile::tempdir().unwrap();
        let files = FaultyFiles::new();
        let store = faulty(scratch.path(), &files);
        publish(&store, &old).unwrap();
        files.arm(Fault::Once(at));
        let result = publish(&store, &new);
        let everything_ran = files.journal().len() == at;
        if everything_ran {
            result.unwrap();
            assert!(store.removal_failure().is_none());
            break;
        }
        match result {
            Err(error) => {
                let StoreError::Io { path, source } = store_error(error) else { panic!("operation {at}") };
                assert!(path.starts_with(scratch.path()), "{path:?}");
                assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
                assert_eq!(held(&store), [1], "operation {at}");
                assert_same(&newest(&store), &old);
                assert_same(&newest(&open(scratch.path(), &old, 1).unwrap()), &old);
                publish(&store, &new).unwrap_or_else(|error| panic!("operation {at}: {error}"));
                failed += 1;
            }
            Ok(()) => {
                let failure = store.removal_failure().unwrap();
                assert!(matches!(&*failure, StoreError::Io { .. }), "operation {at}: {failure}");
                removal += 1;
            }
        }
        assert_same(&newest(&store), &new);
        publish(&store, &next).unwrap();
        assert!(store.removal_failure().is_none());
        assert_eq!((held(&store), others(scratch.path())), (vec![3], Vec::new()), "operation {at}");
    }
    assert!(failed > 12 && removal == 3, "{failed} {removal}");
}

/// Those who wait are not told of a version that a failing disk took back.
#[test]
fn a_failed_publication_wakes_nobody_with_a_version() {
    let scratch = tempfile::tempdir().unwrap();
    let files = FaultyFiles::new();
    let store = faulty(scratch.path(), &files);
    let mut waiting = store.newer_than(None);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for at in 0..12 {
        files.arm(Fault::Once(at));
        publish(&store, &dense(1)).unwrap_err();
        assert!(waiting.as_mut().poll(&mut context).is_pending(), "operation {at}");
    }
    files.arm(Fault::Never);
    publish(&store, &dense(1)).unwrap();
    assert_same(&wait(waiting).unwrap(), &dense(1));
}
