//! The CPU reference as a backend value, registered as `cpu-ref`.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use miles_core::format::{FormatId, FormatRule, nvfp4};
use miles_core::plugin::limits::MAX_THREADS;
use miles_core::plugin::{
    ActivationDtype, Backend, Capabilities, EngineOptions, MasterDtype, PublicationMode, Quantizer, RolloutEngine,
};
use miles_core::registry::RegistryError;
use miles_core::{Result, register_backend};
use serde::Deserialize;

use crate::engine::CpuEngine;
use crate::kernel::{Compute, Isa};
use crate::ops::{Context, threads};
use crate::quantizer::CpuQuantizer;
use crate::trainer::CpuTrainer;

/// Name in configs and reports.
pub const NAME: &str = crate::ops::BACKEND;

/// Builds the CPU reference backend, or single parts of it.
///
/// Neither threads nor instruction set change a bit of any result.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuRef {
    threads: Option<NonZeroUsize>,
    isa: Option<Isa>,
}

impl CpuRef {
    /// Every core, and the best instruction set of this machine.
    #[must_use]
    pub fn new() -> Self {
        CpuRef::default()
    }

    /// Worker threads.
    #[must_use]
    pub fn with_threads(self, threads: NonZeroUsize) -> Self {
        CpuRef { threads: Some(threads), ..self }
    }

    /// Instruction set.
    #[must_use]
    pub fn with_isa(self, isa: Isa) -> Self {
        CpuRef { isa: Some(isa), ..self }
    }

    /// Threads and instruction set.
    ///
    /// # Errors
    /// If more than [`MAX_THREADS`] worker threads are asked for, or they cannot be started.
    pub fn compute(&self) -> Result<Compute> {
        let every_core = || available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS);
        let pool = threads::pool(self.threads.map_or_else(every_core, NonZeroUsize::get))?;
        Ok(Compute::from_parts(self.isa.unwrap_or_else(Isa::detect), pool))
    }

    /// The quantizer.
    ///
    /// # Errors
    /// If worker threads cannot be started or a registered format cannot be made.
    pub fn quantizer(&self) -> Result<CpuQuantizer> {
        CpuQuantizer::new(self.compute()?)
    }

    /// What an engine and a trainer share: threads, quantizer and packed weights.
    ///
    /// # Errors
    /// As [`CpuRef::quantizer`].
    pub fn context(&self) -> Result<Context> {
        let compute = self.compute()?;
        Ok(Context::new(compute.clone(), Arc::new(CpuQuantizer::new(compute)?)))
    }

    /// A rollout engine of its own.
    ///
    /// # Errors
    /// As [`CpuRef::quantizer`] and [`CpuEngine::new`].
    pub fn engine(&self, options: EngineOptions) -> Result<CpuEngine> {
        CpuEngine::new(options, &self.context()?)
    }

    /// The whole backend. Its engines and trainers share threads and packed weights.
    ///
    /// # Errors
    /// As [`CpuRef::quantizer`].
    pub fn backend(&self) -> Result<Backend> {
        let compute = self.compute()?;
        let quantizer = Arc::new(CpuQuantizer::new(compute.clone())?);
        let listed = quantizer.formats();
        let combined = nvfp4::combinations().map(FormatRule::id).filter(|format| !listed.contains(format));
        let formats: Vec<FormatId> = combined.chain(listed.iter().cloned()).collect();
        let formats = formats.into_iter().map(|format| (quantizer.support(&format), format));
        let capabilities = Capabilities {
            formats: formats.map(|(support, format)| (format, support)).collect(),
            activations: vec![ActivationDtype::Bf16, ActivationDtype::F32],
            masters: vec![MasterDtype::F32, MasterDtype::Bf16],
            batch_invariant: true,
            publication: PublicationMode::ALL.to_vec(),
        };
        let context = Context::new(compute.clone(), quantizer.clone());
        let trainer_context = context.clone();
        Ok(Backend {
            name: NAME.to_owned(),
            device: format!("CPU, {} threads, {}", compute.threads(), compute.isa().name()),
            capabilities,
            quantizer,
            engine: Arc::new(move |options| Ok(Arc::new(CpuEngine::new(options, &context)?) as Arc<dyn RolloutEngine>)),
            trainer: Arc::new(move |inputs| Ok(Box::new(CpuTrainer::new(inputs, &trainer_context)?))),
        })
    }
}

/// Options of the registered backend.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Options {
    /// Worker threads; every core when absent.
    threads: Option<NonZeroUsize>,
}

register_backend!(NAME, |options| {
    let options: Option<Options> = serde_json::from_value(options.clone()).map_err(|error| {
        RegistryError::BadOptions { kind: "backend", name: NAME.to_owned(), why: error.to_string() }
    })?;
    let threads = options.unwrap_or_default().threads;
    CpuRef { threads, isa: None }.backend()
});

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use miles_core::plugin::Support;
    use miles_core::registry;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_backend_is_found_by_name_and_declares_what_it_does() {
        let backend = registry::backend(NAME, &Value::Null).unwrap();
        assert_eq!(backend.name, "cpu-ref");
        assert_eq!(backend.quantizer.id(), concat!("cpu-ref/", env!("CARGO_PKG_VERSION")));
        for format in ["nvfp4", "mxfp8", "fp8-block", "nvfp4/te-2.13", "nvfp4/te-2.13/16x16/decode-scale-order"] {
            assert_eq!(backend.capabilities.format(&FormatId::new(format).unwrap()), Support::Native, "{format}");
        }
        for format in ["nvfp4/hadamard", "nvfp4/stochastic/hadamard-plain"] {
            assert_eq!(backend.capabilities.format(&FormatId::new(format).unwrap()), Support::Emulated, "{format}");
        }
        assert_eq!(backend.capabilities.format(&FormatId::new("unheard-of").unwrap()), Support::Unsupported);
        assert!(backend.capabilities.batch_invariant);
    }

    #[test]
    fn options_are_checked() {
        assert!(registry::backend(NAME, &json!({"threads": 2})).unwrap().device.contains("2 threads"));
        let error = registry::backend(NAME, &json!({"thread": 2})).unwrap_err().to_string();
        assert!(error.contains("cpu-ref") && error.contains("thread"), "{error}");
        assert!(registry::backend(NAME, &json!({"threads": 0})).is_err());
    }
}
