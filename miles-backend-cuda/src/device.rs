//! Which CUDA devices the machine has.

use std::fmt;

use cudarc::driver::{CudaContext, DriverError};

/// One CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Index of the device.
    pub ordinal: usize,
    /// Name that the driver gives it.
    pub name: String,
    /// Compute capability: major, minor.
    pub compute_capability: (u32, u32),
    /// Device memory.
    pub memory_bytes: usize,
}

impl fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        let gib = self.memory_bytes as f64 / (1u64 << 30) as f64;
        write!(f, "device {}: {} (sm_{major}{minor}, {gib:.0} GiB)", self.ordinal, self.name)
    }
}

/// Why there is no CUDA device to use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver library cannot be loaded.
    #[error("no CUDA driver: libcuda could not be loaded")]
    NoDriver,
    /// The driver finds no device.
    #[error("no CUDA device: the driver is present and reports none")]
    NoDevice,
    /// A device index beyond the devices there are.
    #[error("no CUDA device {ordinal}: the machine has {count}")]
    NoSuchDevice {
        /// Index asked for.
        ordinal: usize,
        /// Devices of the machine.
        count: usize,
    },
    /// The driver refused a call.
    #[error("the CUDA driver failed in {operation}: {source}")]
    Driver {
        /// Call.
        operation: &'static str,
        /// The driver's error.
        source: DriverError,
    },
}

/// Every CUDA device of the machine, by ordinal.
///
/// # Errors
/// If the driver is missing, reports no device or fails.
pub fn devices() -> Result<Vec<CudaDevice>, CudaError> {
    if !driver_is_present() {
        return Err(CudaError::NoDriver);
    }
    let count = match CudaContext::device_count() {
        Ok(count) => usize::try_from(count).unwrap_or(0),
        Err(source) if source.0 == cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
        Err(source) => return Err(CudaError::Driver { operation: "device_count", source }),
    };
    if count == 0 {
        return Err(CudaError::NoDevice);
    }
    (0..count).map(probe).collect()
}

fn probe(ordinal: usize) -> Result<CudaDevice, CudaError> {
    let failed = |operation| move |source| CudaError::Driver { operation, source };
    let context = CudaContext::new(ordinal).map_err(failed("context"))?;
    let (major, minor) = context.compute_capability().map_err(failed("compute_capability"))?;
    Ok(CudaDevice {
        ordinal,
        name: context.name().map_err(failed("name"))?,
        compute_capability: (major.unsigned_abs(), minor.unsigned_abs()),
        memory_bytes: context.total_mem().map_err(failed("total_mem"))?,
    })
}

fn driver_is_present() -> bool {
    // SAFETY: the function only tries to open the driver library by name; it takes no pointer, hands none out, and
    // nothing of the library is called here.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_listed_in_order_or_the_reason_is_typed() {
        match devices() {
            Ok(found) => {
                assert!(!found.is_empty());
                for (index, device) in found.iter().enumerate() {
                    assert_eq!(device.ordinal, index);
                    assert!(device.memory_bytes > 0 && device.compute_capability.0 > 0, "{device}");
                }
            }
            Err(error) => assert!(matches!(error, CudaError::NoDriver | CudaError::NoDevice), "{error}"),
        }
    }

    #[test]
    fn a_device_prints_its_architecture_and_memory() {
        let device =
            CudaDevice { ordinal: 1, name: "Test".to_owned(), compute_capability: (9, 0), memory_bytes: 141 << 30 };
        assert_eq!(device.to_string(), "device 1: Test (sm_90, 141 GiB)");
    }
}
