//! A progress bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};
use miles_core::plugin::{Event, Observer, StepRecord};

/// Shows reward, held-out accuracy, mismatch and tokens per second as steps end. Writes to standard error.
pub struct Progress {
    sink: Sink,
    accuracy: Option<f64>,
    steps: u64,
}

enum Sink {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
}

impl Progress {
    /// A bar if standard error is a terminal, lines otherwise.
    #[must_use]
    pub fn new() -> Self {
        match stderr().is_terminal() {
            true => Self::with(Sink::Bar(ProgressBar::new(0))),
            false => Self::lines(Box::new(stderr())),
        }
    }

    /// One line per step, to any writer.
    #[must_use]
    pub fn lines(writer: Box<dyn Write + Send>) -> Self {
        Self::with(Sink::Lines(writer))
    }

    fn with(sink: Sink) -> Self {
        Progress { sink, accuracy: None, steps: 0 }
    }

    fn say(&mut self, text: &str, step: u64) {
        match &mut self.sink {
            Sink::Bar(bar) => {
                bar.set_position(step);
                bar.set_message(text.to_owned());
            }
            // A display that cannot be written to is no reason to end a run.
            Sink::Lines(writer) => drop(writeln!(writer, "step {step}/{}  {text}", self.steps)),
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Progress {
    fn observe(&mut self, event: &Event<'_>) -> miles_core::Result<()> {
        match event {
            Event::Started { step, steps, .. } => {
                self.steps = *steps;
                if let Sink::Bar(bar) = &self.sink {
                    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}<{eta}] {msg}");
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    bar.set_length(*steps);
                    bar.set_position(*step);
                    bar.reset_eta();
                }
            }
            Event::Step(record) => {
                let latest = record.number("eval/accuracy").or_else(|| record.number("eval/accuracy_before"));
                self.accuracy = latest.or(self.accuracy);
                self.say(&line(record, self.accuracy), record.step + 1);
            }
            Event::Finished { interrupted, .. } => {
                if let Sink::Bar(bar) = &self.sink {
                    if *interrupted { bar.abandon() } else { bar.finish() }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn line(record: &StepRecord, accuracy: Option<f64>) -> String {
    let number = |key: &str| record.number(key).unwrap_or(f64::NAN);
    let held_out = accuracy.map(|value| format!(" held-out {value:.3}")).unwrap_or_default();
    format!(
        "reward {:.3}{held_out} mismatch {} {:.0} tokens/s",
        number("rollout/reward_mean"),
        number("train/mismatch_max_abs"),
        number("perf/rollout_tokens_per_s"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use miles_core::digest::Digest;
    use miles_core::policy::{PolicyStamp, PolicyVersion};
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn without_a_terminal_every_step_is_one_line() {
        let written = Shared::default();
        let mut progress = Progress::lines(Box::new(written.clone()));
        let stamp = PolicyStamp { version: PolicyVersion(0), digest: Digest::of(b"p") };
        progress.observe(&Event::Started { step: 0, steps: 2, stamp }).unwrap();
        for step in 0..2 {
            let values = json!({ "rollout/reward_mean": 0.5, "train/mismatch_max_abs": 0.0,
                                 "perf/rollout_tokens_per_s": 1234.4, "eval/accuracy_before": 0.25 });
            let mut values = values.as_object().cloned().unwrap();
            if step > 0 {
                values.shift_remove("eval/accuracy_before");
            }
            progress.observe(&Event::Step(&StepRecord { step, values })).unwrap();
        }
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "step 1/2  reward 0.500 held-out 0.250 mismatch 0 1234 tokens/s\n\
             step 2/2  reward 0.500 held-out 0.250 mismatch 0 1234 tokens/s\n"
        );
    }
}
