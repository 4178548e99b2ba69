//! gpt-oss: attention sinks, and experts packed with interleaved gate and up columns, `[experts, hidden, 2 inner]`, and
//! biases of their own.

use super::llama::{EMBEDDING, GROUPED, INPUT_NORM, NORM_AND_HEAD, POST_NORM};
use super::{Group, Holds, Part, Predicted, Table, packed, row};
use crate::format::{Orientation, Packing};
use crate::network::Role;

pub(in crate::names) const GPT_OSS: Table = Table {
    first: EMBEDDING,
    layer: &[
        INPUT_NORM,
        Part { alternatives: &[&[GROUPED, SINKS]] },
        POST_NORM,
        Part { alternatives: &[&[ROUTER, EXPERTS]] },
    ],
    last: NORM_AND_HEAD,
    predicted: Predicted::None,
    other: None,
};

const SINKS: Group = &[row("self_attn.sinks", Role::AttentionSink)];

const ROUTER: Group = &[row("mlp.router.weight", Role::Router), row("mlp.router.bias", Role::Bias)];

const MXFP4: &str = "MXFP4 codes are not read; convert the checkpoint to BF16 first";

const EXPERTS: Group = &[
    row("mlp.experts.{E}.gate_proj.weight", Role::ExpertGate),
    row("mlp.experts.{E}.gate_proj.bias", Role::Bias),
    row("mlp.experts.{E}.up_proj.weight", Role::ExpertUp),
    row("mlp.experts.{E}.up_proj.bias", Role::Bias),
    row("mlp.experts.{E}.down_proj.weight", Role::ExpertDown),
    row("mlp.experts.{E}.down_proj.bias", Role::Bias),
    packed("mlp.experts.gate_up_proj", Holds::Packed(Packing::GateUpInterleaved, Some(Orientation::Transposed))),
    packed("mlp.experts.gate_up_proj_bias", Holds::PackedBias(Packing::GateUpInterleaved)),
    packed("mlp.experts.down_proj", Holds::Packed(Packing::Single, Some(Orientation::Transposed))),
    packed("mlp.experts.down_proj_bias", Holds::PackedBias(Packing::Single)),
    packed("mlp.experts.gate_up_proj_blocks", Holds::Unreadable(MXFP4)),
    packed("mlp.experts.gate_up_proj_scales", Holds::Unreadable(MXFP4)),
    packed("mlp.experts.down_proj_blocks", Holds::Unreadable(MXFP4)),
    packed("mlp.experts.down_proj_scales", Holds::Unreadable(MXFP4)),
];
