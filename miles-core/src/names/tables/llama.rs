//! Llama, Qwen2 and Qwen3, and the groups that other families have in common with them.

use super::{Group, Part, Predicted, Table, optional, row};
use crate::network::Role;

pub(in crate::names) const LLAMA: Table = Table {
    first: EMBEDDING,
    layer: &[INPUT_NORM, Part { alternatives: &[&[GROUPED]] }, POST_NORM, Part { alternatives: &[&[DENSE]] }],
    last: NORM_AND_HEAD,
    predicted: Predicted::None,
    other: None,
};

pub(in crate::names) const QWEN2: Table = LLAMA;

pub(in crate::names) const QWEN3: Table = Table {
    layer: &[INPUT_NORM, Part { alternatives: &[&[GROUPED, QK_NORMS]] }, POST_NORM, Part { alternatives: &[&[DENSE]] }],
    ..LLAMA
};

pub(super) const EMBEDDING: Group = &[row("model.embed_tokens.weight", Role::Embedding)];

/// A tied head is not stored, or stored once more: the inventory decides.
pub(super) const NORM_AND_HEAD: Group = &[row("model.norm.weight", Role::Norm), optional("lm_head.weight", Role::Head)];

pub(super) const INPUT_NORM: Part = Part { alternatives: &[&[&[row("input_layernorm.weight", Role::Norm)]]] };
pub(super) const POST_NORM: Part = Part { alternatives: &[&[&[row("post_attention_layernorm.weight", Role::Norm)]]] };

pub(super) const GROUPED: Group = &[
    row("self_attn.q_proj.weight", Role::AttentionQ),
    optional("self_attn.q_proj.bias", Role::Bias),
    row("self_attn.k_proj.weight", Role::AttentionK),
    optional("self_attn.k_proj.bias", Role::Bias),
    row("self_attn.v_proj.weight", Role::AttentionV),
    optional("self_attn.v_proj.bias", Role::Bias),
    row("self_attn.o_proj.weight", Role::AttentionO),
    optional("self_attn.o_proj.bias", Role::Bias),
];

pub(super) const QK_NORMS: Group =
    &[row("self_attn.q_norm.weight", Role::Norm), row("self_attn.k_norm.weight", Role::Norm)];

pub(super) const DENSE: Group = &[
    row("mlp.gate_proj.weight", Role::MlpGate),
    optional("mlp.gate_proj.bias", Role::Bias),
    row("mlp.up_proj.weight", Role::MlpUp),
    optional("mlp.up_proj.bias", Role::Bias),
    row("mlp.down_proj.weight", Role::MlpDown),
    optional("mlp.down_proj.bias", Role::Bias),
];
