//! Waiting for a future on the calling thread, without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Polls a future until it is done; the thread sleeps in between.
///
/// A part that needs the services of a runtime (timers, sockets) has to bring it: nothing but this thread polls.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// As [`wait`], but gives up a future that has not ended after `limit`; it is polled when woken, and not otherwise.
pub(crate) fn wait_within<F: Future>(future: F, limit: Duration) -> Option<F::Output> {
    let waker = Arc::new(Woken { thread: thread::current(), woken: AtomicBool::new(true) });
    let (mut future, end) = (pin!(future), Instant::now() + limit);
    loop {
        // A thread may be unparked by others; only a wake-up of the future's own counts.
        if waker.woken.swap(false, Ordering::AcqRel)
            && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&waker))))
        {
            return Some(value);
        }
        let left = end.checked_duration_since(Instant::now())?;
        if !waker.woken.load(Ordering::Acquire) {
            thread::park_timeout(left);
        }
    }
}

/// Runs every task on a thread of its own, and gives their results in order. A panic goes on in the caller.
pub(crate) fn together<R: Send>(tasks: Vec<Box<dyn FnOnce() -> R + Send + '_>>) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = tasks.into_iter().map(|task| scope.spawn(task)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

struct Woken {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Done when another thread says so.
    struct Told(Option<mpsc::Receiver<u32>>, mpsc::Sender<Waker>);

    impl Future for Told {
        type Output = u32;

        fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
            let receiver = self.0.take().unwrap();
            match receiver.try_recv() {
                Ok(value) => Poll::Ready(value),
                Err(_) => {
                    self.0 = Some(receiver);
                    self.1.send(context.waker().clone()).unwrap();
                    Poll::Pending
                }
            }
        }
    }

    #[test]
    fn a_future_that_another_thread_ends_is_waited_for() {
        let (value, receiver) = mpsc::channel();
        let (wakers, waiting) = mpsc::channel::<Waker>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let waker = waiting.recv().unwrap();
                value.send(7).unwrap();
                waker.wake();
            });
            assert_eq!(wait(Told(Some(receiver), wakers)), 7);
        });
        assert_eq!(wait(async { 3 }), 3);
    }

    #[test]
    fn a_future_that_nobody_wakes_is_given_up() {
        assert_eq!(wait_within(async { 3 }, Duration::ZERO), Some(3));
        assert_eq!(wait_within(std::future::pending::<u32>(), Duration::from_millis(10)), None);
    }

    #[test]
    fn results_of_tasks_come_in_order() {
        let tasks = (0..8u32).map(|index| Box::new(move || index * index) as Box<dyn FnOnce() -> u32 + Send>).collect();
        assert_eq!(together(tasks), [0, 1, 4, 9, 16, 25, 36, 49]);
    }
}
