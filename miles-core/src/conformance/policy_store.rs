//! The suite for policy stores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use super::fixture::{Family, policy};
use super::wait::{together, wait};
use super::{Failure, Report, Suite, Verdict, subscription};
use crate::policy::{PolicyError, PolicyStore, PolicyVersion, Snapshot};
use crate::precision::Recipe;
use crate::{Error, Result};

/// The groups of the policy-store suite, in order.
pub const POLICY_STORE_GROUPS: &[&str] = &["reading", "publishing", "concurrency", "subscription"];

/// Makes an empty store for each case.
pub type MakeStore<'a> = dyn Fn() -> Arc<dyn PolicyStore> + 'a;

/// Runs the whole policy-store suite. The store has to keep at least the two newest versions.
#[must_use]
pub fn policy_stores(make: &MakeStore<'_>) -> Report {
    run(make, Suite::new("policy store"))
}

/// Runs one group of the policy-store suite, or the one case of that name.
#[must_use]
pub fn policy_store_group(make: &MakeStore<'_>, group: &str) -> Report {
    run(make, Suite::new("policy store").only(group))
}

fn run(make: &MakeStore<'_>, mut suite: Suite) -> Report {
    suite.case("reading/empty", || an_empty_store_has_nothing(&*make()));
    suite.case("reading/latest", || the_newest_version_is_read_as_published(&*make()));
    suite.case("reading/unknown", || an_unknown_version_names_those_held(&*make()));
    suite.case("reading/held", || a_reader_keeps_its_snapshot(&*make()));
    suite.case("publishing/growing", || versions_only_grow(&*make()));
    suite.case("publishing/gaps", || versions_may_skip_numbers(&*make()));
    suite.case("publishing/refused", || a_refused_publication_changes_nothing(&*make()));
    suite.case("publishing/same_bytes", || equal_bytes_are_a_version_of_their_own(&*make()));
    suite.case("concurrency/publishers", || publishers_race_without_loss(make));
    suite.case("concurrency/readers", || readers_see_whole_versions_in_order(&*make()));
    subscription::run(make, &mut suite);
    suite.finish()
}

pub(super) fn snapshot(version: u64) -> Result<Arc<Snapshot>> {
    policy(Family::Dense, Recipe::Mxfp8, version)
}

fn an_empty_store_has_nothing(store: &dyn PolicyStore) -> Verdict {
    let latest = wait(store.latest())?;
    Failure::unless(latest.is_none(), || "an empty store has a newest version".to_owned())?;
    refuses_unknown(store, 0, &[])
}

fn the_newest_version_is_read_as_published(store: &dyn PolicyStore) -> Verdict {
    for version in 0..3 {
        let published = snapshot(version)?;
        wait(store.publish(Arc::clone(&published)))?;
        same(&newest(store)?, &published, "the newest version")?;
        same(&wait(store.version(PolicyVersion(version)))?, &published, "the version by its number")?;
    }
    same(&wait(store.version(PolicyVersion(1)))?, &snapshot(1)?, "the version before the newest")
}

fn an_unknown_version_names_those_held(store: &dyn PolicyStore) -> Verdict {
    for version in [3, 4] {
        wait(store.publish(snapshot(version)?))?;
    }
    for version in [0, 5, u64::MAX] {
        refuses_unknown(store, version, &[3, 4])?;
    }
    Ok(())
}

fn a_reader_keeps_its_snapshot(store: &dyn PolicyStore) -> Verdict {
    let published = snapshot(0)?;
    wait(store.publish(Arc::clone(&published)))?;
    let held = newest(store)?;
    for version in 1..6 {
        wait(store.publish(snapshot(version)?))?;
        same(&held, &published, "a snapshot that a reader holds")?;
    }
    Ok(())
}

fn versions_only_grow(store: &dyn PolicyStore) -> Verdict {
    for (version, held) in [(4, None), (4, Some(4)), (3, Some(4)), (0, Some(4)), (5, None), (4, Some(5))] {
        match (wait(store.publish(snapshot(version)?)), held) {
            (Ok(()), None) => {}
            (Ok(()), Some(newest)) => return Err(Failure::new(format!("takes version {version} after {newest}"))),
            (Err(Error::Policy(PolicyError::NotMonotonic { published, newest })), Some(held)) => {
                let right = (published, newest) == (PolicyVersion(version), PolicyVersion(held));
                Failure::unless(right, || format!("names {published} after {newest}, not {version} after {held}"))?;
            }
            (Err(error), _) => return Err(Failure::from(error).at(format!("version {version}"))),
        }
    }
    Ok(())
}

fn versions_may_skip_numbers(store: &dyn PolicyStore) -> Verdict {
    for version in [2, 7, 1000] {
        wait(store.publish(snapshot(version)?))?;
        same(&newest(store)?, &snapshot(version)?, "the newest version")?;
    }
    Ok(())
}

fn a_refused_publication_changes_nothing(store: &dyn PolicyStore) -> Verdict {
    let (first, second) = (snapshot(1)?, snapshot(2)?);
    wait(store.publish(Arc::clone(&first)))?;
    wait(store.publish(Arc::clone(&second)))?;
    for version in [1, 0, 2] {
        if wait(store.publish(snapshot(version)?)).is_ok() {
            return Err(Failure::new(format!("takes version {version} after 2")));
        }
        same(&newest(store)?, &second, "the newest version after a refusal")?;
        same(&wait(store.version(PolicyVersion(1)))?, &first, "version 1 after a refusal")?;
    }
    refuses_unknown(store, 0, &[1, 2])
}

