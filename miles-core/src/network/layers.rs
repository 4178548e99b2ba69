//! The structure of a network: which parameters each layer uses.

use super::ParamId;
use crate::model::RouterConfig;

/// `y = x W^T + b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// Weight `[out, in]`.
    pub weight: ParamId,
    /// Bias `[out]`.
    pub bias: Option<ParamId>,
    /// Number type of the result.
    pub output: LinearOutput,
}

/// Number type of a linear layer's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearOutput {
    /// The run's activation type (BF16 or F32).
    Activation,
    /// Always F32: router logits and vocabulary logits.
    F32,
}

/// One decoder layer: `x += attention(norm(x)); x += mlp(norm(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Norm before attention.
    pub input_norm: ParamId,
    /// Attention block.
    pub attention: Attention,
    /// Norm before the feed-forward block.
    pub post_attention_norm: ParamId,
    /// Feed-forward block.
    pub mlp: Mlp,
}

/// Attention block of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// Grouped-query attention.
    Grouped(GroupedAttention),
    /// Multi-head latent attention.
    Mla(MlaAttention),
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedAttention {
    /// Query projection `[heads * head_dim, hidden]`.
    pub q: Linear,
    /// Key projection `[kv_heads * head_dim, hidden]`.
    pub k: Linear,
    /// Value projection `[kv_heads * head_dim, hidden]`.
    pub v: Linear,
    /// Output projection `[hidden, heads * head_dim]`.
    pub o: Linear,
    /// Norms of each query and key head (Qwen3), `[head_dim]`.
    pub qk_norms: Option<(ParamId, ParamId)>,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaAttention {
    /// How queries are made.
    pub query: QueryPath,
    /// Key/value down-projection `[kv_lora_rank + qk_rope_head_dim, hidden]`.
    pub kv_down: Linear,
    /// Norm of the latent part.
    pub kv_norm: ParamId,
    /// Key/value up-projection `[heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]`.
    pub kv_up: Linear,
    /// Output projection `[hidden, heads * v_head_dim]`.
    pub o: Linear,
    /// Heads.
    pub heads: usize,
    /// Rank of the latent.
    pub kv_lora_rank: usize,
    /// Head part without position.
    pub nope_dim: usize,
    /// Head part with rotary position.
    pub rope_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
}

/// How MLA queries are made.
#[derive(Clone, Debug, PartialEq)]
pub enum QueryPath {
    /// One projection.
    Direct(Linear),
    /// Down-projection, norm, up-projection.
    LowRank {
        /// `[q_lora_rank, hidden]`
        down: Linear,
        /// `[q_lora_rank]`
        norm: ParamId,
        /// `[heads * (nope + rope), q_lora_rank]`
        up: Linear,
    },
}

/// Feed-forward block of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mlp {
    /// `down(silu(gate(x)) * up(x))`.
    Dense(Expert),
    /// Router and experts.
    Moe(Moe),
}

/// One gated feed-forward block: a dense MLP, a shared expert or a routed expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expert {
    /// `[intermediate, hidden]`
    pub gate: Linear,
    /// `[intermediate, hidden]`
    pub up: Linear,
    /// `[hidden, intermediate]`
    pub down: Linear,
}

/// Router, routed experts and shared experts of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Router weight `[experts, hidden]`; its result stays F32.
    pub router: Linear,
    /// Selection bias `[experts]` (DeepSeek-V3).
    pub selection_bias: Option<ParamId>,
    /// Rule from logits to experts.
    pub rule: RouterConfig,
    /// Experts that each token visits.
    pub experts_per_token: usize,
    /// Gate projections, one per routed expert.
    pub gates: Vec<Linear>,
    /// Up projections, one per routed expert.
    pub ups: Vec<Linear>,
    /// Down projections, one per routed expert.
    pub downs: Vec<Linear>,
    /// Shared experts as one dense block.
    pub shared: Option<Expert>,
}
