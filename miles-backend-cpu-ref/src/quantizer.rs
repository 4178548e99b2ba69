//! The CPU quantizer: the format rules, run on every core.
//!
//! The rules in `miles_core::format` are the reference. The default formats go through kernels that spread the work over
//! the thread pool and use AVX2 where there is one; their bytes are the rule's. Other built-in formats go through their
//! rule in bands of rows, registered formats and values passed to [`CpuQuantizer::with_rule`] in one piece.

mod bands;
mod builtin;

use std::sync::Arc;

use miles_core::format::{
    FormatId, FormatRule, QuantizeCounts, QuantizeSpec, QuantizedTensor, Source, builtin_rule, builtin_rules, counts,
};
use miles_core::plugin::{Quantizer, Support};
use miles_core::{Error, Result, registry};

use crate::kernel::Compute;
use crate::ops::has_kernel;

/// Quantizes with the format rules of `miles-core`, the registered ones and those it is given.
#[derive(Clone)]
pub struct CpuQuantizer {
    compute: Compute,
    rules: Vec<Arc<dyn FormatRule>>,
}

impl CpuQuantizer {
    /// A quantizer of the built-in formats and of every registered one.
    ///
    /// # Errors
    /// If a format is registered twice, under a name that is not its own or may not be registered, or cannot be made without
    /// options.
    pub fn new(compute: Compute) -> Result<Self> {
        let registered = registry::format_names().into_iter();
        let make = |name| registry::format(name, &serde_json::Value::Null).map(Arc::from);
        Ok(CpuQuantizer { compute, rules: registered.map(make).collect::<Result<_>>()? })
    }

    /// The same with one more format, which goes before a registered one of the same name.
    ///
    /// # Errors
    /// [`RegistryError::BuiltIn`](registry::RegistryError::BuiltIn) for a rule that calls itself by a built-in name: it would
    /// never be asked.
    pub fn with_rule(mut self, rule: Arc<dyn FormatRule>) -> Result<Self> {
        registry::check_own_format(&rule.id())?;
        self.rules.insert(0, rule);
        Ok(self)
    }

    /// Every format that this quantizer does.
    #[must_use]
    pub fn formats(&self) -> Vec<FormatId> {
        let mut formats: Vec<FormatId> = builtin_rules().map(FormatRule::id).collect();
        for rule in &self.rules {
            let id = rule.id();
            if !formats.contains(&id) {
                formats.push(id);
            }
        }
        formats
    }

    /// The rule of a format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that is neither built in nor known here.
    pub fn rule(&self, format: &FormatId, operation: &'static str) -> Result<&dyn FormatRule> {
        let own = || self.rules.iter().find(|rule| rule.id() == *format).map(AsRef::as_ref);
        builtin_rule(format).map(|rule| rule as &dyn FormatRule).or_else(own).ok_or_else(|| {
            let known: Vec<String> = self.formats().iter().map(FormatId::to_string).collect();
            Error::Unsupported {
                operation: format!("{operation} format `{format}`"),
                backend: self.id().to_owned(),
                why: format!("known formats are {}", known.join(", ")),
            }
        })
    }
}

impl Quantizer for CpuQuantizer {
    fn id(&self) -> &str {
        concat!("cpu-ref/", env!("CARGO_PKG_VERSION"))
    }

    fn concurrency(&self) -> usize {
        self.compute.threads()
    }

    fn support(&self, format: &FormatId) -> Support {
        match (builtin_rule(format), self.rules.iter().any(|rule| rule.id() == *format)) {
            (Some(_), _) if has_kernel(format) => Support::Native,
            (Some(_), _) | (None, true) => Support::Emulated,
            (None, false) => Support::Unsupported,
        }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        let rule = self.rule(&spec.format, "quantize to")?;
        if let Some(kernel) = builtin::Kernel::of(&spec.format)
            && let Some(tensors) = kernel.quantize(&self.compute, rule, sources, spec)?
        {
            return Ok(tensors);
        }
        // Also the way to the error of a source that the kernels will not quantize: the rule words it.
        Ok(match sources {
            [source] => vec![bands::quantize(&self.compute, rule, source, spec)?],
            _ => rule.quantize_joint(sources, spec)?,
        })
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        Ok(self.rule(tensor.format(), "dequantize")?.dequantize(tensor)?)
    }

    /// Kernels read BF16 in place.
    fn scratch_bytes(&self, spec: &QuantizeSpec, elements: usize) -> u64 {
        match builtin::Kernel::of(&spec.format) {
            Some(_) if spec.partition.is_whole() => 0,
            _ => 8 * elements as u64,
        }
    }

    /// A format whose rule does not tell its largest code is not counted: that would take 256 decodings.
    fn count(&self, source: &Source<'_>, tensor: &QuantizedTensor) -> Result<Option<QuantizeCounts>> {
        let rule = self.rule(tensor.format(), "count")?;
        let counts = counts::largest_code(rule).map(|_| QuantizeCounts::of(rule, source, tensor));
        Ok(counts.transpose()?)
    }
}

impl std::fmt::Debug for CpuQuantizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuQuantizer").field("id", &self.id()).field("formats", &self.formats()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
