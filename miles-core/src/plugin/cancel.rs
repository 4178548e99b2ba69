//! Stopping a request on its way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a running request to stop; clones share the request.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_cancelled: AtomicBool,
    condition: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl CancelToken {
    /// A token that also asks `condition` whenever an engine looks at it, and stays cancelled once that held: a deadline,
    /// a budget. It runs on the thread of the request, between two forwards, and may load a version into the engine.
    #[must_use]
    pub fn when(condition: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        CancelToken(Arc::new(Shared { is_cancelled: AtomicBool::new(false), condition: Some(Box::new(condition)) }))
    }

    /// Asks to stop.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
    }

    /// Whether stopping was asked for.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        if self.0.is_cancelled.load(Ordering::Acquire) {
            return true;
        }
        let holds = self.0.condition.as_ref().is_some_and(|condition| condition());
        if holds {
            self.cancel();
        }
        holds
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("is_cancelled", &self.is_cancelled)
            .field("has_condition", &self.condition.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn clones_share_one_request() {
        let token = CancelToken::default();
        let clone = token.clone();
        assert!(!clone.is_cancelled());
        token.cancel();
        assert!(clone.is_cancelled());
    }

    #[test]
    fn a_condition_is_asked_at_every_look_until_it_holds() {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let token = CancelToken::when(move || counted.fetch_add(1, Ordering::Relaxed) == 2);
        let seen: Vec<bool> = (0..5).map(|_| token.is_cancelled()).collect();
        assert_eq!(seen, [false, false, true, true, true]);
        assert_eq!(looks.load(Ordering::Relaxed), 3);
    }
}
