//! [`Inventory`]: every tensor of a model, without the structure that uses them.
//!
//! It is what precision rules are resolved over and what conversion goes through. A [`Network`](super::Network) has one;
//! so does the checkpoint of a family whose forward pass is not described here.

use std::collections::HashMap;

use super::{ParamId, Parameter, Role};

/// Every tensor of a model; [`ParamId`] is an index into it.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The tensors.
    pub parameters: Vec<Parameter>,
    layer_count: usize,
    by_name: HashMap<String, ParamId>,
}

impl Inventory {
    /// Lists the tensors of a model of `layer_count` decoder layers. Names are unique.
    #[must_use]
    pub fn new(parameters: Vec<Parameter>, layer_count: usize) -> Self {
        let named = parameters.iter().enumerate();
        let by_name = named.map(|(index, parameter)| (parameter.name.clone(), ParamId(index as u32))).collect();
        Inventory { parameters, layer_count, by_name }
    }

    /// Number of decoder layers.
    #[must_use]
    pub fn layer_count(&self) -> usize {
        self.layer_count
    }

    /// Whether any layer has routed experts.
    #[must_use]
    pub fn has_routed_experts(&self) -> bool {
        self.parameters.iter().any(|parameter| parameter.role == Role::ExpertGate)
    }

    /// The parameter behind an id.
    #[must_use]
    pub fn parameter(&self, id: ParamId) -> &Parameter {
        &self.parameters[id.index()]
    }

    /// The id of a canonical name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.by_name.get(name).copied()
    }

    /// Every id in order.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.parameters.len() as u32).map(ParamId)
    }

    /// Every name in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(|parameter| parameter.name.as_str())
    }
}
