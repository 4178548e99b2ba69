//! Cases of the policy-store suite about waiting for newer versions.

use std::future::poll_fn;
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use super::policy_store::{MakeStore, same, snapshot};
use super::wait::{together, wait, wait_within};
use super::{Failure, Suite, Verdict};
use crate::Result;
use crate::policy::{PolicyStore, PolicyVersion, Snapshot};

pub(super) fn run(make: &MakeStore<'_>, suite: &mut Suite) {
    suite.case("subscription/at_once", || what_is_there_is_given_at_once(&*make()));
    suite.case("subscription/woken", || a_publication_wakes_who_waits(&*make()));
    suite.case("subscription/everyone", || a_publication_wakes_everyone(&*make()));
    suite.case("subscription/only_newer", || nothing_but_a_newer_version_is_news(&*make()));
    suite.case("subscription/dropped", || who_gives_up_takes_nothing_from_others(&*make()));
    suite.case("subscription/following", || a_follower_sees_growing_versions_to_the_last(&*make()));
}

type Task<'a> = Box<dyn FnOnce() -> Verdict + Send + 'a>;

fn what_is_there_is_given_at_once(store: &dyn PolicyStore) -> Verdict {
    for newest in [1, 2, 7] {
        let published = snapshot(newest)?;
        wait(store.publish(Arc::clone(&published)))?;
        for after in [None, Some(0), Some(newest - 1)] {
            let after = after.map(PolicyVersion);
            let found = given(after, wait_within(store.newer_than(after), LIMIT))?;
            same(&found, &published, "the newer version that is there already")?;
        }
    }
    Ok(())
}

fn a_publication_wakes_who_waits(store: &dyn PolicyStore) -> Verdict {
    for (after, next) in [(None, 0), (Some(PolicyVersion(0)), 1), (Some(PolicyVersion(1)), 5)] {
        subscribers_get(store, &[after], next)?;
    }
    Ok(())
}

fn a_publication_wakes_everyone(store: &dyn PolicyStore) -> Verdict {
    subscribers_get(store, &[None; 4], 0)?;
    let after = Some(PolicyVersion(0));
    subscribers_get(store, &[after, after, after, after], 1)
}

/// Subscribers on threads of their own, all waiting when `next` is published, all get it.
fn subscribers_get(store: &dyn PolicyStore, after: &[Option<PolicyVersion>], next: u64) -> Verdict {
    let published = &snapshot(next)?;
    let (begun, waiting) = mpsc::channel();
    let subscriber = |after: Option<PolicyVersion>| {
        let begun = begun.clone();
        let task = move || same(&subscribe(store, after, begun)?, published, "the version that a subscriber gets");
        Box::new(task) as Task<'_>
    };
    let mut tasks: Vec<Task<'_>> = after.iter().map(|after| subscriber(*after)).collect();
    let count = tasks.len();
    tasks.push(Box::new(move || {
        waiting.iter().take(count).for_each(drop);
        Ok(wait(store.publish(Arc::clone(published)))?)
    }));
    drop(begun);
    together(tasks).into_iter().collect()
}

fn nothing_but_a_newer_version_is_news(store: &dyn PolicyStore) -> Verdict {
    wait(store.publish(snapshot(3)?))?;
    let mut context = Context::from_waker(Waker::noop());
    let (mut of_newest, mut of_later) =
        (store.newer_than(Some(PolicyVersion(3))), store.newer_than(Some(PolicyVersion(5))));
    let pending = of_newest.as_mut().poll(&mut context).is_pending();
    Failure::unless(pending, || "a subscriber that has version 3, the newest, is given one".to_owned())?;
    for version in [4, 5] {
        let pending = of_later.as_mut().poll(&mut context).is_pending();
        Failure::unless(pending, || format!("a subscriber that has version 5 is given one before {version}"))?;
        wait(store.publish(snapshot(version)?))?;
        let pending = of_later.as_mut().poll(&mut context).is_pending();
        Failure::unless(pending, || format!("a subscriber that has version 5 is given one after {version}"))?;
    }
    let last = snapshot(6)?;
    wait(store.publish(Arc::clone(&last)))?;
    same(&given(Some(PolicyVersion(3)), wait_within(of_newest, LIMIT))?, &last, "the version after 3")?;
    same(&given(Some(PolicyVersion(5)), wait_within(of_later, LIMIT))?, &last, "the version after 5")
}

fn who_gives_up_takes_nothing_from_others(store: &dyn PolicyStore) -> Verdict {
    let published = &snapshot(0)?;
    let (begun, waiting) = mpsc::channel();
    let tasks: Vec<Task<'_>> = vec![
        Box::new(move || same(&subscribe(store, None, begun)?, published, "the version that a subscriber gets")),
        Box::new(move || {
            waiting.iter().for_each(drop);
            for _ in 0..3 {
                let mut given_up = store.newer_than(None);
                let pending = given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
                Failure::unless(pending, || "an empty store gives a subscriber a version".to_owned())?;
            }
            Ok(wait(store.publish(Arc::clone(published)))?)
        }),
    ];
    together(tasks).into_iter().collect()
}

fn a_follower_sees_growing_versions_to_the_last(store: &dyn PolicyStore) -> Verdict {
    let snapshots: Vec<Arc<Snapshot>> = (0..12).map(snapshot).collect::<Result<_>>()?;
    let follower = || {
        let mut seen: Option<PolicyVersion> = None;
        while seen != Some(PolicyVersion(11)) {
            let found = given(seen, wait_within(store.newer_than(seen), LIMIT))?;
            let version = found.stamp().version;
            Failure::unless(Some(version) > seen, || format!("a follower gets {version} after {seen:?}"))?;
            let published = snapshots.get(version.0 as usize);
            let published = published.ok_or_else(|| Failure::new(format!("version {version} was never published")))?;
            same(&found, published, "a version that a follower gets")?;
            seen = Some(version);
        }
        Ok(())
    };
    let publisher =
        || snapshots.iter().try_for_each(|snapshot| Ok::<_, Failure>(wait(store.publish(Arc::clone(snapshot)))?));
    let tasks: Vec<Task<'_>> = vec![Box::new(follower), Box::new(follower), Box::new(publisher)];
    together(tasks).into_iter().collect()
}

/// Waits for a newer version, and says on `begun` that it does. It is polled again only when it is woken.
fn subscribe(
    store: &dyn PolicyStore,
    after: Option<PolicyVersion>,
    begun: mpsc::Sender<()>,
) -> Result<Arc<Snapshot>, Failure> {
    let (mut future, mut begun) = (store.newer_than(after), Some(begun));
    let polled = poll_fn(|context| {
        let result = future.as_mut().poll(context);
        if let Some(begun) = begun.take() {
            // Whoever listens may have failed, and says so itself.
            let _ = begun.send(());
        }
        result
    });
    given(after, wait_within(polled, LIMIT))
}

fn given(after: Option<PolicyVersion>, result: Option<Result<Arc<Snapshot>>>) -> Result<Arc<Snapshot>, Failure> {
    let held = after.map_or("nothing".to_owned(), |version| format!("version {version}"));
    match result {
        Some(result) => Ok(result?),
        None => {
            Err(Failure::new(format!("a subscriber that has {held} is not given the newer version within {LIMIT:?}")))
        }
    }
}

/// Far more than a wake-up takes on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(3);
