//! A backend of your own that replaces exactly one part, the quantizer, and keeps the CPU's engine and trainer.
//!
//! ```console
//! cargo run --release --example custom_backend
//! cargo test -p miles-examples --features conformance --example custom_backend     # its conformance tests
//! ```
//!
//! The quantizer is an auditor: it has the CPU's quantizer make every tensor twice, and two answers that differ (a race, a
//! bad memory chip) are an error that names the tensor. Because the bytes are those of the format's rule, the policy is the
//! same as without the auditor, and the ledger names it. Runs the quickstart's model for a few steps with the backend as a value and by its registered name.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use miles_backend_cpu_ref::CpuRef;
use miles_core::format::{FormatId, QuantizeSpec, QuantizedTensor, Source};
use miles_core::plugin::{Backend, Quantizer, Support};
use miles_core::{Error, Result, register_backend};
use miles_examples::training::{BothWaysArgs, both_ways};

/// Has every tensor quantized twice and compares.
struct Auditor {
    id: String,
    inner: Arc<dyn Quantizer>,
    audited: AtomicUsize,
}

impl Auditor {
    fn new(inner: Arc<dyn Quantizer>) -> Self {
        Auditor { id: format!("audited {}", inner.id()), inner, audited: AtomicUsize::new(0) }
    }
}

impl Quantizer for Auditor {
    fn id(&self) -> &str {
        &self.id
    }

    fn support(&self, format: &FormatId) -> Support {
        self.inner.support(format)
    }

    fn quantize(&self, sources: &[Source<'_>], spec: &QuantizeSpec) -> Result<Vec<QuantizedTensor>> {
        let made = self.inner.quantize(sources, spec)?;
        let again = self.inner.quantize(sources, spec)?;
        for ((source, first), second) in sources.iter().zip(&made).zip(&again) {
            if first.digest() != second.digest() {
                let why = format!("{}: {} and then {}", source.tensor_name(), first.digest(), second.digest());
                return Err(Error::Plugin { plugin: self.id.clone(), source: why.into() });
            }
        }
        self.audited.fetch_add(made.len(), Ordering::Relaxed);
        Ok(made)
    }

    fn dequantize(&self, tensor: &QuantizedTensor) -> Result<Vec<f32>> {
        self.inner.dequantize(tensor)
    }
}

/// The CPU backend, audited.
fn backend() -> Result<(Backend, Arc<Auditor>)> {
    let cpu = CpuRef::new().backend()?;
    let auditor = Arc::new(Auditor::new(Arc::clone(&cpu.quantizer)));
    Ok((Backend { name: "audited".to_owned(), quantizer: auditor.clone(), ..cpu }, auditor))
}

register_backend!("audited", |_options| Ok(backend()?.0));

/// Trains on a user's own backend, by value and by name.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    both_ways: BothWaysArgs,
}

fn run(arguments: &Arguments) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (backend, auditor) = backend()?;
    both_ways(&arguments.both_ways, &[], |builder| builder.backend(backend), &["run.backend=audited"])?;
    println!("audited: {} tensors, each made twice", auditor.audited.load(Ordering::Relaxed));
    Ok(())
}

fn main() -> ExitCode {
    miles_examples::exit(run(&Arguments::parse()))
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use super::*;

    miles_core::conformance_tests! { quantizer: *backend().unwrap().1 }
}
