//! The small set of operations that every backend supplies.

use super::{Linear, ParamId};
use crate::Result;
use crate::model::RouterConfig;

/// The operations that [`super::forward`] is written in.
///
/// A value of the implementing type knows the batch: token ids, the sequence and position of each row, the weights of
/// one policy version and (in rollout) the KV cache. Tensors are `[rows, columns]`, one row per token. Every
/// operation is *batch-invariant*: a row's result does not depend on the other rows.
pub trait Operations {
    /// Activations `[rows, columns]`.
    type Tensor;
    /// The experts of each row and their weights.
    type Routing;

    /// Rows of the embedding table, one per token of the batch: `[rows, hidden]`.
    ///
    /// # Errors
    /// If a token id is outside the table.
    fn embedding(&mut self, table: ParamId) -> Result<Self::Tensor>;

    /// RMS norm over each of `groups` equal column ranges: `x / sqrt(mean(x^2) + eps) * weight`.
    ///
    /// # Errors
    /// If shapes disagree.
    fn rms_norm(&mut self, x: &Self::Tensor, weight: ParamId, groups: usize, eps: f32) -> Result<Self::Tensor>;

    /// `x W^T + b`: `[rows, in] -> [rows, out]`, in the format that the policy holds `W` in.
    ///
    /// # Errors
    /// If shapes disagree or the format is unsupported.
    fn linear(&mut self, x: &Self::Tensor, linear: &Linear) -> Result<Self::Tensor>;

    /// Rotary embedding on a column range of each head.
    ///
    /// # Errors
    /// If shapes disagree.
    fn rope(&mut self, x: &Self::Tensor, shape: RopeShape) -> Result<Self::Tensor>;

    /// Causal attention of `layer`, over the batch's sequences and (in rollout) their cached keys and values.
    ///
    /// # Errors
    /// If shapes disagree.
    fn attention(
        &mut self,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        shape: AttentionShape,
    ) -> Result<Self::Tensor>;

    /// `silu(gate) * up`.
    ///
    /// # Errors
    /// If shapes disagree.
    fn swiglu(&mut self, gate: &Self::Tensor, up: &Self::Tensor) -> Result<Self::Tensor>;

    /// `a + b`.
    ///
    /// # Errors
    /// If shapes disagree.
    fn add(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;

    /// A column range of each head: `[rows, heads * width] -> [rows, heads * range]`.
    ///
    /// # Errors
    /// If shapes disagree.
    fn head_columns(&mut self, x: &Self::Tensor, columns: HeadColumns) -> Result<Self::Tensor>;

    /// Per head, the columns of `a` followed by those of `b`; a `b` of one head is repeated for every head.
    ///
    /// # Errors
    /// If shapes disagree.
    fn join_heads(&mut self, a: &Self::Tensor, b: &Self::Tensor, heads: usize) -> Result<Self::Tensor>;

    /// From router logits `[rows, experts]` to each row's experts and weights.
    ///
    /// # Errors
    /// If shapes disagree.
    fn route(
        &mut self,
        logits: &Self::Tensor,
        selection_bias: Option<ParamId>,
        rule: &RouterConfig,
        experts_per_token: usize,
    ) -> Result<Self::Routing>;

    /// The rows of `x` copied to their experts: `[rows, hidden] -> [rows * k, hidden]`, ordered by expert, then row.
    ///
    /// # Errors
    /// If shapes disagree.
    fn dispatch(&mut self, x: &Self::Tensor, routing: &Self::Routing) -> Result<Self::Tensor>;

    /// One linear layer per expert over dispatched rows: `[rows * k, in] -> [rows * k, out]`.
    ///
    /// # Errors
    /// If shapes disagree or the format is unsupported.
    fn expert_linear(&mut self, x: &Self::Tensor, routing: &Self::Routing, experts: &[Linear]) -> Result<Self::Tensor>;

    /// Weighted sum of each row's expert results, in ascending expert order: `[rows * k, hidden] -> [rows, hidden]`.
    ///
    /// # Errors
    /// If shapes disagree.
    fn combine(&mut self, x: &Self::Tensor, routing: &Self::Routing) -> Result<Self::Tensor>;

    /// The rows whose next token matters (sampled from or scored), in batch order.
    ///
    /// # Errors
    /// If shapes disagree.
    fn output_rows(&mut self, x: &Self::Tensor) -> Result<Self::Tensor>;
}

/// Which columns of a tensor the rotary embedding turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeShape {
    /// Heads in the tensor.
    pub heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// First rotated column of each head; the rotated width is the model's `rotary_dim`.
    pub offset: usize,
}

/// Shape of one attention call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Decoder layer: names the KV cache.
    pub layer: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub qk_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
}

/// A column range taken from each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// Heads in the tensor (1: a plain column range).
    pub heads: usize,
    /// Width of one head.
    pub width: usize,
    /// First column taken.
    pub start: usize,
    /// One past the last column taken.
    pub end: usize,
}
