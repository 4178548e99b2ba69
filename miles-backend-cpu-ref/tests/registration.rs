//! A crate that registers a format under a built-in name: the quantizer says so, and does not go on with the built-in one.
//!
//! A program of its own, because every quantizer in it is refused.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;

use miles_backend_cpu_ref::{CpuQuantizer, CpuRef};
use miles_core::format::Mxfp8;
use miles_core::registry::RegistryError;
use miles_core::{Error, register_format};

register_format!("mxfp8", |_options| Ok(Box::new(Mxfp8::DEFAULT)));

#[test]
fn a_format_registered_under_a_built_in_name_is_refused() {
    let cpu = CpuRef::new().with_threads(NonZeroUsize::MIN);
    let expected = RegistryError::BuiltIn { kind: "format", name: "mxfp8".to_owned() };
    let error = CpuQuantizer::new(cpu.compute().unwrap()).unwrap_err();
    assert!(matches!(&error, Error::Registry(found) if *found == expected), "{error}");
    let error = cpu.backend().unwrap_err();
    assert!(matches!(&error, Error::Registry(found) if *found == expected), "{error}");
}
