//! The backward pass: a tape's records in reverse, each by the backward function of its operation.
//!
//! Gradients of activations are f32. In a BF16 run the gradient that enters a linear layer's products is rounded to
//! BF16, and so is the gradient with respect to its input; the rounding of forward results is passed straight through.

use std::borrow::Cow;

use miles_core::Result;
use miles_core::format::FormatId;
use miles_core::network::{AttentionShape, Linear, Network, ParamId};

use super::gradients::Gradients;
use super::masters::Masters;
use super::tape::{Node, Record, Tape, Tracked};
use crate::ops::attention::{Attended, packed_attention_backward};
use crate::ops::embedding::embedding_backward;
use crate::ops::experts::{combine_backward, dispatch_backward};
use crate::ops::heads::{head_columns_backward, join_heads_backward};
use crate::ops::linear_backward::LinearBackward;
use crate::ops::norm::rms_norm_backward;
use crate::ops::residual::accumulate;
use crate::ops::rounding::round_to;
use crate::ops::router::{Routing, route_backward};
use crate::ops::swiglu::swiglu_backward;
use crate::ops::{Activation, Forward};

/// One backward pass over a tape.
pub struct BackwardPass<'a> {
    /// The forward functions that the tape was made by.
    pub forward: Forward<'a>,
    /// Master weights, the source of high-precision operands.
    pub masters: &'a Masters,
    /// Where parameter gradients are added.
    pub gradients: &'a mut Gradients,
}

/// Gradients of activations that are waiting for their node.
#[derive(Default)]
struct Pending(Vec<Option<Vec<f32>>>);

impl Pending {
    fn add(&mut self, node: Node, gradient: Vec<f32>) {
        match &mut self.0[node.index] {
            Some(sum) => accumulate(sum, &gradient),
            empty => *empty = Some(gradient),
        }
    }

    /// The gradient collected so far, to add to.
    fn at(&mut self, node: Node) -> &mut Vec<f32> {
        self.0[node.index].get_or_insert_with(|| vec![0.0; node.elements])
    }
}

impl<'a> BackwardPass<'a> {
    /// Walks the tape from `output`, whose gradient is `seed`, and adds every parameter's gradient.
    ///
    /// # Errors
    /// Whatever a product's quantizer reports.
    pub fn run(&mut self, tape: Tape<'_>, output: Node, seed: Vec<f32>) -> Result<()> {
        let batch = tape.batch;
        let mut records = tape.records.unwrap_or_default();
        let mut pending = Pending(vec![None; records.len()]);
        pending.add(output, seed);
        while let Some(record) = records.pop() {
            let Some(dy) = pending.0.pop().flatten() else { continue };
            match record {
                Record::Embedding => {
                    let hidden = self.network().config.hidden_size;
                    if let Some(table) = self.gradients.table() {
                        embedding_backward(&dy, &batch.tokens, hidden, table);
                    }
                }
                Record::Norm { x, weight, eps } => {
                    let values = self.forward.weights.vector(weight)?;
                    let d_weight = self.gradients.weight(weight).map(Vec::as_mut_slice);
                    let compute = self.forward.context.compute();
                    let dx = rms_norm_backward(compute, &dy, &x.value, values, eps, d_weight);
                    pending.add(x.node, dx);
                }
                Record::Linear { x, linear } => {
                    let dx = self.linear(&x.value, &linear, dy)?;
                    pending.add(x.node, dx);
                }
                Record::Rope { x, shape } => {
                    pending.add(x, self.forward.rope_backward(dy, shape, &batch.positions));
                }
                Record::Attention { q, k, v, attended, shape } => {
                    self.attention(&mut pending, [q, k, v], &attended, shape, &dy, &batch.sequences);
                }
                Record::Swiglu { gate, up } => {
                    let compute = self.forward.context.compute();
                    let (d_gate, d_up) = swiglu_backward(compute, &dy, gate.value.values(), up.value.values());
                    pending.add(gate.node, d_gate);
                    pending.add(up.node, d_up);
                }
                Record::Add { a, b } => {
                    pending.add(a, dy.clone());
                    pending.add(b, dy);
                }
                Record::HeadColumns { x, columns } => head_columns_backward(&dy, columns, pending.at(x)),
                Record::JoinHeads { a, b, heads, widths } => {
                    let (mut da, mut db) = (vec![0.0; a.elements], vec![0.0; b.elements]);
                    join_heads_backward(&dy, heads, widths.0, widths.1, &mut da, &mut db);
                    pending.add(a, da);
                    pending.add(b, db);
                }
                Record::Route { logits, routing, rule } => pending.add(logits, route_backward(&routing, &rule, &dy)),
                Record::Dispatch { x, routing, cols } => dispatch_backward(&dy, &routing, cols, pending.at(x)),
                Record::ExpertLinear { x, routing, experts } => {
                    let dx = self.expert_linear(&x.value, &routing, &experts, dy)?;
                    pending.add(x.node, dx);
                }
                Record::Combine { x, routing } => {
                    let compute = self.forward.context.compute();
                    let (dx, d_weights) = combine_backward(compute, &dy, &x.value, &routing.routing);
                    pending.add(x.node, dx);
                    pending.add(routing.node, d_weights);
                }
                Record::OutputRows { x, cols } => {
                    let dx = pending.at(x);
                    for (&row, dy) in batch.outputs.iter().zip(dy.chunks_exact(cols)) {
                        accumulate(&mut dx[row * cols..][..cols], dy);
                    }
                }
            }
        }
        Ok(())
    }

