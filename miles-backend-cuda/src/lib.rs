//! The CUDA backend: what it can find out today, and what it honestly cannot do yet.
//!
//! [`device::devices`] lists the CUDA devices of the machine; the CUDA driver is loaded at run time, so the crate
//! builds and answers on machines without one. No kernel exists yet: [`backend`] always returns a typed error, either
//! because there is no driver or device, or because quantizers, engine and trainer are not built for CUDA.
//!
//! The crate registers the backend name `cuda`, so that a config which asks for it gets exactly that error.

pub mod device;

use miles_core::plugin::Backend;
use miles_core::{Error, Result, register_backend};

pub use device::{CudaDevice, CudaError, devices};

/// The CUDA backend on device `ordinal`.
///
/// # Errors
/// Always, in this version: `Unsupported`, whose reason says whether the driver, the device or the kernels are missing.
pub fn backend(ordinal: usize) -> Result<Backend> {
    let why = match devices() {
        Err(error) => error.to_string(),
        Ok(found) => match found.get(ordinal) {
            None => CudaError::NoSuchDevice { ordinal, count: found.len() }.to_string(),
            Some(device) => format!("{device} was found, but no CUDA kernels are built in this version"),
        },
    };
    Err(Error::Unsupported { operation: "rollout and training".to_owned(), backend: "cuda".to_owned(), why })
}

register_backend!("cuda", |_options| backend(0));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_is_a_typed_error_and_never_a_value() {
        let error = backend(0).unwrap_err();
        let Error::Unsupported { operation, backend, why } = &error else { panic!("{error}") };
        assert_eq!((operation.as_str(), backend.as_str()), ("rollout and training", "cuda"));
        assert!(!why.is_empty());
    }

    #[test]
    fn the_name_is_registered_and_gives_the_same_error() {
        assert!(miles_core::registry::backend_names().contains(&"cuda"));
        let error = miles_core::registry::backend("cuda", &serde_json::Value::Null).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}
