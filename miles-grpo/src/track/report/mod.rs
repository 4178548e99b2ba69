//! `report.html`: one file, nothing loaded from anywhere, readable without scripts.

mod charts;
mod page;
mod series;

use std::path::Path;

use miles_core::plugin::StepRecord;
use miles_core::precision::PrecisionTable;

use crate::output::{OutputError, write_whole};
use crate::summary::Summary;

/// What a report shows.
#[derive(Debug)]
pub struct Report<'a> {
    /// Name of the run.
    pub run: &'a str,
    /// Every step so far.
    pub records: &'a [StepRecord],
    /// The run in figures.
    pub summary: &'a Summary,
    /// The precision map.
    pub precision: &'a PrecisionTable,
    /// Backend and device.
    pub backend: &'a str,
    /// What a person should know and may not expect: recipe notes, emulated formats.
    pub notes: &'a [String],
    /// The config as TOML.
    pub config: &'a str,
}

/// Writes a report, whole or not at all.
///
/// # Errors
/// If a plot cannot be drawn or the file cannot be written.
pub fn write(path: &Path, report: &Report<'_>) -> Result<(), OutputError> {
    write_whole(path, page::html(report)?.as_bytes())
}

#[cfg(test)]
mod tests;
