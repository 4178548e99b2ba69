//! Rows of the embedding table.

use miles_core::Result;
use miles_core::network::ParamId;

use super::error::OperationError;
use super::{Activation, Forward};

impl Forward<'_> {
    /// One row of the table per token: `[rows, hidden]`.
    ///
    /// # Errors
    /// If a token id is outside the table.
    pub fn embedding(&self, table: ParamId, tokens: &[u32]) -> Result<Activation> {
        let (vocab_size, hidden) = self.weights.snapshot().network().parameter(table).rows_cols();
        let table = self.weights.table(table)?;
        let mut out = vec![0.0; tokens.len() * hidden];
        for (row, (&id, out)) in tokens.iter().zip(out.chunks_exact_mut(hidden)).enumerate() {
            if id as usize >= vocab_size {
                return Err(OperationError::TokenOutOfRange { row, id, vocab_size }.into());
            }
            table.read_row(id as usize, out);
        }
        self.round(&mut out);
        Ok(Activation::new(tokens.len(), hidden, out))
    }
}

/// Gradient of the table: adds each row of `dy` `[rows, hidden]` to its token's row of `d_table`, in row order.
pub fn embedding_backward(dy: &[f32], tokens: &[u32], hidden: usize, d_table: &mut [f32]) {
    for (&id, dy) in tokens.iter().zip(dy.chunks_exact(hidden)) {
        let row = &mut d_table[id as usize * hidden..][..hidden];
        row.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
    }
}
