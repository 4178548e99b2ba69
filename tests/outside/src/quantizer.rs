//! A quantizer that does the built-in formats and one more.

use miles_core::format::{FormatId, FormatRule, QuantizeSpec, QuantizedTensor, Source, builtin_rule};
use miles_core::plugin::{Quantizer, Support};
use miles_core::{Error, Result};

use crate::Int8Blocks;

/// The built-in rules and [`Int8Blocks`].
#[derive(Clone, Debug)]
pub struct Wrapper {
    own: Int8Blocks,
}

impl Wrapper {
    /// The quantizer.
    ///
    /// # Errors
    /// Never: the name of the format is valid.
    pub fn new() -> Result<Self> {
        Ok(Wrapper { own: Int8Blocks::new()? })
    }

    fn rule(&self, format: &FormatId, operation: &str) -> Result<&dyn FormatRule> {
        if *format == self.own.id() {
            return Ok(&self.own);
        }
        builtin_rule(format).map(|rule| rule as &dyn FormatRule).ok_or_else(|| Error::Unsupported {
            operation: format!("{operation} format `{format}`"),
            backend: self.id().to_owned(),
            why: "it does the built-in formats and int8-blocks".to_owned(),
        })
    }
}

impl Quantizer for Wrapper {
    fn id(&self) -> &str {
        concat!("outside/", env!("CARGO_PKG_VERSION"))
    }

    fn support(&self, format: &FormatId) -> Support {
        match self.rule(format, "quantize to") {
            Ok(_) => Support::Native,
            Err(_) => Support::Unsupported,
        }
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        let rule = self.rule(&spec.format, "quantize to")?;
        match sources {
            [source] => Ok(vec![rule.quantize(source, spec)?]),
            _ => Ok(rule.quantize_joint(sources, spec)?),
        }
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        Ok(self.rule(tensor.format(), "dequantize")?.dequantize(tensor)?)
    }
}
