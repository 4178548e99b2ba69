//! Reading a ledger file strictly, one version at a time.
//!
//! Events of a version follow one another and versions grow, so no more than one version is held. A line that is no
//! event or not written as a ledger writes it, a torn last line, a version that goes back and two events that contradict
//! one another are errors that name the line. The same event twice is not: two hand-offs may record the same quantization.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Take};
use std::path::{Component, Path};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::export_event::failed;
use super::{ExportEvent, LedgerError, LedgerEvent, PolicyError, PolicyVersion, RecordedVersion};
use crate::checkpoint::limits::MAX_JSON_BYTES;
use crate::json;

/// An open ledger file: iterates over its versions, oldest first. After an error there is nothing more.
#[derive(Debug)]
pub struct LedgerFile {
    path: Arc<Path>,
    input: BufReader<Take<File>>,
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
        Self::open_prefix(path, u64::MAX)
    }

    /// Opens the first `bytes` bytes of a file: what it was at an earlier time.
    ///
    /// # Errors
    /// As [`LedgerFile::open`]. A file that is shorter is read to its end.
    pub fn open_prefix(path: &Path, bytes: u64) -> Result<Self, PolicyError> {
        let file = File::open(path).map_err(failed(path))?;
        if file.metadata().map_err(failed(path))?.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::IsADirectory);
            return Err(failed(path)(source));
        }
        let mut input = BufReader::new(file.take(bytes));
        if input.fill_buf().map_err(failed(path))?.is_empty() {
            return Err(LedgerError::Empty { path: path.to_owned() }.into());
        }
        Ok(LedgerFile { path: path.into(), input, lines: 0, ahead: None, newest: None, is_over: false })
    }

    /// What a file says about one version. The file is read up to the version after it.
    ///
    /// # Errors
    /// As [`LedgerFile::open`] and the iteration; [`PolicyError::UnknownVersion`] when the version is not there.
    pub fn find(path: &Path, version: PolicyVersion) -> Result<RecordedVersion, PolicyError> {
        let mut held = Vec::new();
        for recorded in Self::open(path)? {
            let recorded = recorded?;
            if recorded.version() == version {
                return Ok(recorded);
            }
            held.push(recorded.version().0);
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
            return Err(LedgerError::Order { path: self.path.to_path_buf(), line: self.lines, version, newest }.into());
        }
        self.newest = Some(version);
        let mut recorded = RecordedVersion::new(version, Arc::clone(&self.path));
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
        let (path, line) = (self.path.to_path_buf(), self.lines);
        if recorded.events().is_empty() {
            return Err(LedgerError::ExportOnly { path, line, version: event.version }.into());
        }
        let is_below = |name: &str| {
            let mut parts = Path::new(name).components().peekable();
            parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if let Some(file) = event.files.keys().find(|name| !is_below(name)) {
            return Err(LedgerError::ForeignFile { path, line, file: file.clone() }.into());
        }
        recorded.push_export(event, line);
        Ok(())
    }

    fn add_event(&self, recorded: &mut RecordedVersion, event: LedgerEvent) -> Result<(), PolicyError> {
        let (Some(first), Some(at)) = (recorded.event(&event.tensor), recorded.line(&event.tensor)) else {
            recorded.push(event, self.lines);
            return Ok(());
        };
        let source = |event: &LedgerEvent| format!("{} ({})", event.source_digest, event.source_dtype);
        let output = |event: &LedgerEvent| event.output_digest.to_string();
        let format = |event: &LedgerEvent| event.format.clone();
        let compared: [(&'static str, String, String); 3] = [
            ("source", source(first), source(&event)),
            ("format", format(first), format(&event)),
            ("output", output(first), output(&event)),
        ];
        match compared.into_iter().find(|(_, first, second)| first != second) {
            None => {
                recorded.repeat(self.lines);
                Ok(())
            }
            Some((what, first, second)) => Err(LedgerError::Contradiction {
                path: at.path,
                line: self.lines,
                first_line: at.line,
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
        let (path, line) = (self.path.to_path_buf(), self.lines);
        if text.pop_if(|last| *last == b'\n').is_none() {
            return Err(if text.len() as u64 == MAX_JSON_BYTES {
                LedgerError::LongLine { path, line, limit_bytes: MAX_JSON_BYTES }.into()
            } else {
                LedgerError::Torn { path, line, bytes: text.len() }.into()
            });
        }
        let (parsed, written) = match parse(&text) {
            Ok(parsed) => parsed,
            Err(source) => return Err(LedgerError::Line { path, line, source }.into()),
        };
        // Whatever reads otherwise than it was written (a carriage return, a key twice, digits in upper case) was changed.
        if written != text {
            let byte = written.iter().zip(&text).take_while(|(written, found)| written == found).count();
            return Err(LedgerError::Form { path, line, byte }.into());
        }
        Ok(Some(parsed))
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

/// A line, and the bytes that a ledger writes for it. It is an export if it lists files; anything else has to be a
/// quantization.
fn parse(text: &[u8]) -> Result<(Line, Vec<u8>), serde_json::Error> {
    #[derive(Deserialize)]
    struct Kind {
        files: Option<IgnoredAny>,
    }
    match json::from_slice::<Kind>(text)?.files {
        Some(_) => {
            let event: ExportEvent = serde_json::from_slice(text)?;
            let written = serde_json::to_vec(&event)?;
            Ok((Line::Export(event), written))
        }
        None => {
            let event: LedgerEvent = serde_json::from_slice(text)?;
            let written = serde_json::to_vec(&event)?;
            Ok((Line::Event(event), written))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
