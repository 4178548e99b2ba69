//! Rotary position embedding on a column range of each head.

use std::sync::{Arc, PoisonError, RwLock};

use miles_core::Result;
use miles_core::model::{RopeConfig, RopePairing};
use miles_core::network::RopeShape;

use super::{Activation, Forward, same_size};
use crate::kernel::rowwise::rope::{Pairing, Rotation, rope, rope_backward};

/// Cosines and sines of every position asked for so far; grows by itself.
#[derive(Debug)]
pub struct RopeTable {
    config: RopeConfig,
    inverse_frequencies: Vec<f32>,
    angles: RwLock<Arc<Angles>>,
}

/// Cosines and sines `[positions, rotary_dim / 2]`.
#[derive(Debug, Default)]
struct Angles {
    positions: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// A table without any position yet.
    #[must_use]
    pub fn new(config: &RopeConfig) -> Self {
        RopeTable {
            config: config.clone(),
            inverse_frequencies: config.inverse_frequencies(),
            angles: RwLock::default(),
        }
    }

    /// Cosines and sines of each row's position, `[rows, rotary_dim / 2]` each.
    fn rows(&self, positions: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let needed = positions.iter().max().map_or(0, |&last| last as usize + 1);
        let angles = self.covering(needed);
        let half = self.inverse_frequencies.len();
        let gather = |table: &[f32]| {
            positions.iter().flat_map(|&position| &table[position as usize * half..][..half]).copied().collect()
        };
        (gather(&angles.cos), gather(&angles.sin))
    }

    fn covering(&self, positions: usize) -> Arc<Angles> {
        let held = Arc::clone(&self.angles.read().unwrap_or_else(PoisonError::into_inner));
        if held.positions >= positions {
            return held;
        }
        let mut angles = self.angles.write().unwrap_or_else(PoisonError::into_inner);
        if angles.positions < positions {
            let positions = positions.next_power_of_two();
            let mut grown = Angles { positions, cos: angles.cos.clone(), sin: angles.sin.clone() };
            for position in angles.positions..positions {
                let (cos, sin) = self.config.angles(&self.inverse_frequencies, position as u32);
                grown.cos.extend(cos);
                grown.sin.extend(sin);
            }
            *angles = Arc::new(grown);
        }
        Arc::clone(&angles)
    }

    fn rotation(&self, shape: RopeShape) -> Rotation {
        let pairing = match self.config.pairing {
            RopePairing::Halves => Pairing::HalfSplit,
            RopePairing::Interleaved => Pairing::Interleaved,
        };
        Rotation {
            heads: shape.heads,
            head_dim: shape.head_dim,
            offset: shape.offset,
            rotary_dim: self.config.rotary_dim,
            pairing,
        }
    }
}

impl Forward<'_> {
    /// Turns the rotary columns of each head by the angles of its row's position; pairs stay in their places.
    ///
    /// # Errors
    /// If shapes disagree.
    pub fn rope(&self, x: &Activation, shape: RopeShape, positions: &[u32]) -> Result<Activation> {
        same_size("rope", "width of the activation", shape.heads * shape.head_dim, x.cols())?;
        same_size("rope", "number of positions", x.rows(), positions.len())?;
        let table = self.weights.rope();
        let (cos, sin) = table.rows(positions);
        let mut values = x.values().to_vec();
        rope(self.context.compute(), &table.rotation(shape), &cos, &sin, &mut values);
        self.round(&mut values);
        Ok(Activation::new(x.rows(), x.cols(), values))
    }

    /// Gradient of [`Forward::rope`]: `dy` turned back.
    #[must_use]
    pub fn rope_backward(&self, mut dy: Vec<f32>, shape: RopeShape, positions: &[u32]) -> Vec<f32> {
        let table = self.weights.rope();
        let (cos, sin) = table.rows(positions);
        rope_backward(self.context.compute(), &table.rotation(shape), &cos, &sin, &mut dy);
        dy
    }
}
