//! Qwen3-MoE, Qwen3-Next and the text part of Qwen3.5-MoE.

use super::llama::{DENSE, EMBEDDING, GROUPED, INPUT_NORM, NORM_AND_HEAD, POST_NORM, QK_NORMS};
use super::{Group, Holds, Part, Predicted, Table, optional, packed, row};
use crate::format::Packing;
use crate::network::Role;

pub(in crate::names) const QWEN3_MOE: Table = Table {
    first: EMBEDDING,
    layer: &[
        INPUT_NORM,
        Part { alternatives: &[&[GROUPED, QK_NORMS]] },
        POST_NORM,
        Part { alternatives: &[&[ROUTER, EXPERTS], &[DENSE]] },
    ],
    last: NORM_AND_HEAD,
    predicted: Predicted::None,
    other: None,
};

pub(in crate::names) const QWEN3_NEXT: Table = Table {
    layer: &[
        INPUT_NORM,
        Part { alternatives: &[&[GROUPED, QK_NORMS], &[LINEAR_STATE, JOINT_PROJECTIONS, LINEAR_OUT]] },
        POST_NORM,
        Part { alternatives: &[&[ROUTER, EXPERTS, SHARED_EXPERT], &[DENSE]] },
    ],
    predicted: Predicted::Apart(MTP),
    ..QWEN3_MOE
};

pub(in crate::names) const QWEN3_5_MOE: Table = Table {
    layer: &[
        INPUT_NORM,
        Part { alternatives: &[&[GROUPED, QK_NORMS], &[LINEAR_STATE, SPLIT_PROJECTIONS, LINEAR_OUT]] },
        POST_NORM,
        Part { alternatives: &[&[ROUTER, EXPERTS, SHARED_EXPERT]] },
    ],
    other: Some("model.visual."),
    ..QWEN3_NEXT
};

const ROUTER: Group = &[row("mlp.gate.weight", Role::Router)];

/// Experts one by one, or packed with gate and up in halves; transformers packs them with the outputs first, older
/// exporters with the inputs first.
pub(super) const EXPERTS: Group = &[
    row("mlp.experts.{E}.gate_proj.weight", Role::ExpertGate),
    row("mlp.experts.{E}.up_proj.weight", Role::ExpertUp),
    row("mlp.experts.{E}.down_proj.weight", Role::ExpertDown),
    packed("mlp.experts.gate_up_proj", Holds::Packed(Packing::GateUpHalves, None)),
    packed("mlp.experts.down_proj", Holds::Packed(Packing::Single, None)),
];

const SHARED_EXPERT: Group = &[
    row("mlp.shared_expert.gate_proj.weight", Role::SharedGate),
    row("mlp.shared_expert.up_proj.weight", Role::SharedUp),
    row("mlp.shared_expert.down_proj.weight", Role::SharedDown),
    row("mlp.shared_expert_gate.weight", Role::SharedExpertGate),
];

const LINEAR_STATE: Group = &[
    row("linear_attn.A_log", Role::LinearAttentionDecay),
    row("linear_attn.dt_bias", Role::LinearAttentionDecay),
    row("linear_attn.conv1d.weight", Role::LinearAttentionConv),
];

const JOINT_PROJECTIONS: Group = &[
    row("linear_attn.in_proj_qkvz.weight", Role::LinearAttentionIn),
    row("linear_attn.in_proj_ba.weight", Role::LinearAttentionGates),
];

const SPLIT_PROJECTIONS: Group = &[
    row("linear_attn.in_proj_qkv.weight", Role::LinearAttentionIn),
    row("linear_attn.in_proj_z.weight", Role::LinearAttentionIn),
    row("linear_attn.in_proj_b.weight", Role::LinearAttentionGates),
    row("linear_attn.in_proj_a.weight", Role::LinearAttentionGates),
];

const LINEAR_OUT: Group =
    &[row("linear_attn.norm.weight", Role::Norm), row("linear_attn.out_proj.weight", Role::LinearAttentionOut)];

const MTP: Group = &[
    super::Row { name: "mtp.fc.weight", holds: Holds::Projection, optional: false },
    row("mtp.pre_fc_norm_embedding.weight", Role::Norm),
    row("mtp.pre_fc_norm_hidden.weight", Role::Norm),
    row("mtp.norm.weight", Role::Norm),
    optional("mtp.embed_tokens.weight", Role::Embedding),
];
