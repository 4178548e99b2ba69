//! DeepSeek-V3 and GLM-4.5 MoE: the same experts, router and predicted layers, another attention.

use super::llama::{DENSE, EMBEDDING, GROUPED, INPUT_NORM, NORM_AND_HEAD, POST_NORM};
use super::qwen::EXPERTS;
use super::{Group, Holds, Part, Predicted, Row, Table, optional, row};
use crate::network::Role;

pub(in crate::names) const DEEPSEEK_V3: Table = Table {
    first: EMBEDDING,
    layer: &[
        INPUT_NORM,
        Part { alternatives: &[&[LOW_RANK_QUERY, LATENT], &[DIRECT_QUERY, LATENT]] },
        POST_NORM,
        Part { alternatives: &[&[ROUTER, EXPERTS, SHARED_EXPERTS], &[DENSE]] },
    ],
    last: NORM_AND_HEAD,
    predicted: Predicted::Behind(MTP),
    other: None,
};

pub(in crate::names) const GLM4_MOE: Table = Table {
    layer: &[
        INPUT_NORM,
        Part { alternatives: &[&[GROUPED, QK_NORMS]] },
        POST_NORM,
        Part { alternatives: &[&[ROUTER, EXPERTS, SHARED_EXPERTS], &[DENSE]] },
    ],
    ..DEEPSEEK_V3
};

const LOW_RANK_QUERY: Group = &[
    row("self_attn.q_a_proj.weight", Role::MlaQDown),
    optional("self_attn.q_a_proj.bias", Role::Bias),
    row("self_attn.q_a_layernorm.weight", Role::Norm),
    row("self_attn.q_b_proj.weight", Role::MlaQUp),
];

const DIRECT_QUERY: Group = &[row("self_attn.q_proj.weight", Role::AttentionQ)];

const LATENT: Group = &[
    row("self_attn.kv_a_proj_with_mqa.weight", Role::MlaKvDown),
    optional("self_attn.kv_a_proj_with_mqa.bias", Role::Bias),
    row("self_attn.kv_a_layernorm.weight", Role::Norm),
    row("self_attn.kv_b_proj.weight", Role::MlaKvUp),
    row("self_attn.o_proj.weight", Role::AttentionO),
    optional("self_attn.o_proj.bias", Role::Bias),
];

/// Only the larger models have them.
const QK_NORMS: Group =
    &[optional("self_attn.q_norm.weight", Role::Norm), optional("self_attn.k_norm.weight", Role::Norm)];

const ROUTER: Group =
    &[row("mlp.gate.weight", Role::Router), row("mlp.gate.e_score_correction_bias", Role::RouterBias)];

const SHARED_EXPERTS: Group = &[
    optional("mlp.shared_experts.gate_proj.weight", Role::SharedGate),
    optional("mlp.shared_experts.up_proj.weight", Role::SharedUp),
    optional("mlp.shared_experts.down_proj.weight", Role::SharedDown),
];

/// Beside the parts of an ordinary layer. The copies of the embedding table and of the head may be left out.
const MTP: Group = &[
    optional("embed_tokens.weight", Role::Embedding),
    row("enorm.weight", Role::Norm),
    row("hnorm.weight", Role::Norm),
    Row { name: "eh_proj.weight", holds: Holds::Projection, optional: false },
    optional("shared_head.norm.weight", Role::Norm),
    optional("shared_head.head.weight", Role::Head),
];
