//! The operations of a training batch: computed by the functions that the engine calls, and remembered for the backward
//! pass as far as it needs them.
//!
//! Every result gets a node, numbered in order. A node's record keeps only what its backward reads (the input of a
//! linear layer, not that of an addition), so other activations are freed as the forward pass goes on, and records are
//! freed one by one as [`super::backward`] walks them in reverse.

use std::sync::Arc;

use miles_core::Result;
use miles_core::model::RouterConfig;
use miles_core::network::{AttentionShape, HeadColumns, Linear, Operations, ParamId, RopeShape};

use super::batch::Packed;
use crate::ops::attention::{Attended, packed_attention};
use crate::ops::experts::dispatch;
use crate::ops::heads::{head_columns, join_heads};
use crate::ops::router::Routing;
use crate::ops::{Activation, Forward};

/// An activation and the node that made it.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// The values.
    pub value: Arc<Activation>,
    /// The node.
    pub node: Node,
}

/// A routing and the node that its weights' gradient belongs to.
#[derive(Clone, Debug)]
pub struct TrackedRouting {
    /// The routing.
    pub routing: Arc<Routing>,
    /// The node.
    pub node: Node,
}

/// Number of a node, and the size of the gradient that belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Position in the tape.
    pub index: usize,
    /// Elements of the result.
    pub elements: usize,
}

/// What the backward of one operation reads.
#[derive(Debug)]
pub(crate) enum Record {
    Embedding,
    Norm { x: Tracked, weight: ParamId, eps: f32 },
    Linear { x: Tracked, linear: Linear },
    Rope { x: Node, shape: RopeShape },
    Attention { q: Tracked, k: Tracked, v: Tracked, attended: Attended, shape: AttentionShape },
    Swiglu { gate: Tracked, up: Tracked },
    Add { a: Node, b: Node },
    HeadColumns { x: Node, columns: HeadColumns },
    JoinHeads { a: Node, b: Node, heads: usize, widths: (usize, usize) },
    Route { logits: Node, routing: Arc<Routing>, rule: RouterConfig },
    Dispatch { x: Node, routing: Arc<Routing>, cols: usize },
    ExpertLinear { x: Tracked, routing: Arc<Routing>, experts: Vec<Linear> },
    Combine { x: Tracked, routing: TrackedRouting },
    OutputRows { x: Node, cols: usize },
}

/// The operations of one packed batch.
pub struct Tape<'a> {
    pub(crate) forward: Forward<'a>,
    pub(crate) batch: &'a Packed,
    pub(crate) records: Option<Vec<Record>>,
    nodes: usize,
}

impl<'a> Tape<'a> {
    /// A tape that remembers.
    #[must_use]
    pub fn recording(forward: Forward<'a>, batch: &'a Packed) -> Self {
        Tape { forward, batch, records: Some(Vec::new()), nodes: 0 }
    }

    /// A tape that only computes.
    #[must_use]
    pub fn forgetting(forward: Forward<'a>, batch: &'a Packed) -> Self {
        Tape { forward, batch, records: None, nodes: 0 }
    }

    /// Numbers a result; `record` is made only by a tape that remembers.
    fn node(&mut self, elements: usize, record: impl FnOnce() -> Record) -> Node {
        if let Some(records) = &mut self.records {
            records.push(record());
        }
        let index = self.nodes;
        self.nodes += 1;
        Node { index, elements }
    }

    fn track(&mut self, value: Activation, record: impl FnOnce() -> Record) -> Tracked {
        let node = self.node(value.values().len(), record);
        Tracked { value: Arc::new(value), node }
    }
}

