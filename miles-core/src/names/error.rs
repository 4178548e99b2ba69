//! What can be wrong with the stored tensors of a model.

/// Why stored tensors are not those of a model of the family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamesError {
    /// A name that the family does not have.
    #[error("`{tensor}` is not a tensor of a {family} model; the nearest known name is `{nearest}`")]
    UnknownTensor {
        /// Name as stored.
        tensor: String,
        /// Family.
        family: &'static str,
        /// The nearest pattern of the family.
        nearest: String,
    },
    /// A known tensor that cannot be read.
    #[error("`{tensor}`: {why}")]
    Unreadable {
        /// Name as stored.
        tensor: String,
        /// Why.
        why: &'static str,
    },
    /// A layer that the model does not have.
    #[error("`{tensor}` is of layer {layer}; the model has {layers} layers and {predicted} predicted ones")]
    NoSuchLayer {
        /// Name as stored.
        tensor: String,
        /// Layer.
        layer: usize,
        /// Number of layers.
        layers: usize,
        /// Number of predicted layers.
        predicted: usize,
    },
    /// A routed expert that the model does not have.
    #[error("`{tensor}` is of expert {expert}; a layer has {experts}")]
    NoSuchExpert {
        /// Name as stored.
        tensor: String,
        /// Expert.
        expert: usize,
        /// Number of routed experts of a layer.
        experts: usize,
    },
    /// Two stored tensors that are one parameter.
    #[error("`{parameter}` is stored twice: in `{first}` and in `{second}`")]
    Duplicate {
        /// Canonical name.
        parameter: String,
        /// One stored tensor.
        first: String,
        /// The other.
        second: String,
    },
    /// Tensors that the model needs and the checkpoint lacks.
    #[error("{place} lacks {} tensors: {}", tensors.len(), shortened(tensors))]
    Missing {
        /// Part of the model.
        place: String,
        /// Canonical names.
        tensors: Vec<String>,
    },
    /// Tensors of two kinds of attention, or of two kinds of feed-forward block, in one layer.
    #[error("{place} has tensors that do not go with its others: {}", shortened(tensors))]
    Mixed {
        /// Part of the model.
        place: String,
        /// Canonical names.
        tensors: Vec<String>,
    },
    /// A shape that does not fit the configuration or the other half of a pair.
    #[error("`{tensor}` has shape {found:?}, expected {expected}")]
    WrongShape {
        /// Name as stored.
        tensor: String,
        /// Shapes that would fit.
        expected: String,
        /// The shape.
        found: Vec<usize>,
    },
    /// A scale whose tensor is not there.
    #[error("`{scale}` is a scale of `{tensor}`, which is not stored")]
    OrphanScale {
        /// Name as stored.
        scale: String,
        /// Canonical name of the tensor.
        tensor: String,
    },
}

/// The first of many names.
fn shortened(tensors: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = tensors.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if tensors.len() > SHOWN { format!("{shown}, ..") } else { shown }
}
