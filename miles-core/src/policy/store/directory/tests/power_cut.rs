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

/// What was found over all cuts.
#[derive(Default)]
struct Found {
    cuts: usize,
    /// The operations of the whole publication.
    journal: Vec<Operation>,
    /// Whether the publication had returned, and the newest version then.
    newest: BTreeSet<(bool, PolicyVersion)>,
}

/// Publishes version 2 over version 1, which goes; cuts the power at every operation of that, and opens again whatever a
/// disk may then hold. The newest version has to be 1 or 2, and 2 once the publication has returned; every version that
/// is there has to be whole to the bit; and the publication can be made again. The operation `failing` fails before; of the
/// sync number `forgotten` the disk never hears.
fn cut_everywhere(failing: Option<usize>, forgotten: Option<usize>) -> Result<Found, String> {
    let (old, new, next) = (dense(1), dense(2), dense(3));
    let mut all = Found::default();
    loop {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        let files = FaultyFiles::new();
        let store = faulty(&dir, &files);
        publish(&store, &old).unwrap();
        let mut disk = Disk::of(&dir);
        files.arm(Fault::PowerCut(failing, all.cuts));
        let returned = publish(&store, &new).is_ok();
        let (journal, mut syncs) = (files.journal(), 0);
        for operation in &journal {
            let is_sync = matches!(operation, Operation::Sync(_) | Operation::SyncDir(_));
            if !(is_sync && forgotten == Some(syncs)) {
                disk.carry_out(operation);
            }
            syncs += usize::from(is_sync);
        }
        for (index, outcome) in outcomes().enumerate() {
            let left = scratch.path().join(format!("left-{index}"));
            disk.after_a_power_cut(outcome, &left);
            let found = inspect(&left, returned, [&old, &new, &next]).map_err(|why| {
                format!("cut at {}, {outcome:?}, after {:?}: {why}", all.cuts, journal.last().map(kind))
            })?;
            all.newest.insert((returned, found));
        }
        all.journal = journal;
        if !files.hit() {
            return Ok(all);
        }
        all.cuts += 1;
    }
}

/// The newest version of what a power cut has left.
fn inspect(left: &Path, returned: bool, [old, new, next]: [&Arc<Snapshot>; 3]) -> Result<PolicyVersion, String> {
    let store = open(left, old, 1).map_err(|error| error.to_string())?;
    let found = wait(store.latest()).map_err(|error| error.to_string())?.ok_or("no version is left")?;
    let version = found.stamp().version;
    if returned && version != PolicyVersion(2) {
        return Err(format!("published, and {version} is found"));
    }
    for version in store.held().map_err(|error| error.to_string())? {
        let snapshot = if version == PolicyVersion(1) { old } else { new };
        let held = wait(store.version(version)).map_err(|error| error.to_string())?;
        assert_same(&held, snapshot);
    }
    if version == PolicyVersion(1) {
        publish(&store, new).map_err(|error| error.to_string())?;
    }
    publish(&store, next).map_err(|error| error.to_string())?;
    assert_same(&newest(&open(left, old, 1).unwrap()), next);
    assert_eq!((held(&store), others(left)), (vec![3], Vec::new()));
    Ok(version)
}

#[test]
fn a_power_cut_never_leaves_a_readable_torn_version() {
    let found = cut_everywhere(None, None).unwrap_or_else(|why| panic!("{why}"));
    // Two files of several writes, two syncs of files, and each other operation.
    let operations: BTreeSet<&str> = found.journal.iter().map(kind).collect();
    assert!(found.cuts > 15 && operations.len() == 7, "{} cuts, {operations:?}", found.cuts);
    let [old, new] = [1, 2].map(PolicyVersion);
    assert_eq!(found.newest, BTreeSet::from([(false, old), (false, new), (true, new)]));
}

/// First an operation fails, then the power, while the store takes back what it did.
#[test]
fn a_power_cut_after_an_error_leaves_no_torn_version_either() {
    let whole = cut_everywhere(None, None).unwrap_or_else(|why| panic!("{why}"));
    let places = whole.journal.iter().enumerate().filter(|(_, operation)| kind(operation) != "write");
    for (failing, operation) in places {
        let found = cut_everywhere(Some(failing), None);
        found.unwrap_or_else(|why| panic!("{} fails, then: {why}", kind(operation)));
    }
}

/// The model of the disk can tell: each of the syncs left out alone is found out.
#[test]
fn every_sync_of_a_publication_is_needed() {
    let whole = cut_everywhere(None, None).unwrap_or_else(|why| panic!("{why}"));
    let is_sync = |operation: &Operation| matches!(operation, Operation::Sync(_) | Operation::SyncDir(_));
    let syncs: Vec<usize> = (0..whole.journal.len()).filter(|at| is_sync(&whole.journal[*at])).collect();
    assert_eq!(syncs.len(), 5);
    for forgotten in 0..syncs.len() {
        assert!(cut_everywhere(None, Some(forgotten)).is_err(), "sync {forgotten} is not missed");
    }
    // The fourth makes the new name durable; where it fails, the sync that takes the name back comes in its place.
    assert!(cut_everywhere(Some(syncs[3]), Some(3)).is_err(), "the sync after a failed one is not missed");
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
        if !files.hit() {
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
