//! `a + b`: the residual stream. Its gradient is `dy` for both.

use miles_core::Result;

use super::{Activation, Forward, same_size};

impl Forward<'_> {
    /// `a + b`, elementwise.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn add(&self, a: &Activation, b: &Activation) -> Result<Activation> {
        same_size("add", "number of rows", a.rows(), b.rows())?;
        same_size("add", "number of columns", a.cols(), b.cols())?;
        let mut out: Vec<f32> = a.values().iter().zip(b.values()).map(|(a, b)| a + b).collect();
        self.round(&mut out);
        Ok(Activation::new(a.rows(), a.cols(), out))
    }
}

/// Adds a gradient into one that is collected so far.
pub(crate) fn accumulate(sum: &mut [f32], more: &[f32]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}
