//! The suite for observers.

use serde_json::{Map, Value, json};

use super::{Failure, Report, Suite, Verdict};
use crate::digest::Digest;
use crate::plugin::{Event, Observer, StepRecord};
use crate::policy::{PolicyStamp, PolicyVersion};

/// The groups of the observer suite, in order.
pub const OBSERVER_GROUPS: &[&str] = &["events"];

/// Makes an observer as a run starts with it, for each case.
pub type MakeObserver<'a> = dyn Fn() -> Box<dyn Observer> + 'a;

/// Runs the whole observer suite.
#[must_use]
pub fn observers(make: &MakeObserver<'_>) -> Report {
    run(make, Suite::new("observer"))
}

/// Runs one group of the observer suite, or the one case of that name.
#[must_use]
pub fn observer_group(make: &MakeObserver<'_>, group: &str) -> Report {
    run(make, Suite::new("observer").only(group))
}

fn run(make: &MakeObserver<'_>, mut suite: Suite) -> Report {
    suite.case("events/run", || a_whole_run_is_observed(&mut *make(), 0, 3));
    suite.case("events/resumed", || a_whole_run_is_observed(&mut *make(), 7, 9));
    suite.case("events/nothing_left", || a_whole_run_is_observed(&mut *make(), 4, 4));
    suite.case("events/metrics", || metrics_of_any_name_and_kind_are_taken(&mut *make()));
    suite.finish()
}

fn stamp(version: u64) -> PolicyStamp {
    PolicyStamp { version: PolicyVersion(version), digest: Digest::of(&version.to_le_bytes()) }
}

fn told(observer: &mut dyn Observer, event: &Event<'_>) -> Verdict {
    observer.observe(event).map_err(|error| Failure::from(error).at(format!("{event:?}")))
}

fn a_whole_run_is_observed(observer: &mut dyn Observer, from: u64, steps: u64) -> Verdict {
    told(observer, &Event::Started { step: from, steps, stamp: stamp(from) })?;
    for step in from..steps {
        let values = Map::from_iter([
            ("step".to_owned(), Value::from(step)),
            ("reward/mean".to_owned(), Value::from(0.25 * step as f64)),
        ]);
        told(observer, &Event::Step(&StepRecord { step, values }))?;
    }
    told(observer, &Event::Finished { steps, interrupted: false, stamp: stamp(steps) })
}

/// Metrics come and go from version to version: none at all, none known, values that are no numbers.
fn metrics_of_any_name_and_kind_are_taken(observer: &mut dyn Observer) -> Verdict {
    told(observer, &Event::Started { step: 0, steps: 3, stamp: stamp(0) })?;
    let records =
        [json!({}), json!({ "unheard/of": 1e300, "": -0.0, "a b\n": 7 }), json!({ "loss": null, "list": [1, "x"] })];
    for (step, values) in records.into_iter().enumerate() {
        let Value::Object(values) = values else { continue };
        told(observer, &Event::Step(&StepRecord { step: step as u64, values }))?;
    }
    told(observer, &Event::Finished { steps: 3, interrupted: true, stamp: stamp(3) })
}
