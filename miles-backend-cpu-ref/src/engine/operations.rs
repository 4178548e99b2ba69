//! The operations of a rollout forward: the shared forward functions, and keys and values from the cache.

use miles_core::Result;
use miles_core::model::RouterConfig;
use miles_core::network::{AttentionShape, HeadColumns, Linear, Operations, ParamId, RopeShape};

use super::attention::cached_attention;
use super::batch::Batch;
use super::cache::KvCache;
use crate::ops::attention::check_shapes;
use crate::ops::router::Routing;
use crate::ops::{Activation, Forward, experts, heads};

/// One forward over a batch.
pub(super) struct RolloutOperations<'a> {
    pub(super) forward: Forward<'a>,
    pub(super) batch: &'a Batch,
    pub(super) cache: &'a mut KvCache,
}

impl Operations for RolloutOperations<'_> {
    type Tensor = Activation;
    type Routing = Routing;

    fn embedding(&mut self, table: ParamId) -> Result<Activation> {
        self.forward.embedding(table, self.batch.tokens())
    }

    fn rms_norm(&mut self, x: &Activation, weight: ParamId, groups: usize, eps: f32) -> Result<Activation> {
        self.forward.rms_norm(x, weight, groups, eps)
    }

    fn linear(&mut self, x: &Activation, linear: &Linear) -> Result<Activation> {
        self.forward.linear(x, linear)
    }

    fn rope(&mut self, x: &Activation, shape: RopeShape) -> Result<Activation> {
        self.forward.rope(x, shape, self.batch.positions())
    }

    fn attention(
        &mut self,
        q: &Activation,
        k: &Activation,
        v: &Activation,
        shape: AttentionShape,
    ) -> Result<Activation> {
        check_shapes(q, k, v, shape)?;
        let policy = self.forward.weights.stamp();
        for segment in self.batch.segments() {
            let rows = |x: &'_ Activation| segment.rows.start * x.cols()..segment.rows.end * x.cols();
            self.cache.append(segment.run, policy, shape.layer, &k.values()[rows(k)], &v.values()[rows(v)])?;
        }
        Ok(cached_attention(&self.forward, q, self.batch, self.cache, shape)?)
    }

    fn swiglu(&mut self, gate: &Activation, up: &Activation) -> Result<Activation> {
        self.forward.swiglu(gate, up)
    }

    fn add(&mut self, a: &Activation, b: &Activation) -> Result<Activation> {
        self.forward.add(a, b)
    }

    fn head_columns(&mut self, x: &Activation, columns: HeadColumns) -> Result<Activation> {
        heads::head_columns(x, columns)
    }

    fn join_heads(&mut self, a: &Activation, b: &Activation, heads: usize) -> Result<Activation> {
        heads::join_heads(a, b, heads)
    }

    fn route(
        &mut self,
        logits: &Activation,
        selection_bias: Option<ParamId>,
        rule: &RouterConfig,
        experts_per_token: usize,
    ) -> Result<Routing> {
        self.forward.route(logits, selection_bias, rule, experts_per_token)
    }

    fn dispatch(&mut self, x: &Activation, routing: &Routing) -> Result<Activation> {
        experts::dispatch(x, routing)
    }

    fn expert_linear(&mut self, x: &Activation, routing: &Routing, experts: &[Linear]) -> Result<Activation> {
        self.forward.expert_linear(x, routing, experts)
    }

    fn combine(&mut self, x: &Activation, routing: &Routing) -> Result<Activation> {
        self.forward.combine(x, routing)
    }

    fn output_rows(&mut self, x: &Activation) -> Result<Activation> {
        let rows = self.batch.output_rows();
        if rows.len() == x.rows() {
            return Ok(Activation::new(x.rows(), x.cols(), x.values().to_vec()));
        }
        let values = rows.iter().flat_map(|&row| x.row(row)).copied().collect();
        Ok(Activation::new(rows.len(), x.cols(), values))
    }
}
