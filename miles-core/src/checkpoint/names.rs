//! Names of stored tensors. The tables are data: what is not in them is an error at loading.

/// Prefixes under which the same tensors are stored: by multimodal wrappers, and by a base model without its head.
const PREFIXES: [(&str, &str); 6] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("embed_tokens.", "model.embed_tokens."),
    ("layers.", "model.layers."),
    ("norm.", "model.norm."),
];

/// Buffers that older exporters stored and every reader recomputes.
const RECOMPUTED_SUFFIXES: [&str; 1] = [".rotary_emb.inv_freq"];

/// Suffixes of scales and of what else stands beside codes, each with that of the tensor it belongs to.
pub(super) const SCALE_SUFFIXES: [(&str, &str); 5] = [
    (".weight_scale_inv", ".weight"),
    (".weight_scale", ".weight"),
    (".weight_scale_2", ".weight"),
    (".input_scale", ".weight"),
    (".weight_shape", ".weight"),
];

/// The canonical name: the one that the network uses, or that it would use.
pub(super) fn canonical(stored: &str) -> String {
    let found = PREFIXES.iter().find_map(|(prefix, own)| Some((stored.strip_prefix(prefix)?, *own)));
    found.map_or_else(|| stored.to_owned(), |(rest, own)| format!("{own}{rest}"))
}

/// Whether a tensor is known and not part of the network: a recomputed buffer, or one of `predicted_layers` behind the
/// model's `layers`.
pub(super) fn is_ignored(canonical: &str, layers: usize, predicted_layers: usize) -> bool {
    RECOMPUTED_SUFFIXES.iter().any(|suffix| canonical.ends_with(suffix))
        || layer_of(canonical).is_some_and(|layer| (layers..layers + predicted_layers).contains(&layer))
}

/// The tensor that a scale belongs to.
pub(super) fn scaled_tensor(canonical: &str) -> Option<String> {
    SCALE_SUFFIXES.iter().find_map(|(suffix, own)| Some(format!("{}{own}", canonical.strip_suffix(suffix)?)))
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
    fn wrapped_and_bare_names_become_canonical() {
        for stored in
            ["model.layers.0.x", "model.language_model.layers.0.x", "language_model.model.layers.0.x", "layers.0.x"]
        {
            assert_eq!(canonical(stored), "model.layers.0.x");
        }
        assert_eq!(canonical("language_model.lm_head.weight"), "lm_head.weight");
        assert_eq!(canonical("norm.weight"), "model.norm.weight");
        assert_eq!(canonical("vision.patch.weight"), "vision.patch.weight");
    }

    #[test]
    fn only_predicted_layers_and_recomputed_buffers_are_ignored() {
        assert!(is_ignored("model.layers.61.eh_proj.weight", 61, 1));
        assert!(!is_ignored("model.layers.62.eh_proj.weight", 61, 1));
        assert!(!is_ignored("model.layers.60.eh_proj.weight", 61, 1));
        assert!(is_ignored("model.layers.3.self_attn.rotary_emb.inv_freq", 61, 0));
    }

    #[test]
    fn scales_name_their_tensor() {
        assert_eq!(scaled_tensor("a.weight_scale_2").as_deref(), Some("a.weight"));
        assert_eq!(scaled_tensor("a.weight_scale_inv").as_deref(), Some("a.weight"));
        assert_eq!(scaled_tensor("a.weight"), None);
    }
}
