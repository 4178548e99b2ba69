//! One rule: which tensors it matches and what it gives them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BackwardMode, PrecisionError, ShapeCondition, TensorFormat};
use crate::network::{Parameter, Role};

/// One line of a rule list. A tensor gets the effect of the first rule whose every condition it meets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Roles that match; empty: every role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
    /// Layers that match.
    #[serde(default)]
    pub layers: Layers,
    /// Pattern that the whole tensor name matches, `*` standing for any characters; absent: every name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bounds on the size that matches; absent: every size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<ShapeCondition>,
    /// Format given, a variant included.
    pub format: TensorFormat,
    /// Backward mode given; absent: that of the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<BackwardMode>,
    /// Cut given; absent: that of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<RulePartition>,
}

/// What a rule says about the cut of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RulePartition {
    /// Quantized in one piece, whatever the plan cuts.
    Whole,
}

/// Decoder layers that a rule matches. A tensor outside the layers (embedding, final norm, head) matches `All` only;
/// predicted layers (MTP) are behind the last one and match `All` and `Range`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layers {
    /// Every tensor, those outside the layers included.
    #[default]
    All,
    /// The first layers, this many.
    First(usize),
    /// The last layers, this share of them in percent, rounded up to whole layers.
    LastPercent(u8),
    /// Layers from the first number up to, not including, the second.
    Range(usize, usize),
}

impl Rule {
    /// Gives every tensor a format.
    #[must_use]
    pub fn everything(format: TensorFormat) -> Self {
        Rule {
            roles: Vec::new(),
            layers: Layers::All,
            name: None,
            shape: None,
            format,
            backward: None,
            partition: None,
        }
    }

    /// Gives tensors of some roles a format, in every layer.
    #[must_use]
    pub fn roles(roles: &[Role], format: TensorFormat) -> Self {
        Rule { roles: roles.to_vec(), ..Rule::everything(format) }
    }

    /// Gives every tensor of some layers a format.
    #[must_use]
    pub fn layers(layers: Layers, format: TensorFormat) -> Self {
        Rule { layers, ..Rule::everything(format) }
    }

    /// Gives tensors whose name matches a pattern a format.
    #[must_use]
    pub fn name(pattern: &str, format: TensorFormat) -> Self {
        Rule { name: Some(pattern.to_owned()), ..Rule::everything(format) }
    }

    /// The same with a backward mode of its own.
    #[must_use]
    pub fn with_backward(self, backward: BackwardMode) -> Self {
        Rule { backward: Some(backward), ..self }
    }

    /// The same for tensors of some sizes only.
    #[must_use]
    pub fn with_shape(self, shape: ShapeCondition) -> Self {
        Rule { shape: Some(shape), ..self }
    }

    /// The same, and its tensors are quantized in one piece whatever the plan cuts.
    #[must_use]
    pub fn whole(self) -> Self {
        Rule { partition: Some(RulePartition::Whole), ..self }
    }

    /// Whether every condition of the rule holds for a parameter of a model of `layer_count` layers.
    #[must_use]
    pub fn matches(&self, parameter: &Parameter, layer_count: usize) -> bool {
        (self.roles.is_empty() || self.roles.contains(&parameter.role))
            && self.layers.contains(parameter.layer, layer_count)
            && self.name.as_ref().is_none_or(|pattern| glob(pattern.as_bytes(), parameter.name.as_bytes()))
            && self.shape.as_ref().is_none_or(|shape| shape.contains(parameter))
    }

    /// Refuses conditions that cannot match anything, or ask nothing.
    pub(super) fn check(&self) -> Result<(), PrecisionError> {
        let why = match self.layers {
            Layers::Range(first, end) if first >= end => "the layer range is empty",
            Layers::First(0) => "the first 0 layers are none",
            Layers::LastPercent(percent) if percent == 0 || percent > 100 => "a share is from 1 to 100 percent",
            _ => match self.shape.as_ref().and_then(ShapeCondition::mistake) {
                Some(mistake) => mistake,
                None => return Ok(()),
            },
        };
        Err(PrecisionError::BadRule { rule: self.to_string(), why })
    }
}

impl Layers {
    fn contains(&self, layer: Option<usize>, layer_count: usize) -> bool {
        match (self, layer) {
            (Layers::All, _) => true,
            (_, None) => false,
            (Layers::First(count), Some(layer)) => layer < (*count).min(layer_count),
            (Layers::LastPercent(percent), Some(layer)) => {
                let last = (layer_count * usize::from(*percent)).div_ceil(100);
                layer < layer_count && layer + last >= layer_count
            }
            (Layers::Range(first, end), Some(layer)) => (*first..*end).contains(&layer),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut conditions = Vec::new();
        if !self.roles.is_empty() {
            conditions.push(self.roles.iter().map(|role| role.name()).collect::<Vec<_>>().join("+"));
        }
        match self.layers {
            Layers::All => {}
            Layers::First(count) => conditions.push(format!("first {count} layers")),
            Layers::LastPercent(percent) => conditions.push(format!("last {percent} % of layers")),
            Layers::Range(first, end) => conditions.push(format!("layers {first}..{end}")),
        }
        conditions.extend(self.name.clone());
        conditions.extend(self.shape.as_ref().map(ToString::to_string));
        let conditions = if conditions.is_empty() { "everything".to_owned() } else { conditions.join(", ") };
        write!(f, "{conditions} -> {}", self.format)?;
        if let Some(backward) = self.backward {
            write!(f, " ({})", backward.name())?;
        }
        self.partition.map_or(Ok(()), |RulePartition::Whole| f.write_str(", whole"))
    }
}

/// Whether `text` matches `pattern`, in which `*` stands for any characters, none included.
pub(crate) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when the characters after the last star do not match: the star, and how much it took.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((star, taken)) = retry {
            retry = Some((star, taken + 1));
            p = star + 1;
            t = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|character| *character == b'*')
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn stars_match_any_run_of_characters() {
        let name = b"model.layers.1.mlp.experts.12.up_proj.weight";
        for pattern in ["*", "model.*", "*.up_proj.weight", "model.layers.1.*.experts.*.up_proj.*", "*1*2*"] {
            assert!(glob(pattern.as_bytes(), name), "{pattern}");
        }
        for pattern in ["", "model", "*.down_proj.weight", "model.layers.2.*", "*weightx", "*12*12*"] {
            assert!(!glob(pattern.as_bytes(), name), "{pattern}");
        }
    }
}
