//! The only forward pass: control flow over [`Operations`].

use super::{
    Attention, AttentionShape, Expert, GroupedAttention, HeadColumns, MlaAttention, Mlp, Moe, Network, Operations,
    QueryPath, RopeShape,
};
use crate::Result;

/// Hidden states after the final norm, `[output rows, hidden]`, for the batch that `ops` holds.
///
/// # Errors
/// Whatever an operation reports.
pub fn forward<O: Operations>(network: &Network, ops: &mut O) -> Result<O::Tensor> {
    let eps = network.config.rms_norm_eps;
    let mut x = ops.embedding(network.embedding)?;
    for (index, layer) in network.layers.iter().enumerate() {
        let normed = ops.rms_norm(&x, layer.input_norm, 1, eps)?;
        let attended = match &layer.attention {
            Attention::Grouped(block) => grouped_attention(ops, block, index, eps, &normed)?,
            Attention::Mla(block) => mla_attention(ops, block, index, eps, &normed)?,
        };
        x = ops.add(&x, &attended)?;

        let normed = ops.rms_norm(&x, layer.post_attention_norm, 1, eps)?;
        let fed = match &layer.mlp {
            Mlp::Dense(block) => gated(ops, block, &normed)?,
            Mlp::Moe(block) => mixture(ops, block, &normed)?,
        };
        x = ops.add(&x, &fed)?;
    }
    let rows = ops.output_rows(&x)?;
    ops.rms_norm(&rows, network.final_norm, 1, eps)
}

/// Vocabulary logits `[rows, vocab]` of hidden states, always F32.
///
/// # Errors
/// Whatever the linear operation reports.
pub fn logits<O: Operations>(network: &Network, ops: &mut O, hidden: &O::Tensor) -> Result<O::Tensor> {
    ops.linear(hidden, &network.head)
}

fn grouped_attention<O: Operations>(
    ops: &mut O,
    block: &GroupedAttention,
    layer: usize,
    eps: f32,
    x: &O::Tensor,
) -> Result<O::Tensor> {
    let (heads, kv_heads, head_dim) = (block.heads, block.kv_heads, block.head_dim);
    let mut q = ops.linear(x, &block.q)?;
    let mut k = ops.linear(x, &block.k)?;
    let v = ops.linear(x, &block.v)?;
    if let Some((q_norm, k_norm)) = block.qk_norms {
        q = ops.rms_norm(&q, q_norm, heads, eps)?;
        k = ops.rms_norm(&k, k_norm, kv_heads, eps)?;
    }
    let q = ops.rope(&q, RopeShape { heads, head_dim, offset: 0 })?;
    let k = ops.rope(&k, RopeShape { heads: kv_heads, head_dim, offset: 0 })?;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let shape = AttentionShape { layer, heads, kv_heads, qk_dim: head_dim, v_dim: head_dim, scale };
    let attended = ops.attention(&q, &k, &v, shape)?;
    ops.linear(&attended, &block.o)
}

fn mla_attention<O: Operations>(
    ops: &mut O,
    block: &MlaAttention,
    layer: usize,
    eps: f32,
    x: &O::Tensor,
) -> Result<O::Tensor> {
    let (heads, nope, rope) = (block.heads, block.nope_dim, block.rope_dim);
    let q = match &block.query {
        QueryPath::Direct(linear) => ops.linear(x, linear)?,
        QueryPath::LowRank { down, norm, up } => {
            let latent = ops.linear(x, down)?;
            let latent = ops.rms_norm(&latent, *norm, 1, eps)?;
            ops.linear(&latent, up)?
        }
    };
    let q = ops.rope(&q, RopeShape { heads, head_dim: nope + rope, offset: nope })?;

    let latent = ops.linear(x, &block.kv_down)?;
    let rank = block.kv_lora_rank;
    let columns = |start, end| HeadColumns { heads: 1, width: rank + rope, start, end };
    let k_rope = ops.head_columns(&latent, columns(rank, rank + rope))?;
    let k_rope = ops.rope(&k_rope, RopeShape { heads: 1, head_dim: rope, offset: 0 })?;
    let latent = ops.head_columns(&latent, columns(0, rank))?;
    let latent = ops.rms_norm(&latent, block.kv_norm, 1, eps)?;
    let kv = ops.linear(&latent, &block.kv_up)?;
    let width = nope + block.v_dim;
    let k_nope = ops.head_columns(&kv, HeadColumns { heads, width, start: 0, end: nope })?;
    let v = ops.head_columns(&kv, HeadColumns { heads, width, start: nope, end: width })?;
    let k = ops.join_heads(&k_nope, &k_rope, heads)?;

    let qk_dim = nope + rope;
    let scale = 1.0 / (qk_dim as f32).sqrt();
    let shape = AttentionShape { layer, heads, kv_heads: heads, qk_dim, v_dim: block.v_dim, scale };
    let attended = ops.attention(&q, &k, &v, shape)?;
    ops.linear(&attended, &block.o)
}

fn gated<O: Operations>(ops: &mut O, block: &Expert, x: &O::Tensor) -> Result<O::Tensor> {
    let gate = ops.linear(x, &block.gate)?;
    let up = ops.linear(x, &block.up)?;
    let inner = ops.swiglu(&gate, &up)?;
    ops.linear(&inner, &block.down)
}

fn mixture<O: Operations>(ops: &mut O, block: &Moe, x: &O::Tensor) -> Result<O::Tensor> {
    let logits = ops.linear(x, &block.router)?;
    let routing = ops.route(&logits, block.selection_bias, &block.rule, block.experts_per_token)?;
    let rows = ops.dispatch(x, &routing)?;
    let gate = ops.expert_linear(&rows, &routing, &block.gates)?;
    let up = ops.expert_linear(&rows, &routing, &block.ups)?;
    let inner = ops.swiglu(&gate, &up)?;
    let down = ops.expert_linear(&inner, &routing, &block.downs)?;
    let routed = ops.combine(&down, &routing)?;
    match &block.shared {
        None => Ok(routed),
        Some(shared) => {
            let shared = gated(ops, shared, x)?;
            ops.add(&routed, &shared)
        }
    }
}
