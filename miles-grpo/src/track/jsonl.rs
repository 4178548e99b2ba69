//! `metrics.jsonl`: one JSON object per step, on the disk before the next step starts.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use miles_core::json;
use miles_core::plugin::StepRecord;
use serde_json::{Map, Value};

use crate::output::{OutputError, io, length, truncate};

/// The metrics file of a run, open for appending.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens a file at a length: 0 for a new run, what the checkpoint says for a resumed one (later lines are cut).
    ///
    /// # Errors
    /// If it cannot be opened, or is shorter than that.
    pub fn open(path: &Path, bytes: u64) -> Result<Self, OutputError> {
        truncate(path, bytes)?;
        let file = File::options().append(true).open(path).map_err(io(path))?;
        Ok(MetricsFile { path: path.to_owned(), file })
    }

    /// Appends the record of a step.
    ///
    /// # Errors
    /// If writing fails.
    pub fn append(&mut self, record: &StepRecord) -> Result<(), OutputError> {
        let mut line = Map::new();
        line.insert(STEP.to_owned(), record.step.into());
        line.extend(record.values.clone());
        let line = format!("{}\n", Value::Object(line));
        self.file.write_all(line.as_bytes()).and_then(|()| self.file.flush()).map_err(io(&self.path))
    }

    /// Length of the file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn bytes(&self) -> Result<u64, OutputError> {
        length(&self.path)
    }
}

/// Every record of a metrics file.
///
/// # Errors
/// If the file cannot be read, or a line is torn or not a record; the error names the line.
pub fn read_metrics(path: &Path) -> Result<Vec<StepRecord>, OutputError> {
    read_metrics_prefix(path, u64::MAX)
}

/// Every record in the first `bytes` bytes of a metrics file: what it was at an earlier time.
///
/// # Errors
/// As [`read_metrics`]. A file that is shorter is read to its end.
pub(crate) fn read_metrics_prefix(path: &Path, bytes: u64) -> Result<Vec<StepRecord>, OutputError> {
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(bytes).read_to_end(&mut text)).map_err(io(path))?;
    let mut records = Vec::new();
    for (index, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let (path, at) = (path.to_owned(), index + 1);
        let whole = line.strip_suffix(b"\n");
        let Some(line) = whole else { return Err(OutputError::TornMetrics { path, line: at, bytes: line.len() }) };
        records.push(parse(line).map_err(|source| OutputError::Metrics { path, line: at, source })?);
    }
    Ok(records)
}

fn parse(line: &[u8]) -> Result<StepRecord, serde_json::Error> {
    let mut values: Map<String, Value> = json::from_slice(line)?;
    let step = serde_json::from_value(values.shift_remove(STEP).unwrap_or_default())?;
    Ok(StepRecord { step, values })
}

const STEP: &str = "step";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;

    fn record(step: u64) -> StepRecord {
        let mut values = Map::new();
        values.insert("train/loss".to_owned(), json!(0.1 + step as f64));
        values.insert("policy_digest".to_owned(), json!("ab"));
        StepRecord { step, values }
    }

    #[test]
    fn records_come_back_as_they_were_and_a_resumed_file_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(&path, 0).unwrap();
        file.append(&record(0)).unwrap();
        let bytes = file.bytes().unwrap();
        file.append(&record(1)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [record(0), record(1)]);
        let mut file = MetricsFile::open(&path, bytes).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [record(0)]);
        file.append(&record(2)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [record(0), record(2)]);
    }

    #[test]
    fn a_foreign_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        for foreign in ["{\"step\":0}\nno json\n", "{\"step\":0}\n{\"loss\":1}\n"] {
            fs::write(&path, foreign).unwrap();
            let error = read_metrics(&path).unwrap_err();
            assert!(matches!(error, OutputError::Metrics { line: 2, .. }), "{error}");
        }
    }

    #[test]
    fn a_torn_last_line_is_named_even_where_it_is_a_whole_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":0}\n{\"step\":1}").unwrap();
        let error = read_metrics(&path).unwrap_err();
        assert!(matches!(error, OutputError::TornMetrics { line: 2, bytes: 10, .. }), "{error}");
        assert!(error.to_string().contains("metrics.jsonl:2: "), "{error}");
        assert_eq!(read_metrics_prefix(&path, 11).unwrap().len(), 1);
        assert!(matches!(read_metrics_prefix(&path, 10), Err(OutputError::TornMetrics { line: 1, .. })));
    }
}
