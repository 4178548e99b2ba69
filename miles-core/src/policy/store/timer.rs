//! [`Timer`]: the clock of a store that waits.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Time, and waiting for it to pass. A program with a runtime gives its own, a test one that it moves by hand.
pub trait Timer: Send + Sync {
    /// Time since some moment that does not change.
    fn now(&self) -> Duration;

    /// Resolves when [`now`](Self::now) has reached `time`.
    fn until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The system's monotonic clock; each wait sleeps in a thread of its own.
#[derive(Debug)]
pub struct ThreadTimer {
    start: Instant,
}

impl ThreadTimer {
    /// Counts from now.
    #[must_use]
    pub fn new() -> Self {
        ThreadTimer { start: Instant::now() }
    }
}

impl Default for ThreadTimer {
    fn default() -> Self {
        ThreadTimer::new()
    }
}

impl Timer for ThreadTimer {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Sleep { timer: self, time, alarm: None })
    }
}

struct Sleep<'a> {
    timer: &'a ThreadTimer,
    time: Duration,
    alarm: Option<Arc<Mutex<Waker>>>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(alarm) = &self.alarm {
            context.waker().clone_into(&mut *alarm.lock().unwrap_or_else(PoisonError::into_inner));
        }
        // After the waker is in place: an alarm that has rung before would have found the old one.
        let Some(left) = self.time.checked_sub(self.timer.now()).filter(|left| !left.is_zero()) else {
            return Poll::Ready(());
        };
        if self.alarm.is_none() {
            let alarm = Arc::new(Mutex::new(context.waker().clone()));
            let ringing = Arc::clone(&alarm);
            thread::spawn(move || {
                thread::sleep(left);
                // A waker may poll at once, which takes the lock.
                let waker = ringing.lock().unwrap_or_else(PoisonError::into_inner).clone();
                waker.wake();
            });
            self.alarm = Some(alarm);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::wait;

    #[test]
    fn a_wait_ends_when_its_time_has_come_and_not_before() {
        let timer = ThreadTimer::new();
        let time = timer.now() + Duration::from_millis(20);
        wait(timer.until(time));
        assert!(timer.now() >= time);
        wait(timer.until(Duration::ZERO));
    }
}
