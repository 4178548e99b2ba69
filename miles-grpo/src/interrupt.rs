//! Asking a run to stop after the step it is in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that signal handlers set and the loop reads between steps; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// A flag that nobody has set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the run to finish its step, save and return.
    pub fn request(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether that was asked.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
