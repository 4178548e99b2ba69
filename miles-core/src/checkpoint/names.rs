//! Names of stored tensors of a model with a forward pass. What all families share is in [`crate::names`].

use crate::names::stored::is_recomputed;
pub(super) use crate::names::stored::{canonical, scaled_tensor};

/// Whether a tensor is known and not part of the network: a recomputed buffer, or one of `predicted_layers` behind the
/// model's `layers`.
pub(super) fn is_ignored(canonical: &str, layers: usize, predicted_layers: usize) -> bool {
    is_recomputed(canonical) || is_predicted(canonical, layers, predicted_layers)
}

/// Whether a tensor is of one of `predicted_layers` behind the model's `layers`.
pub(super) fn is_predicted(canonical: &str, layers: usize, predicted_layers: usize) -> bool {
    !is_recomputed(canonical)
        && layer_of(canonical).is_some_and(|layer| (layers..layers + predicted_layers).contains(&layer))
}

/// Where the packed experts of a layer are stored: gate and up together, and down.
pub(super) fn packed_experts(layer: usize) -> (String, String) {
    let base = format!("model.layers.{layer}.mlp.experts");
    (format!("{base}.gate_up_proj"), format!("{base}.down_proj"))
}

fn layer_of(canonical: &str) -> Option<usize> {
    canonical.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_predicted_layers_and_recomputed_buffers_are_ignored() {
        assert!(is_ignored("model.layers.61.eh_proj.weight", 61, 1));
        assert!(!is_ignored("model.layers.62.eh_proj.weight", 61, 1));
        assert!(!is_ignored("model.layers.60.eh_proj.weight", 61, 1));
        assert!(is_ignored("model.layers.3.self_attn.rotary_emb.inv_freq", 61, 0));
    }
}