    /// Backward of a linear layer; returns the gradient with respect to `x`.
    ///
    /// # Errors
    /// Whatever a product's quantizer reports.
    pub fn linear(&mut self, x: &Activation, linear: &Linear, mut dy: Vec<f32>) -> Result<Vec<f32>> {
        self.add_bias_gradient(linear, &dy);
        self.round(&mut dy);
        let backward = self.products(linear.weight);
        let operand = backward.activation_operand(x)?;
        if let Some(gradient) = self.gradients.weight(linear.weight) {
            backward.add_weight_gradient(&dy, &operand, x.rows(), gradient)?;
        }
        backward.input_gradient(&dy, x.rows())
    }

    fn expert_linear(
        &mut self,
        x: &Activation,
        routing: &Routing,
        experts: &[Linear],
        mut dy: Vec<f32>,
    ) -> Result<Vec<f32>> {
        let inputs = x.cols();
        let outputs = dy.len().checked_div(x.rows()).unwrap_or(0);
        let mut dx = vec![0.0; x.values().len()];
        // Experts nearly always share one format, so one operand serves all.
        let mut operands: Vec<(Option<&FormatId>, Cow<'_, [f32]>)> = Vec::new();
        for (expert, linear) in experts.iter().enumerate() {
            let rows = routing.expert_rows(expert);
            if rows.is_empty() {
                continue;
            }
            let dy = &mut dy[rows.start * outputs..rows.end * outputs];
            self.add_bias_gradient(linear, dy);
            self.round(dy);
            let backward = self.products(linear.weight);
            let format = backward.dequantized_format();
            let at = match operands.iter().position(|(known, _)| *known == format) {
                Some(at) => at,
                None => {
                    operands.push((format, backward.activation_operand(x)?));
                    operands.len() - 1
                }
            };
            let operand = &operands[at].1[rows.start * inputs..rows.end * inputs];
            if let Some(gradient) = self.gradients.weight(linear.weight) {
                backward.add_weight_gradient(dy, operand, rows.len(), gradient)?;
            }
            let made = backward.input_gradient(dy, rows.len())?;
            dx[rows.start * inputs..rows.end * inputs].copy_from_slice(&made);
        }
        Ok(dx)
    }

    fn attention(
        &self,
        pending: &mut Pending,
        [q, k, v]: [Tracked; 3],
        attended: &Attended,
        shape: AttentionShape,
        dy: &[f32],
        sequences: &[std::ops::Range<usize>],
    ) {
        let compute = self.forward.context.compute();
        let [dq, dk, dv] =
            packed_attention_backward(compute, [&q.value, &k.value, &v.value], attended, dy, shape, sequences);
        pending.add(q.node, dq);
        pending.add(k.node, dk);
        pending.add(v.node, dv);
    }

    fn add_bias_gradient(&mut self, linear: &Linear, dy: &[f32]) {
        if let Some(gradient) = linear.bias.and_then(|bias| self.gradients.weight(bias)) {
            for dy in dy.chunks_exact(gradient.len()) {
                accumulate(gradient, dy);
            }
        }
    }

    fn round(&self, dy: &mut [f32]) {
        round_to(self.forward.activations, self.forward.context.compute(), dy);
    }

    fn products(&self, weight: ParamId) -> LinearBackward<'a> {
        let snapshot = self.forward.weights.snapshot();
        LinearBackward {
            context: self.forward.context,
            activations: self.forward.activations,
            mode: snapshot.map().entry(weight).backward,
            tensor: snapshot.tensor(weight),
            master: self.masters.view(weight),
        }
    }

    fn network(&self) -> &'a Network {
        self.forward.weights.snapshot().network()
    }
}
