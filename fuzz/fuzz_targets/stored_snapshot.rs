//! The two files of a version in a directory store, with bytes changed: read, refused, or read as it was written.
#![no_main]

use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use miles_core::conformance::fixture::{Family, policy};
use miles_core::digest::Digest;
use miles_core::policy::store::DirectoryOptions;
use miles_core::policy::{DirectoryStore, PolicyStore, Snapshot};
use miles_core::precision::Recipe;
use miles_fuzz::Scratch;

const NAMES: [&str; 2] = ["version-0000000001/snapshot.json", "version-0000000001/tensors.safetensors"];

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("stored-snapshot"));

/// A version, and its files.
static WRITTEN: LazyLock<(Arc<Snapshot>, [Vec<u8>; 2])> = LazyLock::new(|| {
    let snapshot = policy(Family::Dense, Recipe::Nvfp4Dequantized, 1).unwrap();
    let scratch = Scratch::new("stored-snapshot-written");
    let dir = scratch.fill([]);
    wait(open(dir, &snapshot).unwrap().publish(Arc::clone(&snapshot))).unwrap();
    let files = NAMES.map(|name| fs::read(dir.join(name)).unwrap());
    (snapshot, files)
});

fuzz_target!(|bytes: &[u8]| {
    let (written, files) = &*WRITTEN;
    let [mut description, mut tensors] = files.clone();
    for change in bytes.chunks_exact(4) {
        let file = if change[3] % 2 == 0 { &mut description } else { &mut tensors };
        if file.is_empty() {
            continue;
        }
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % file.len();
        if change[3] > 250 { file.truncate(at) } else { file[at] ^= change[2] }
    }
    // With the digest of the changed description in its place, so that what it says is looked at.
    let [before, after] = [&files[0], &description].map(|text| Digest::of(text).to_string());
    let place = tensors.windows(before.len()).position(|window| window == before.as_bytes());
    if let Some(place) = place {
        tensors[place..place + after.len()].copy_from_slice(after.as_bytes());
    }
    let dir = SCRATCH.fill(&[(NAMES[0], description.as_slice()), (NAMES[1], tensors.as_slice())]);
    let Ok(store) = open(dir, written) else { return };
    let Ok(Some(found)) = wait(store.latest()) else { return };
    assert_eq!(found.stamp(), written.stamp());
    for id in written.network().ids() {
        assert_eq!(found.tensor(id).digest(), written.tensor_digest(id));
    }
});

fn open(dir: &Path, like: &Snapshot) -> Result<DirectoryStore, miles_core::policy::PolicyError> {
    let options = DirectoryOptions::default();
    DirectoryStore::open(dir, Arc::clone(like.network()), Arc::clone(like.map()), options)
}

/// A directory store never waits for anything but its files.
fn wait<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("pending"),
    }
}
