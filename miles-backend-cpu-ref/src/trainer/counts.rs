//! Counting what the quantization of a training forward's activations could not keep, layer by layer.
//!
//! The copies that the forward pass multiplied are still on the tape when the pass is over; each is compared with its
//! activation once, whichever layers shared it. Copies are quantized row by row, so counts depend neither on threads nor
//! on the cut into micro-batches.

use std::collections::{BTreeMap, HashSet};

use miles_core::Result;
use miles_core::format::{QuantizeCounts, Source, SourceDtype};
use rayon::prelude::*;

use super::tape::{Record, Tape};
use crate::ops::{Activation, Context, Forward, Operand};

/// Counts per layer; the head's come last.
#[derive(Debug, Default)]
pub(super) struct ActivationCounts(BTreeMap<Place, QuantizeCounts>);

/// A layer, or the head after all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Layer(usize),
    Head,
}

impl ActivationCounts {
    /// Adds the quantized activations of a tape's linear layers.
    pub(super) fn add_tape(&mut self, tape: &Tape<'_>) -> Result<()> {
        let network = tape.forward.weights.snapshot().network();
        let mut seen = HashSet::new();
        let mut activations = Vec::new();
        for record in tape.records.iter().flatten() {
            let (x, weight) = match record {
                Record::Linear { x, linear } => (x, Some(linear.weight)),
                Record::ExpertLinear { x, experts, .. } => (x, experts.first().map(|linear| linear.weight)),
                _ => continue,
            };
            if let Some(layer) = weight.and_then(|weight| network.parameter(weight).layer)
                && seen.insert(x.node.index)
            {
                activations.push((Place::Layer(layer), x.value.as_ref()));
            }
        }
        self.add(tape.forward.context, &activations)
    }

    /// Adds the hidden states `[rows, hidden]` that the head reads, where it is quantized. It reads them in pieces of
    /// some rows, whose copies are gone; that of all rows has the same bytes.
    pub(super) fn add_head(&mut self, forward: &Forward<'_>, hidden: &Activation) -> Result<()> {
        let head = forward.weights.matrix(forward.weights.snapshot().network().head.weight)?;
        if let Operand::Codes(format) | Operand::Dequantized(format) = &head.operand {
            hidden.quantized(forward.context, forward.activations, format)?;
            self.add(forward.context, &[(Place::Head, hidden)])?;
        }
        Ok(())
    }

    /// The counts in the order of the layers; `None` is the head.
    pub(super) fn into_report(self) -> Vec<(Option<usize>, QuantizeCounts)> {
        let layer = |place| match place {
            Place::Layer(layer) => Some(layer),
            Place::Head => None,
        };
        self.0.into_iter().map(|(place, counts)| (layer(place), counts)).collect()
    }

    fn add(&mut self, context: &Context, activations: &[(Place, &Activation)]) -> Result<()> {
        let counted = context.compute().pool().install(|| {
            let one = |(place, activation): &(Place, &Activation)| Ok((*place, count(context, activation)?));
            activations.par_iter().map(one).collect::<Result<Vec<_>>>()
        })?;
        for (place, counts) in counted {
            if let Some(counts) = counts {
                self.0.entry(place).or_default().merge(&counts);
            }
        }
        Ok(())
    }
}

/// The counts of every quantized copy of an activation; `None` when there is no copy that can be counted.
fn count(context: &Context, activation: &Activation) -> Result<Option<QuantizeCounts>> {
    let mut sum: Option<QuantizeCounts> = None;
    for copy in activation.copies() {
        // Counts do not depend on the number type; F32 saves looking at every value once more.
        let source = Source::new(
            activation.values(),
            activation.rows(),
            activation.cols(),
            SourceDtype::F32,
            Some("activation"),
        )?;
        if let Some(counts) = context.quantizer().count(&source, &copy.tensor)? {
            sum.get_or_insert_default().merge(&counts);
        }
    }
    Ok(sum)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
