//! A delta between two policy versions, of any content: what is decoded is encoded to the same bytes, and applies to its
//! base or is refused.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use miles_core::conformance::fixture::{Family, policy};
use miles_core::digest::Digest;
use miles_core::policy::{Delta, Snapshot};
use miles_core::precision::Recipe;

const DIGEST_BYTES: usize = 32;

static BASES: LazyLock<[Arc<Snapshot>; 2]> = LazyLock::new(|| {
    [Recipe::Nvfp4Dequantized, Recipe::Fp8Block].map(|recipe| policy(Family::Dense, recipe, 1).unwrap())
});

fuzz_target!(|bytes: &[u8]| {
    let _ = Delta::decode(bytes);
    let [first, second] = &*BASES;
    // A real delta with some bytes replaced gets further than one made of nothing; with a digest that fits, further still.
    let mut content = Delta::between(first, &policy(Family::Dense, Recipe::Nvfp4Dequantized, 2).unwrap(), 4096)
        .and_then(|delta| delta.encode())
        .unwrap();
    content.truncate(content.len() - DIGEST_BYTES);
    for change in bytes.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % content.len();
        if change[3] == 0 {
            content.truncate(at.max(1));
        } else {
            content[at] ^= change[2];
        }
    }
    let digest = Digest::of(&content);
    content.extend_from_slice(digest.as_bytes());
    let Ok(delta) = Delta::decode(&content) else { return };
    assert_eq!(delta.encode().unwrap(), content);
    for base in [first, second] {
        if let Ok(made) = delta.apply(base) {
            assert_eq!((delta.base(), delta.stamp()), (base.stamp(), made.stamp()));
        }
    }
});
