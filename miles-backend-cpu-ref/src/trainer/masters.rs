//! The FP32 master weights: the only high-precision copy of the policy.

use miles_core::Result;
use miles_core::network::{Network, ParamId};
use miles_core::policy::WeightSource;

use crate::ops::same_size;

/// Master weights, one vector per parameter, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Masters {
    values: Vec<Vec<f32>>,
}

impl Masters {
    /// Reads every parameter, one at a time.
    ///
    /// # Errors
    /// If the source fails or gives another number of values than the parameter has.
    pub fn load(network: &Network, source: &dyn WeightSource) -> Result<Self> {
        let mut values = Vec::with_capacity(network.parameters.len());
        for id in network.ids() {
            let mut read = Vec::new();
            source.read(id, &mut read)?;
            same_size("load of master weights", "number of values", network.parameter(id).elements(), read.len())?;
            read.shrink_to_fit();
            values.push(read);
        }
        Ok(Masters { values })
    }

    /// The values of one parameter.
    #[must_use]
    pub fn values(&self, id: ParamId) -> &[f32] {
        &self.values[id.index()]
    }

    /// The values of one parameter, to change them.
    pub(crate) fn values_mut(&mut self, id: ParamId) -> &mut Vec<f32> {
        &mut self.values[id.index()]
    }
}

impl WeightSource for Masters {
    fn read(&self, id: ParamId, into: &mut Vec<f32>) -> Result<()> {
        into.clear();
        into.extend_from_slice(self.values(id));
        Ok(())
    }
}
