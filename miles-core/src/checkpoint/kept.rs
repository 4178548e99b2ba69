//! Modules in high precision: the list that engines look up, and what such a list says about a stored tensor.
//!
//! Engines join projections that read the same input and ask the list for the joint module, some by the names of its
//! members (vLLM), some by its own (SGLang). So both are listed:
//!
//! | joint module | members |
//! |---|---|
//! | `self_attn.qkv_proj` | `q_proj`, `k_proj`, `v_proj` |
//! | `self_attn.fused_qkv_a_proj`, `self_attn.fused_qkv_a_proj_with_mqa` | `q_a_proj`, `kv_a_proj_with_mqa` |
//! | `mlp.gate_up_proj`, also of shared experts | `gate_proj`, `up_proj` |
//! | `mlp.experts` | every projection of every routed expert |
//!
//! A joint module is listed when all its members are in high precision. Layers that predict further tokens are listed
//! whole: their tensors are not written, so whatever an engine puts there is in high precision.

use std::collections::BTreeMap;

use super::names;
use crate::network::{Inventory, ParamId, Role};
use crate::precision::glob;

/// A joint module: the end of its name, and that of each member.
type Joint = (&'static str, &'static [&'static str]);

const JOINT: [Joint; 4] = [
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("fused_qkv_a_proj", &["q_a_proj", "kv_a_proj_with_mqa"]),
    ("fused_qkv_a_proj_with_mqa", &["q_a_proj", "kv_a_proj_with_mqa"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
];

/// Modules that the model has beside its parameters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// Whether the head is the embedding table.
    pub(super) tied_head: bool,
    /// Layers behind the model's own that predict further tokens.
    pub(super) predicted_layers: usize,
}

/// The modules that engines must not expect codes for, sorted; `is_dense` tells which parameters those are.
pub(super) fn kept_modules(inventory: &Inventory, beside: Beside, is_dense: impl Fn(ParamId) -> bool) -> Vec<String> {
    let mut modules = Vec::new();
    let mut experts: BTreeMap<&str, bool> = BTreeMap::new();
    let kept = |module: &str| inventory.find(&format!("{module}.weight")).is_some_and(&is_dense);
    for (id, parameter) in inventory.ids().zip(&inventory.parameters) {
        let Some(module) = parameter.name.strip_suffix(".weight") else { continue };
        if matches!(parameter.role, Role::Norm | Role::Bias | Role::RouterBias) {
            continue;
        }
        let dense = is_dense(id);
        if parameter.expert.is_some()
            && let Some((stack, _)) = module.split_once(".experts.")
        {
            *experts.entry(stack).or_insert(true) &= dense;
        }
        if !dense {
            continue;
        }
        modules.push(module.to_owned());
        let (base, own) = module.rsplit_once('.').unwrap_or(("", module));
        for (joint, members) in JOINT {
            // Once, at the first member.
            if members[0] == own && members.iter().all(|member| kept(&format!("{base}.{member}"))) {
                modules.push(format!("{base}.{joint}"));
            }
        }
    }
    modules.extend(experts.iter().filter(|(_, dense)| **dense).map(|(stack, _)| format!("{stack}.experts")));
    if beside.tied_head {
        modules.push("lm_head".to_owned());
    }
    let layers = inventory.layer_count();
    modules.extend((layers..layers + beside.predicted_layers).map(|layer| format!("model.layers.{layer}")));
    modules.sort_unstable();
    modules.dedup();
    modules
}

/// The entry of a list that names a tensor's module, or a module that it lies in: by its name, or by a pattern with `*`
/// for any characters (ModelOpt). Regular expressions (compressed-tensors' `re:`) name nothing here.
pub(super) fn listed<'l>(list: &'l [String], tensor: &str) -> Option<&'l str> {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    let names = |entry: &str| match entry {
        _ if entry.starts_with("re:") => false,
        _ if entry.contains('*') => glob(names::canonical(entry).as_bytes(), module.as_bytes()),
        _ => module
            .strip_prefix(names::canonical(entry).as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
    };
    list.iter().map(String::as_str).find(|entry| names(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Parameter;

    /// Parameters by name and role; those whose name ends in `!` are stored as codes.
    fn kept(parameters: &[(&str, Role)], beside: Beside) -> Vec<String> {
        let named = |(name, role): &(&str, Role)| Parameter {
            name: format!("{}.weight", name.trim_end_matches('!')),
            shape: vec![32, 32],
            role: *role,
            is_linear: role.is_linear(),
            layer: Some(0),
            expert: name.contains(".experts.").then_some(0),
            pair: None,
        };
        let inventory = Inventory::new(parameters.iter().map(named).collect(), 1);
        kept_modules(&inventory, beside, |id| !parameters[id.index()].0.ends_with('!'))
    }

    #[test]
    fn a_joint_module_is_listed_when_all_its_members_are() {
        use Role::{AttentionK, AttentionQ, AttentionV, MlpGate, MlpUp};
        let dense = [("a.q_proj", AttentionQ), ("a.k_proj", AttentionK), ("a.v_proj", AttentionV)];
        assert_eq!(kept(&dense, Beside::default()), ["a.k_proj", "a.q_proj", "a.qkv_proj", "a.v_proj"]);
        let mixed = [("a.q_proj", AttentionQ), ("a.k_proj!", AttentionK), ("a.v_proj", AttentionV)];
        assert_eq!(kept(&mixed, Beside::default()), ["a.q_proj", "a.v_proj"]);
        let codes = [("m.gate_proj!", MlpGate), ("m.up_proj!", MlpUp)];
        assert!(kept(&codes, Beside::default()).is_empty());
        assert_eq!(
            kept(&[("m.gate_proj", MlpGate), ("m.up_proj", MlpUp)], Beside::default()),
            ["m.gate_proj", "m.gate_up_proj", "m.up_proj"]
        );
    }

    #[test]
    fn multi_head_latent_attention_has_a_joint_module_under_two_names() {
        let parameters = [("a.q_a_proj", Role::MlaQDown), ("a.kv_a_proj_with_mqa", Role::MlaKvDown)];
        let joint = ["a.fused_qkv_a_proj", "a.fused_qkv_a_proj_with_mqa", "a.kv_a_proj_with_mqa", "a.q_a_proj"];
        assert_eq!(kept(&parameters, Beside::default()), joint);
        // Without a compressed query there is nothing to join.
        assert_eq!(kept(&parameters[1..], Beside::default()), ["a.kv_a_proj_with_mqa"]);
    }

    #[test]
    fn routed_experts_are_one_module_and_shared_ones_another() {
        let routed = [
            ("m.experts.0.gate_proj", Role::ExpertGate),
            ("m.experts.0.up_proj", Role::ExpertUp),
            ("m.experts.0.down_proj!", Role::ExpertDown),
            ("m.shared_experts.gate_proj", Role::SharedGate),
            ("m.shared_experts.up_proj", Role::SharedUp),
        ];
        let found = kept(&routed, Beside::default());
        assert!(!found.contains(&"m.experts".to_owned()), "{found:?}");
        assert!(found.contains(&"m.shared_experts.gate_up_proj".to_owned()), "{found:?}");
        let found = kept(&routed[..2], Beside::default());
        assert!(found.contains(&"m.experts".to_owned()), "{found:?}");
    }

    #[test]
    fn what_lies_beside_the_parameters_is_listed() {
        let beside = Beside { tied_head: true, predicted_layers: 1 };
        assert_eq!(kept(&[("model.layers.0.n", Role::Norm)], beside), ["lm_head", "model.layers.1"]);
    }

    #[test]
    fn entries_name_modules_and_everything_in_them() {
        let tensor = "model.layers.1.mlp.experts.12.up_proj.weight";
        for entry in [
            "model.layers.1.mlp.experts.12.up_proj",
            "model.layers.1",
            "model.language_model.layers.1.mlp",
            "language_model.model.layers.1.*",
            "model.layers.1*",
            "*.experts.*",
        ] {
            assert_eq!(listed(&["lm_head".to_owned(), entry.to_owned()], tensor), Some(entry));
        }
        for entry in ["model.layers.1.mlp.experts.1", "model.layers.12", "mlp.experts", "*.down_proj", "re:.*experts.*"]
        {
            assert_eq!(listed(&[entry.to_owned()], tensor), None, "{entry}");
        }
    }
}
