//! Watching a run: `metrics.jsonl`, a progress display, `report.html`.

mod jsonl;
mod progress;
pub mod report;

pub(crate) use jsonl::read_metrics_prefix;
pub use jsonl::{MetricsFile, read_metrics};
pub use progress::Progress;
