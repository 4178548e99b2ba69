//! The log of quantization events: one JSON line per tensor and version, and one per exported directory.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::{ExportEvent, PolicyError, PolicyVersion};
use crate::digest::Digest;

/// One quantization of one tensor for one version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerEvent {
    /// Run.
    pub run: String,
    /// Training step that made the version.
    pub step: u64,
    /// Policy version.
    pub version: PolicyVersion,
    /// Tensor name.
    pub tensor: String,
    /// Digest of the tensor that was quantized.
    pub source_digest: Digest,
    /// Number type of the tensor that was quantized.
    pub source_dtype: String,
    /// Format of the result (`bf16` and `f32` for high precision).
    pub format: String,
    /// Which quantizer made it.
    pub quantizer: String,
    /// Digest of the result.
    pub output_digest: Digest,
}

/// Writes events and refuses a second source for one tensor of one version.
pub struct Ledger {
    state: Mutex<State>,
    path: String,
}

struct State {
    writer: Box<dyn Write + Send>,
    version: Option<PolicyVersion>,
    sources: HashMap<String, Digest>,
}

impl Ledger {
    /// A ledger that appends to a file, created if missing.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn append(path: &Path) -> Result<Self, PolicyError> {
        let name = path.display().to_string();
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(|source| PolicyError::Io { path: name.clone(), source })?;
        Ok(Self::new(Box::new(BufWriter::new(file)), name))
    }

    /// A ledger that writes anywhere; `path` names it in errors.
    #[must_use]
    pub fn new(writer: Box<dyn Write + Send>, path: String) -> Self {
        Ledger { state: Mutex::new(State { writer, version: None, sources: HashMap::new() }), path }
    }

    /// A ledger that only checks.
    #[must_use]
    pub fn discard() -> Self {
        Self::new(Box::new(std::io::sink()), "discarded".to_owned())
    }

    /// Records one event.
    ///
    /// # Errors
    /// If the tensor of this version was recorded from another source, or writing fails.
    pub fn record(&self, event: &LedgerEvent) -> Result<(), PolicyError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.version != Some(event.version) {
            state.version = Some(event.version);
            state.sources.clear();
        }
        match state.sources.get(&event.tensor) {
            Some(first) if *first != event.source_digest => {
                return Err(PolicyError::TwoSources {
                    tensor: event.tensor.clone(),
                    version: event.version,
                    first: first.to_string(),
                    second: event.source_digest.to_string(),
                });
            }
            Some(_) => {}
            None => {
                state.sources.insert(event.tensor.clone(), event.source_digest);
            }
        }
        self.write(&mut state, event)
    }

    /// Records an export of the version whose tensors were recorded last, and writes what is buffered.
    ///
    /// # Errors
    /// If writing fails.
    pub fn record_export(&self, event: &ExportEvent) -> Result<(), PolicyError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state, event)?;
        state.writer.flush().map_err(|error| self.io(error))
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// If writing fails.
    pub fn flush(&self) -> Result<(), PolicyError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.writer.flush().map_err(|error| self.io(error))
    }

    fn write(&self, state: &mut State, event: &impl Serialize) -> Result<(), PolicyError> {
        let line = serde_json::to_string(event).map_err(|error| self.io(error.into()))?;
        writeln!(state.writer, "{line}").map_err(|error| self.io(error))
    }

    fn io(&self, source: std::io::Error) -> PolicyError {
        PolicyError::Io { path: self.path.clone(), source }
    }
}
