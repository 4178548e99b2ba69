//! [`Schedule`]: what a worker does next. Units in order; a file whose units are done is hashed before new units start,
//! while the system still has its bytes at hand.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::file_hash::segments;

/// Work that is left, shared by all workers.
pub(super) struct Schedule {
    state: Mutex<State>,
    changed: Condvar,
}

/// One piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Unit of the plan.
    Unit(usize),
    /// Segment of a file that is written.
    Segment { shard: usize, segment: usize },
}

struct State {
    next_unit: usize,
    units: usize,
    /// Units that are being worked on.
    running: usize,
    /// Per file: its length, and outputs that are not written yet.
    files: Vec<(u64, usize)>,
    segments: VecDeque<Task>,
    stopped: bool,
}

impl Schedule {
    /// All of `units` units; `files` gives per file its length and the number of outputs in it.
    pub(super) fn new(units: usize, files: Vec<(u64, usize)>) -> Self {
        let mut state = State { next_unit: 0, units, running: 0, files, segments: VecDeque::new(), stopped: false };
        for shard in 0..state.files.len() {
            state.add_segments(shard);
        }
        Schedule { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The next task; waits while only a unit that is being worked on can bring one. `None`: there is none left.
    pub(super) fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.segments.pop_front() {
                return Some(task);
            }
            if state.next_unit < state.units {
                state.next_unit += 1;
                state.running += 1;
                return Some(Task::Unit(state.next_unit - 1));
            }
            if state.running == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A unit is written: one output in each of `shards`, repetitions included.
    pub(super) fn finished(&self, shards: impl Iterator<Item = usize>) {
        let mut state = self.lock();
        state.running -= 1;
        for shard in shards {
            state.files[shard].1 -= 1;
            state.add_segments(shard);
        }
        self.changed.notify_all();
    }

    /// Gives out no more tasks.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds the segments of a file once everything in it is written.
    fn add_segments(&mut self, shard: usize) {
        let (bytes, left) = self.files[shard];
        if left == 0 {
            self.segments.extend((0..segments(bytes)).map(|segment| Task::Segment { shard, segment }));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::file_hash::SEGMENT_BYTES;
    use super::*;

    #[test]
    fn a_file_is_hashed_as_soon_as_it_is_written() {
        let schedule = Schedule::new(3, vec![(2 * SEGMENT_BYTES, 3), (1, 1), (5, 0)]);
        let segment = |shard, segment| Some(Task::Segment { shard, segment });
        assert_eq!(schedule.next(), segment(2, 0), "nothing is to be written there");
        assert_eq!((schedule.next(), schedule.next()), (Some(Task::Unit(0)), Some(Task::Unit(1))));
        schedule.finished([0, 1].into_iter());
        assert_eq!(schedule.next(), segment(1, 0));
        schedule.finished([0, 0].into_iter());
        assert_eq!((schedule.next(), schedule.next()), (segment(0, 0), segment(0, 1)));
        assert_eq!(schedule.next(), Some(Task::Unit(2)));
        schedule.finished([].into_iter());
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_stopped_schedule_wakes_those_who_wait() {
        let schedule = Schedule::new(1, vec![(1, 1)]);
        assert_eq!(schedule.next(), Some(Task::Unit(0)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| schedule.next());
            schedule.stop();
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}
