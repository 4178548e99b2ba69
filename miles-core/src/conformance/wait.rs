//! Waiting for a future on the calling thread, without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Polls a future until it is done; the thread sleeps in between.
///
/// A part that needs the services of a runtime (timers, sockets) has to bring it: nothing but this thread polls.
pub(super) fn wait<F: Future>(future: F) -> F::Output {
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

/// Runs every task on a thread of its own, and gives their results in order. A panic goes on in the caller.
pub(super) fn together<R: Send>(tasks: Vec<Box<dyn FnOnce() -> R + Send + '_>>) -> Vec<R> {
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
    fn results_of_tasks_come_in_order() {
        let tasks = (0..8u32).map(|index| Box::new(move || index * index) as Box<dyn FnOnce() -> u32 + Send>).collect();
        assert_eq!(together(tasks), [0, 1, 4, 9, 16, 25, 36, 49]);
    }
}
