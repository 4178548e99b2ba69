//! The suite in its macro form: one test per group of cases.

use std::sync::Arc;

use miles_core::conformance::{RewardSample, RewardSubject};
use miles_core::policy::MemoryStore;
use miles_outside::{InOrder, Int8Blocks, Shortness};

miles_core::conformance_tests! { format: Int8Blocks::new().unwrap() }
miles_core::conformance_tests! { reward: shortness() }
miles_core::conformance_tests! { scheduler: || Box::new(InOrder) }
miles_core::conformance_tests! { policy_store: || Arc::new(MemoryStore::new(2)) }

fn shortness() -> RewardSubject {
    let three = RewardSample::new("1+1=", "two", None);
    let cut_off = RewardSample { finished: false, ..three.clone() };
    RewardSubject {
        name: "outside-shortness".to_owned(),
        reward: Arc::new(Shortness),
        known: vec![(three, 0.25), (cut_off, 0.0), (RewardSample::new("1+1=", "", None), 1.0)],
        refused: vec![RewardSample::new("", "two", None)],
    }
}
