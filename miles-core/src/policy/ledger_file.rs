//! Reading a ledger file strictly, one version at a time.
//!
//! Events of a version follow one another and versions grow, so no more than one version is held. A line that is no
//! event, a torn last line, a version that goes back and two events that contradict one another are errors that name the
//! line. The same event twice is not: two hand-offs may record the same quantization.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::export_event::failed;
use super::{ExportEvent, LedgerError, LedgerEvent, PolicyError, PolicyVersion};
use crate::checkpoint::limits::MAX_JSON_BYTES;
use crate::json;

/// Everything that a ledger says about one version.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedVersion {
    version: PolicyVersion,
    events: Vec<LedgerEvent>,
    by_tensor: HashMap<String, (usize, usize)>,
    export: Option<ExportEvent>,
}

impl RecordedVersion {
    /// The version.
    #[must_use]
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// One event per tensor, in the order in which they were recorded.
    #[must_use]
    pub fn events(&self) -> &[LedgerEvent] {
        &self.events
    }

    /// The event of a tensor.
    #[must_use]
    pub fn event(&self, tensor: &str) -> Option<&LedgerEvent> {
        self.by_tensor.get(tensor).map(|&(index, _)| &self.events[index])
    }

    /// The last export of the version, if one was recorded.
    #[must_use]
    pub fn export(&self) -> Option<&ExportEvent> {
        self.export.as_ref()
    }
}

/// An open ledger file: iterates over its versions, oldest first. After an error there is nothing more.
#[derive(Debug)]
pub struct LedgerFile {
    path: PathBuf,
    input: BufReader<File>,
    /// Lines read.
    lines: usize,
    /// The first event of the next version, read already.
    ahead: Option<Line>,
    newest: Option<PolicyVersion>,
    is_over: bool,
}

#[derive(Debug)]
enum Line {
    Event(LedgerEvent),
    Export(ExportEvent),
}

impl LedgerFile {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read, or is empty ([`LedgerError::Empty`]).
    pub fn open(path: &Path) -> Result<Self, PolicyError> {
        let file = File::open(path).map_err(failed(path))?;
        if file.metadata().map_err(failed(path))?.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::IsADirectory);
            return Err(failed(path)(source));
        }
        let mut input = BufReader::new(file);
        if input.fill_buf().map_err(failed(path))?.is_empty() {
            return Err(LedgerError::Empty { path: path.to_owned() }.into());
        }
        Ok(LedgerFile { path: path.to_owned(), input, lines: 0, ahead: None, newest: None, is_over: false })
    }

    /// What a file says about one version. The file is read up to the version after it.
    ///
    /// # Errors
    /// As [`LedgerFile::open`] and the iteration; [`PolicyError::UnknownVersion`] when the version is not there.
    pub fn find(path: &Path, version: PolicyVersion) -> Result<RecordedVersion, PolicyError> {
        let mut held = Vec::new();
        for recorded in Self::open(path)? {
            let recorded = recorded?;
            if recorded.version == version {
                return Ok(recorded);
            }
            held.push(recorded.version.0);
        }
        Err(PolicyError::UnknownVersion { version, held })
    }

    fn read_version(&mut self) -> Result<Option<RecordedVersion>, PolicyError> {
        let first = match self.ahead.take() {
            Some(line) => Some(line),
            None => self.read_line()?,
        };
        let Some(first) = first else { return Ok(None) };
        let version = first.version();
        if let Some(newest) = self.newest.filter(|newest| version <= *newest) {
            return Err(LedgerError::Order { path: self.path.clone(), line: self.lines, version, newest }.into());
        }
        self.newest = Some(version);
        let mut recorded = RecordedVersion { version, events: Vec::new(), by_tensor: HashMap::new(), export: None };
        self.add(&mut recorded, first)?;
        while let Some(line) = self.read_line()? {
            if line.version() != version {
                self.ahead = Some(line);
                break;
            }
            self.add(&mut recorded, line)?;
        }
        Ok(Some(recorded))
    }

    fn add(&self, recorded: &mut RecordedVersion, line: Line) -> Result<(), PolicyError> {
        match line {
            Line::Export(event) => self.add_export(recorded, event),
            Line::Event(event) => self.add_event(recorded, event),
        }
    }

    fn add_export(&self, recorded: &mut RecordedVersion, event: ExportEvent) -> Result<(), PolicyError> {
        let (path, line) = (self.path.clone(), self.lines);
        if recorded.events.is_empty() {
            return Err(LedgerError::ExportOnly { path, line, version: event.version }.into());
        }
        let is_below = |name: &str| {
            let mut parts = Path::new(name).components().peekable();
            parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if let Some(file) = event.files.keys().find(|name| !is_below(name)) {
            return Err(LedgerError::ForeignFile { path, line, file: file.clone() }.into());
        }
        recorded.export = Some(event);
        Ok(())
    }

    fn add_event(&self, recorded: &mut RecordedVersion, event: LedgerEvent) -> Result<(), PolicyError> {
        let Some(&(index, first_line)) = recorded.by_tensor.get(&event.tensor) else {
            recorded.by_tensor.insert(event.tensor.clone(), (recorded.events.len(), self.lines));
            recorded.events.push(event);
            return Ok(());
        };
        let first = &recorded.events[index];
        let source = |event: &LedgerEvent| format!("{} ({})", event.source_digest, event.source_dtype);
        let output = |event: &LedgerEvent| event.output_digest.to_string();
        let format = |event: &LedgerEvent| event.format.clone();
        let compared: [(&'static str, String, String); 3] = [
            ("source", source(first), source(&event)),
            ("format", format(first), format(&event)),
            ("output", output(first), output(&event)),
        ];
        match compared.into_iter().find(|(_, first, second)| first != second) {
            None => Ok(()),
            Some((what, first, second)) => Err(LedgerError::Contradiction {
                path: self.path.clone(),
                line: self.lines,
                first_line,
                tensor: event.tensor,
                version: event.version,
                what,
                first,
                second,
            }
            .into()),
        }
    }

    fn read_line(&mut self) -> Result<Option<Line>, PolicyError> {
        let mut text = Vec::new();
        let mut limited = (&mut self.input).take(MAX_JSON_BYTES);
        limited.read_until(b'\n', &mut text).map_err(failed(&self.path))?;
        if text.is_empty() {
            return Ok(None);
        }
        self.lines += 1;
        let (path, line) = (self.path.clone(), self.lines);
        if text.pop_if(|last| *last == b'\n').is_none() {
            return Err(if text.len() as u64 == MAX_JSON_BYTES {
                LedgerError::LongLine { path, line, limit_bytes: MAX_JSON_BYTES }.into()
            } else {
                LedgerError::Torn { path, line, bytes: text.len() }.into()
            });
        }
        Ok(Some(parse(&text).map_err(|source| LedgerError::Line { path, line, source })?))
    }
}

impl Iterator for LedgerFile {
    type Item = Result<RecordedVersion, PolicyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let read = self.read_version();
        self.is_over = !matches!(read, Ok(Some(_)));
        read.transpose()
    }
}

impl Line {
    fn version(&self) -> PolicyVersion {
        match self {
            Line::Event(event) => event.version,
            Line::Export(event) => event.version,
        }
    }
}

/// A line is an export if it lists files; anything else has to be a quantization.
fn parse(text: &[u8]) -> Result<Line, serde_json::Error> {
    #[derive(Deserialize)]
    struct Kind {
        files: Option<IgnoredAny>,
    }
    match json::from_slice::<Kind>(text)?.files {
        Some(_) => serde_json::from_slice(text).map(Line::Export),
        None => serde_json::from_slice(text).map(Line::Event),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