impl Operations for Tape<'_> {
    type Tensor = Tracked;
    type Routing = TrackedRouting;

    fn embedding(&mut self, table: ParamId) -> Result<Tracked> {
        let value = self.forward.embedding(table, &self.batch.tokens)?;
        Ok(self.track(value, || Record::Embedding))
    }

    fn rms_norm(&mut self, x: &Tracked, weight: ParamId, groups: usize, eps: f32) -> Result<Tracked> {
        let value = self.forward.rms_norm(&x.value, weight, groups, eps)?;
        Ok(self.track(value, || Record::Norm { x: x.clone(), weight, eps }))
    }

    fn linear(&mut self, x: &Tracked, linear: &Linear) -> Result<Tracked> {
        let value = self.forward.linear(&x.value, linear)?;
        Ok(self.track(value, || Record::Linear { x: x.clone(), linear: *linear }))
    }

    fn rope(&mut self, x: &Tracked, shape: RopeShape) -> Result<Tracked> {
        let value = self.forward.rope(&x.value, shape, &self.batch.positions)?;
        Ok(self.track(value, || Record::Rope { x: x.node, shape }))
    }

    fn attention(&mut self, q: &Tracked, k: &Tracked, v: &Tracked, shape: AttentionShape) -> Result<Tracked> {
        let attended = packed_attention(&self.forward, &q.value, &k.value, &v.value, shape, &self.batch.sequences)?;
        let value = Arc::clone(&attended.output);
        let node = self.node(value.values().len(), || Record::Attention {
            q: q.clone(),
            k: k.clone(),
            v: v.clone(),
            attended,
            shape,
        });
        Ok(Tracked { value, node })
    }

    fn swiglu(&mut self, gate: &Tracked, up: &Tracked) -> Result<Tracked> {
        let value = self.forward.swiglu(&gate.value, &up.value)?;
        Ok(self.track(value, || Record::Swiglu { gate: gate.clone(), up: up.clone() }))
    }

    fn add(&mut self, a: &Tracked, b: &Tracked) -> Result<Tracked> {
        let value = self.forward.add(&a.value, &b.value)?;
        Ok(self.track(value, || Record::Add { a: a.node, b: b.node }))
    }

    fn head_columns(&mut self, x: &Tracked, columns: HeadColumns) -> Result<Tracked> {
        let value = head_columns(&x.value, columns)?;
        Ok(self.track(value, || Record::HeadColumns { x: x.node, columns }))
    }

    fn join_heads(&mut self, a: &Tracked, b: &Tracked, heads: usize) -> Result<Tracked> {
        let value = join_heads(&a.value, &b.value, heads)?;
        let widths = (a.value.cols() / heads, b.value.cols());
        Ok(self.track(value, || Record::JoinHeads { a: a.node, b: b.node, heads, widths }))
    }

    fn route(
        &mut self,
        logits: &Tracked,
        selection_bias: Option<ParamId>,
        rule: &RouterConfig,
        experts_per_token: usize,
    ) -> Result<TrackedRouting> {
        let routing = Arc::new(self.forward.route(&logits.value, selection_bias, rule, experts_per_token)?);
        let node = self.node(routing.weights().len(), || Record::Route {
            logits: logits.node,
            routing: Arc::clone(&routing),
            rule: rule.clone(),
        });
        Ok(TrackedRouting { routing, node })
    }

    fn dispatch(&mut self, x: &Tracked, routing: &TrackedRouting) -> Result<Tracked> {
        let value = dispatch(&x.value, &routing.routing)?;
        let cols = x.value.cols();
        let routing = Arc::clone(&routing.routing);
        Ok(self.track(value, || Record::Dispatch { x: x.node, routing, cols }))
    }

    fn expert_linear(&mut self, x: &Tracked, routing: &TrackedRouting, experts: &[Linear]) -> Result<Tracked> {
        let value = self.forward.expert_linear(&x.value, &routing.routing, experts)?;
        Ok(self.track(value, || Record::ExpertLinear {
            x: x.clone(),
            routing: Arc::clone(&routing.routing),
            experts: experts.to_vec(),
        }))
    }

    fn combine(&mut self, x: &Tracked, routing: &TrackedRouting) -> Result<Tracked> {
        let value = self.forward.combine(&x.value, &routing.routing)?;
        Ok(self.track(value, || Record::Combine { x: x.clone(), routing: routing.clone() }))
    }

    fn output_rows(&mut self, x: &Tracked) -> Result<Tracked> {
        let cols = x.value.cols();
        let values = self.batch.outputs.iter().flat_map(|&row| x.value.row(row)).copied().collect();
        let value = Activation::new(self.batch.outputs.len(), cols, values);
        Ok(self.track(value, || Record::OutputRows { x: x.node, cols }))
    }
}