/// An update too small to change a byte is a version like any other.
fn equal_bytes_are_a_version_of_their_own(store: &dyn PolicyStore) -> Verdict {
    let first = snapshot(0)?;
    let tensors = first.network().ids().map(|id| Arc::clone(first.tensor(id))).collect();
    let again = Snapshot::new(PolicyVersion(1), Arc::clone(first.network()), Arc::clone(first.map()), tensors)?;
    wait(store.publish(Arc::clone(&first)))?;
    wait(store.publish(Arc::new(again)))?;
    let stamp = newest(store)?.stamp();
    let right = stamp.version == PolicyVersion(1) && stamp.digest == first.stamp().digest;
    Failure::unless(right, || format!("the newest version is {stamp}"))
}

/// Of equal versions published at the same time one is taken; of different ones the largest always is.
fn publishers_race_without_loss(make: &MakeStore<'_>) -> Verdict {
    let snapshots: Vec<Arc<Snapshot>> = (0..4).map(snapshot).collect::<Result<_>>()?;
    for round in 0..10 {
        let store = make();
        let of_thread = |index: usize| {
            let (store, snapshot) = (Arc::clone(&store), Arc::clone(&snapshots[(index + round) / 2 % 4]));
            let publish = move || (snapshot.stamp().version, wait(store.publish(snapshot)));
            Box::new(publish) as Box<dyn FnOnce() -> (PolicyVersion, Result<()>) + Send>
        };
        let results = together((0..8).map(of_thread).collect());
        let mut taken = Vec::new();
        for (version, result) in results {
            match result {
                Ok(()) => taken.push(version),
                Err(Error::Policy(PolicyError::NotMonotonic { .. })) => {}
                Err(error) => return Err(Failure::from(error).at(format!("version {version}"))),
            }
        }
        taken.sort_unstable();
        let doubled = taken.windows(2).find(|pair| pair[0] == pair[1]);
        if let Some(pair) = doubled {
            return Err(Failure::new(format!("version {} was taken twice", pair[0])));
        }
        let largest = PolicyVersion(3);
        Failure::unless(taken.last() == Some(&largest), || format!("version 3 was not taken, only {taken:?}"))?;
        same(&newest(&*store)?, &snapshots[3], "the newest version after a race")?;
    }
    Ok(())
}

fn readers_see_whole_versions_in_order(store: &dyn PolicyStore) -> Verdict {
    let snapshots: Vec<Arc<Snapshot>> = (0..12).map(snapshot).collect::<Result<_>>()?;
    wait(store.publish(Arc::clone(&snapshots[0])))?;
    let (done, start) = (AtomicBool::new(false), Barrier::new(3));
    let publisher = || {
        start.wait();
        let result = snapshots[1..].iter().try_for_each(|snapshot| {
            std::thread::sleep(std::time::Duration::from_micros(300));
            Ok(wait(store.publish(Arc::clone(snapshot)))?)
        });
        done.store(true, Ordering::Release);
        result
    };
    let reader = || {
        start.wait();
        let mut seen = PolicyVersion(0);
        loop {
            let last_turn = done.load(Ordering::Acquire);
            let found = newest(store)?;
            let version = found.stamp().version;
            Failure::unless(version >= seen, || format!("version {version} is read after {seen}"))?;
            seen = version;
            let published = snapshots.get(version.0 as usize);
            let published = published.ok_or_else(|| Failure::new(format!("version {version} was never published")))?;
            same(&found, published, "a version read while others are published")?;
            by_number_or_overtaken(store, published)?;
            if last_turn {
                return Failure::unless(version.0 == 11, || format!("the last version read is {version}, not 11"));
            }
        }
    };
    let tasks: Vec<Box<dyn FnOnce() -> Verdict + Send>> = vec![Box::new(publisher), Box::new(reader), Box::new(reader)];
    together(tasks).into_iter().collect()
}

/// The version can be read by its number, unless two newer ones have pushed it out by now.
fn by_number_or_overtaken(store: &dyn PolicyStore, published: &Arc<Snapshot>) -> Verdict {
    let version = published.stamp().version;
    match wait(store.version(version)) {
        Ok(found) => same(&found, published, "a version by its number"),
        Err(error) => {
            let newest = newest(store)?.stamp().version;
            let why = || format!("version {version} cannot be read while {newest} is the newest: {error}");
            Failure::unless(newest >= version.next().next(), why)
        }
    }
}

fn newest(store: &dyn PolicyStore) -> Result<Arc<Snapshot>, Failure> {
    wait(store.latest())?.ok_or_else(|| Failure::new("a store with versions has no newest one"))
}

/// Compares stamps, and the digests of what the snapshot really holds.
pub(super) fn same(found: &Arc<Snapshot>, published: &Arc<Snapshot>, what: &str) -> Verdict {
    let (stamp, expected) = (found.stamp(), published.stamp());
    Failure::unless(stamp == expected, || format!("{what} is {stamp}, not {expected}"))?;
    for id in published.network().ids() {
        let name = &published.network().parameter(id).name;
        let right = found.tensor(id).digest() == published.tensor_digest(id);
        Failure::unless(right, || format!("{what}: `{name}` has other bytes than were published"))?;
    }
    Ok(())
}

/// The version is refused, and the error names exactly the versions that can be read of those published.
fn refuses_unknown(store: &dyn PolicyStore, version: u64, held_now: &[u64]) -> Verdict {
    match wait(store.version(PolicyVersion(version))) {
        Err(Error::Policy(PolicyError::UnknownVersion { version: named, held })) => {
            let right = named == PolicyVersion(version) && held == held_now;
            Failure::unless(right, || format!("version {version}: the error names {named}, held {held:?}"))
        }
        Err(error) => Err(Failure::from(error).at(format!("version {version}"))),
        Ok(found) => Err(Failure::new(format!("version {version} is not held, but {} is returned", found.stamp()))),
    }
}
