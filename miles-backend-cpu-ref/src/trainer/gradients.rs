//! Gradient buffers, their norms, and the parts of the network that norms are reported for.

use miles_core::network::{Network, ParamId, Role};
use miles_core::plugin::TrainError;
use rayon::prelude::*;

use crate::kernel::Compute;

/// One F32 buffer per trained parameter, filled over all micro-batches of a step.
#[derive(Debug)]
pub struct Gradients {
    buffers: Vec<Option<Vec<f32>>>,
    /// The head's share of a tied table, added to the embedding's at the end: each is one chain over all tokens, so the
    /// sum does not depend on how the batch is cut.
    tied_head: Option<Vec<f32>>,
    embedding: ParamId,
    head: ParamId,
}

impl Gradients {
    /// Zeroed buffers for every parameter that is trained.
    #[must_use]
    pub fn zeroed(network: &Network, train_router: bool) -> Self {
        let zeros = |id: ParamId| {
            let parameter = network.parameter(id);
            is_trained(parameter.role, train_router).then(|| vec![0.0; parameter.elements()])
        };
        let (embedding, head) = (network.embedding, network.head.weight);
        let tied_head = if embedding == head { zeros(head) } else { None };
        Gradients { buffers: network.ids().map(zeros).collect(), tied_head, embedding, head }
    }

    /// The buffer of a parameter; `None` where it is not trained.
    #[must_use]
    pub fn of(&self, id: ParamId) -> Option<&[f32]> {
        self.buffers[id.index()].as_deref()
    }

    /// The buffer that a use of a parameter as a weight or bias adds to.
    pub(crate) fn weight(&mut self, id: ParamId) -> Option<&mut Vec<f32>> {
        match &mut self.tied_head {
            Some(head) if id == self.head => Some(head),
            _ => self.buffers[id.index()].as_mut(),
        }
    }

    /// The buffer that the use of the table as an embedding adds to.
    pub(crate) fn table(&mut self) -> Option<&mut Vec<f32>> {
        self.buffers[self.embedding.index()].as_mut()
    }

    /// Joins the two uses of a tied table; nothing may be added afterwards.
    pub(crate) fn join_tied(&mut self) {
        if let (Some(head), Some(table)) = (self.tied_head.take(), self.table()) {
            table.iter_mut().zip(&head).for_each(|(sum, head)| *sum += head);
        }
    }

    /// The sum of squares of each part of the network.
    ///
    /// # Errors
    /// If a gradient is not finite; the error names the first tensor.
    pub(crate) fn squares(&self, network: &Network, compute: &Compute) -> Result<PartSquares, TrainError> {
        let mut parts = PartSquares { parts: Vec::new() };
        for id in network.ids() {
            let Some(values) = self.of(id) else { continue };
            let squares = sum_of_squares(compute, values);
            if !squares.is_finite() {
                return Err(TrainError::NonFiniteGradient { tensor: network.parameter(id).name.clone() });
            }
            parts.add(part_name(network, id), squares);
        }
        Ok(parts)
    }
}

/// Sums of squares per part of the network, in the order of the network.
#[derive(Debug, Default)]
pub(crate) struct PartSquares {
    parts: Vec<(String, f64)>,
}

impl PartSquares {
    fn add(&mut self, name: String, squares: f64) {
        match self.parts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += squares,
            None => self.parts.push((name, squares)),
        }
    }

    /// Norm of the whole gradient.
    pub fn norm(&self) -> f64 {
        self.parts.iter().fold(0.0, |sum, (_, squares)| sum + squares).sqrt()
    }

    /// Norm of each part.
    pub fn norms(self) -> Vec<(String, f64)> {
        self.parts.into_iter().map(|(name, squares)| (name, squares.sqrt())).collect()
    }
}

/// Whether the optimizer changes parameters of this role.
#[must_use]
pub fn is_trained(role: Role, train_router: bool) -> bool {
    role.is_trained() && (role != Role::Router || train_router)
}

fn part_name(network: &Network, id: ParamId) -> String {
    let parameter = network.parameter(id);
    match (parameter.layer, parameter.role) {
        (Some(layer), _) => format!("layers.{layer}"),
        (None, Role::Embedding) => "embedding".to_owned(),
        (None, Role::Head) => "head".to_owned(),
        (None, _) => "norm".to_owned(),
    }
}

/// In f64, whose range holds the square of any f32: pieces of fixed length in index order, so that no thread count
/// changes the sum.
fn sum_of_squares(compute: &Compute, values: &[f32]) -> f64 {
    let pieces: Vec<f64> = compute.pool().install(|| {
        values
            .par_chunks(PIECE)
            .map(|piece| {
                let mut lanes = [0.0f64; 8];
                for block in piece.chunks(8) {
                    lanes.iter_mut().zip(block).for_each(|(lane, &value)| *lane += f64::from(value) * f64::from(value));
                }
                lanes.iter().sum::<f64>()
            })
            .collect()
    });
    pieces.iter().sum()
}

const PIECE: usize = 64 * 1024;
