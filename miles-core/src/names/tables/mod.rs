//! One table of names per group of families, and what a table is made of.
//!
//! A name is written as stored under the model's usual prefix, `{E}` standing for the number of a routed expert. Rows of a
//! layer leave out `model.layers.{L}.`.

mod deepseek;
mod gpt_oss;
mod llama;
mod qwen;

pub(super) use deepseek::{DEEPSEEK_V3, GLM4_MOE};
pub(super) use gpt_oss::GPT_OSS;
pub(super) use llama::{LLAMA, QWEN2, QWEN3};
pub(super) use qwen::{QWEN3_5_MOE, QWEN3_MOE, QWEN3_NEXT};

use crate::format::{Orientation, Packing};
use crate::network::Role;

/// The names of a family.
#[derive(Debug)]
pub(super) struct Table {
    /// Tensors before the layers.
    pub(super) first: Group,
    /// Parts of a layer, in order.
    pub(super) layer: &'static [Part],
    /// Tensors behind the layers.
    pub(super) last: Group,
    pub(super) predicted: Predicted,
    /// Prefix of stored tensors that belong to no text model and are carried along as they are.
    pub(super) other: Option<&'static str>,
}

/// Where predicted layers are stored.
#[derive(Debug)]
pub(super) enum Predicted {
    /// The family has none.
    None,
    /// `model.layers.{L}` behind the last layer: the parts of a layer, and these.
    Behind(Group),
    /// `mtp.layers.{L}`, the parts of a layer each, and these outside of them.
    Apart(Group),
}

/// A part of a layer: it has every tensor of one alternative and none of the others.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) alternatives: &'static [&'static [Group]],
}

/// Rows in order.
pub(super) type Group = &'static [Row];

/// One name.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) holds: Holds,
    /// Whether the tensor may be absent.
    pub(super) optional: bool,
}

/// What the stored tensor of a name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// One parameter.
    One(Role),
    /// The weight of a linear layer that has no role of its own.
    Projection,
    /// Matrices of all experts of a layer; the orientation is that of the shape where the family leaves it open.
    Packed(Packing, Option<Orientation>),
    /// Biases of all experts of a layer.
    PackedBias(Packing),
    /// What is known and cannot be read, for this reason.
    Unreadable(&'static str),
}

const fn row(name: &'static str, role: Role) -> Row {
    Row { name, holds: Holds::One(role), optional: false }
}

const fn optional(name: &'static str, role: Role) -> Row {
    Row { name, holds: Holds::One(role), optional: true }
}

/// A row whose parameters are other rows': packed experts are the rows of each expert.
const fn packed(name: &'static str, holds: Holds) -> Row {
    Row { name, holds, optional: true }
}

impl Table {
    /// Every row of a layer, with its part, group and place in the group.
    pub(super) fn layer_rows(&self) -> impl Iterator<Item = ([usize; 3], &'static Row)> {
        self.layer.iter().enumerate().flat_map(|(part, alternatives)| {
            alternatives.alternatives.iter().flat_map(move |groups| {
                groups.iter().enumerate().flat_map(move |(group, rows)| {
                    rows.iter().enumerate().map(move |(index, row)| ([part, group, index], row))
                })
            })
        })
    }

    /// Whether a layer may have routed experts.
    pub(super) fn has_experts(&self) -> bool {
        self.layer_rows().any(|(_, row)| row.name.contains("{E}"))
    }
}
