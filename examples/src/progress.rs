//! A line that says how far a conversion is, and what memory the process has needed.

use std::io::{IsTerminal, Write, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use miles_core::convert::Progress;

/// One line on a terminal, written over and over; nothing elsewhere.
#[derive(Debug)]
pub struct Bar {
    what: &'static str,
    /// When it was last written; `None` where nothing is to be written.
    shown: Option<Mutex<Instant>>,
}

const WIDTH: usize = 40;
const PAUSE: Duration = Duration::from_millis(100);

impl Bar {
    /// A bar in front of which `what` stands.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Bar { what, shown: stderr().is_terminal().then(|| Mutex::new(Instant::now())) }
    }

    /// Shows how far the work is, some times a second.
    pub fn show(&self, progress: Progress) {
        let Some(shown) = &self.shown else { return };
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.elapsed() >= PAUSE || progress.done_units == progress.units {
            *shown = Instant::now();
            // A display that cannot be written to is no reason to end the work.
            let _ = write!(stderr(), "\r{}", line(self.what, progress));
        }
    }

    /// Ends the line.
    pub fn end(&self) {
        if self.shown.is_some() {
            let _ = writeln!(stderr());
        }
    }
}

fn line(what: &str, progress: Progress) -> String {
    let share = progress.done_bytes as f64 / progress.total_bytes.max(1) as f64;
    let filled = (share * WIDTH as f64) as usize;
    let (done, left) = ("#".repeat(filled), "-".repeat(WIDTH - filled.min(WIDTH)));
    format!("{what} [{done}{left}] {:3.0} % {}/{}", 100.0 * share, progress.done_units, progress.units)
}

/// The most memory that this process has had resident, as the system counts it; `None` where it does not say.
#[must_use]
pub fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fills_up() {
        let at = |done_bytes| line("x", Progress { done_bytes, total_bytes: 80, done_units: 1, units: 2 });
        assert_eq!(at(0), format!("x [{}]   0 % 1/2", "-".repeat(40)));
        assert_eq!(at(20), format!("x [{}{}]  25 % 1/2", "#".repeat(10), "-".repeat(30)));
        assert_eq!(at(80), format!("x [{}] 100 % 1/2", "#".repeat(40)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_tells_the_peak() {
        assert!(peak_resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
