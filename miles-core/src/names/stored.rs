//! What all families have in common in how they store: prefixes, recomputed buffers, scales.

use safetensors::Dtype;

/// Name, number type and shape of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Name as stored.
    pub name: String,
    /// Number type as stored.
    pub dtype: Dtype,
    /// Shape as stored.
    pub shape: Vec<usize>,
}

/// Prefixes under which the same tensors are stored: by multimodal wrappers first, then by a base model without its head.
const PREFIXES: [(&str, &str); 6] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("embed_tokens.", "model.embed_tokens."),
    ("layers.", "model.layers."),
    ("norm.", "model.norm."),
];

/// How many of them are those of wrappers.
const WRAPPERS: usize = 3;

/// Buffers that older exporters stored and every reader recomputes.
const RECOMPUTED_SUFFIXES: [&str; 1] = [".rotary_emb.inv_freq"];

/// Suffixes of scales and of what else stands beside codes, each with that of the tensor it belongs to.
pub(crate) const SCALE_SUFFIXES: [(&str, &str); 5] = [
    (".weight_scale_inv", ".weight"),
    (".weight_scale", ".weight"),
    (".weight_scale_2", ".weight"),
    (".input_scale", ".weight"),
    (".weight_shape", ".weight"),
];

/// The canonical name: the one that the network uses, or that it would use.
pub(crate) fn canonical(stored: &str) -> String {
    let found = PREFIXES.iter().find_map(|(prefix, own)| Some((stored.strip_prefix(prefix)?, *own)));
    found.map_or_else(|| stored.to_owned(), |(rest, own)| format!("{own}{rest}"))
}

/// The spelling of a multimodal wrapper's tensors, found in the names that it stores: what turns canonical names back into
/// those that its readers expect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spelling(Vec<(&'static str, &'static str)>);

impl Spelling {
    pub(crate) fn of<'n>(stored: impl Iterator<Item = &'n str> + Clone) -> Self {
        let is_used = |(prefix, _): &&(&str, &str)| stored.clone().any(|name| name.starts_with(prefix));
        Spelling(PREFIXES[..WRAPPERS].iter().filter(is_used).copied().collect())
    }

    pub(crate) fn spell(&self, canonical: &str) -> String {
        let found = self.0.iter().find_map(|(prefix, own)| Some((canonical.strip_prefix(own)?, *prefix)));
        found.map_or_else(|| canonical.to_owned(), |(rest, prefix)| format!("{prefix}{rest}"))
    }
}

/// Whether every reader computes the tensor itself.
pub(crate) fn is_recomputed(canonical: &str) -> bool {
    RECOMPUTED_SUFFIXES.iter().any(|suffix| canonical.ends_with(suffix))
}

/// The tensor that a scale belongs to.
pub(crate) fn scaled_tensor(canonical: &str) -> Option<String> {
    SCALE_SUFFIXES.iter().find_map(|(suffix, own)| Some(format!("{}{own}", canonical.strip_suffix(suffix)?)))
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
    fn a_wrappers_names_are_spelled_as_it_stores_them() {
        let of = |names: &[&'static str]| Spelling::of(names.iter().copied());
        let (layer, head) = ("model.layers.0.x", "lm_head.weight");
        let own = of(&["model.language_model.layers.0.y", "lm_head.weight", "visual.z"]);
        assert_eq!((own.spell(layer), own.spell(head)), ("model.language_model.layers.0.x".into(), head.into()));
        let older = of(&["language_model.model.layers.0.y", "language_model.lm_head.weight"]);
        assert_eq!(older.spell(layer), "language_model.model.layers.0.x");
        assert_eq!(older.spell(head), "language_model.lm_head.weight");
        for name in [layer, head, "mtp.fc.weight"] {
            assert_eq!(of(&["model.layers.0.y", "layers.1.y"]).spell(name), name);
        }
        assert_eq!(own.spell("mtp.fc.weight"), "mtp.fc.weight");
    }

    #[test]
    fn scales_name_their_tensor() {
        assert_eq!(scaled_tensor("a.weight_scale_2").as_deref(), Some("a.weight"));
        assert_eq!(scaled_tensor("a.weight_scale_inv").as_deref(), Some("a.weight"));
        assert_eq!(scaled_tensor("a.weight"), None);
    }
}
