//! The recipes, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BackwardMode, Layers, PrecisionError, Rule, RuleList, TensorFormat};
use crate::format::FormatId;
use crate::network::{Inventory, Role};
use crate::registry::nearest;
use crate::tensor::Dtype;

/// A named precision decision for a whole model.
///
/// | recipe | weights and activations of the forward pass | gradients |
/// |---|---|---|
/// | `bf16` | BF16 | BF16 |
/// | `mxfp8` | MXFP8 | MXFP8 |
/// | `mxfp8-high-precision` | MXFP8 | BF16, original operands |
/// | `mxfp8-dequantized` | MXFP8 | BF16, values of the forward pass |
/// | `nvfp4-high-precision` | NVFP4, routed experts only | BF16, original operands |
/// | `nvfp4-dequantized` | NVFP4, routed experts only | BF16, values of the forward pass |
/// | `fp8-block` | block FP8 | block FP8 |
/// | `fp8-block-high-precision` | block FP8 | BF16, original operands |
/// | `fp8-block-dequantized` | block FP8 | BF16, values of the forward pass |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Recipe {
    /// `bf16`
    Bf16,
    /// `mxfp8`
    Mxfp8,
    /// `mxfp8-high-precision`
    Mxfp8HighPrecision,
    /// `mxfp8-dequantized`
    Mxfp8Dequantized,
    /// `nvfp4-high-precision`
    Nvfp4HighPrecision,
    /// `nvfp4-dequantized`
    Nvfp4Dequantized,
    /// `fp8-block`
    Fp8Block,
    /// `fp8-block-high-precision`
    Fp8BlockHighPrecision,
    /// `fp8-block-dequantized`
    Fp8BlockDequantized,
}

/// Share of the layers, counted from the last one, that every recipe keeps in BF16.
const HIGH_PRECISION_TAIL_PERCENT: u8 = 15;

const ROUTED_EXPERTS: [Role; 3] = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
const DENSE_MLP: [Role; 3] = [Role::MlpGate, Role::MlpUp, Role::MlpDown];
const ATTENTION: [Role; 8] = [
    Role::AttentionQ,
    Role::AttentionK,
    Role::AttentionV,
    Role::AttentionO,
    Role::LinearAttentionIn,
    Role::LinearAttentionOut,
    Role::MlaQDown,
    Role::MlaKvDown,
];
/// Set apart from the weights of linear layers, or so small that a format saves nothing.
const NEVER_QUANTIZED: [Role; 9] = [
    Role::Embedding,
    Role::Head,
    Role::Norm,
    Role::Bias,
    Role::AttentionSink,
    Role::LinearAttentionConv,
    Role::LinearAttentionGates,
    Role::Router,
    Role::SharedExpertGate,
];
const BF16: TensorFormat = TensorFormat::Dense(Dtype::Bf16);

impl Recipe {
    /// Every recipe.
    pub const ALL: [Recipe; 9] = [
        Recipe::Bf16,
        Recipe::Mxfp8,
        Recipe::Mxfp8HighPrecision,
        Recipe::Mxfp8Dequantized,
        Recipe::Nvfp4HighPrecision,
        Recipe::Nvfp4Dequantized,
        Recipe::Fp8Block,
        Recipe::Fp8BlockHighPrecision,
        Recipe::Fp8BlockDequantized,
    ];

    /// The name used in configs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Recipe::Bf16 => "bf16",
            Recipe::Mxfp8 => "mxfp8",
            Recipe::Mxfp8HighPrecision => "mxfp8-high-precision",
            Recipe::Mxfp8Dequantized => "mxfp8-dequantized",
            Recipe::Nvfp4HighPrecision => "nvfp4-high-precision",
            Recipe::Nvfp4Dequantized => "nvfp4-dequantized",
            Recipe::Fp8Block => "fp8-block",
            Recipe::Fp8BlockHighPrecision => "fp8-block-high-precision",
            Recipe::Fp8BlockDequantized => "fp8-block-dequantized",
        }
    }

    /// The low-precision format, if it has one.
    #[must_use]
    pub fn format(self) -> Option<FormatId> {
        match self {
            Recipe::Bf16 => None,
            Recipe::Mxfp8 | Recipe::Mxfp8HighPrecision | Recipe::Mxfp8Dequantized => Some(FormatId::mxfp8()),
            Recipe::Nvfp4HighPrecision | Recipe::Nvfp4Dequantized => Some(FormatId::nvfp4()),
            Recipe::Fp8Block | Recipe::Fp8BlockHighPrecision | Recipe::Fp8BlockDequantized => {
                Some(FormatId::fp8_block())
            }
        }
    }

    /// The backward mode of its quantized tensors.
    #[must_use]
    pub fn backward(self) -> BackwardMode {
        match self {
            Recipe::Mxfp8 | Recipe::Fp8Block => BackwardMode::Quantized,
            Recipe::Mxfp8Dequantized | Recipe::Nvfp4Dequantized | Recipe::Fp8BlockDequantized => {
                BackwardMode::Dequantized
            }
            Recipe::Bf16 | Recipe::Mxfp8HighPrecision | Recipe::Nvfp4HighPrecision | Recipe::Fp8BlockHighPrecision => {
                BackwardMode::HighPrecision
            }
        }
    }

    /// The rules, first match wins; the last one matches everything. Together with the name they are
    /// [`list`](Self::list).
    #[must_use]
    pub fn rules(self, inventory: &Inventory) -> Vec<Rule> {
        let mut rules = vec![
            Rule::roles(&[Role::RouterBias, Role::LinearAttentionDecay], TensorFormat::Dense(Dtype::F32)),
            Rule::roles(&NEVER_QUANTIZED, BF16),
        ];
        if let Some(format) = self.format() {
            let quantized = TensorFormat::Quantized(format);
            let tail = Layers::LastPercent(HIGH_PRECISION_TAIL_PERCENT);
            rules.push(Rule::roles(&[Role::Mtp], BF16));
            rules.push(Rule::roles(&[Role::SharedGate, Role::SharedUp, Role::SharedDown], BF16));
            rules.push(Rule::roles(&[Role::MlaQUp, Role::MlaKvUp], BF16));
            rules.push(Rule::layers(tail, BF16));
            rules.push(Rule::roles(&self.quantized_roles(inventory), quantized));
        }
        rules.push(Rule::everything(BF16));
        rules
    }

    /// The recipe as a list: to print, to edit, and to resolve under another name.
    #[must_use]
    pub fn list(self, inventory: &Inventory) -> RuleList {
        RuleList { name: self.name().to_owned(), backward: self.backward(), rules: self.rules(inventory) }
    }

    /// What a person should know about this recipe on this model and may not expect.
    #[must_use]
    pub fn notes(self, inventory: &Inventory) -> Vec<String> {
        let Some(format) = self.format() else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        if self.takes_experts_only() && !inventory.has_routed_experts() {
            notes.push(format!("{self}: the model has no routed experts, so its MLP matrices are {format} instead"));
        }
        let layers = inventory.layer_count();
        let rules = self.rules(inventory);
        let is_quantized = |parameter| {
            let rule = rules.iter().find(|rule| rule.matches(parameter, layers));
            rule.is_some_and(|rule| matches!(rule.format, TensorFormat::Quantized(_)))
        };
        if !inventory.parameters.iter().any(is_quantized) {
            notes.push(format!("{self}: every layer of this model stays in BF16, so nothing is {format}"));
        }
        notes
    }

    fn quantized_roles(self, inventory: &Inventory) -> Vec<Role> {
        match (self.takes_experts_only(), inventory.has_routed_experts()) {
            (true, true) => ROUTED_EXPERTS.to_vec(),
            (true, false) => DENSE_MLP.to_vec(),
            (false, _) => [ATTENTION.as_slice(), &DENSE_MLP, &ROUTED_EXPERTS].concat(),
        }
    }

    fn takes_experts_only(self) -> bool {
        matches!(self, Recipe::Nvfp4HighPrecision | Recipe::Nvfp4Dequantized)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Recipe {
    type Err = PrecisionError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Recipe::ALL.into_iter().find(|recipe| recipe.name() == name).ok_or_else(|| {
            let known: Vec<&'static str> = Recipe::ALL.iter().map(|recipe| recipe.name()).collect();
            PrecisionError::UnknownRecipe {
                name: name.to_owned(),
                nearest: nearest(name, known.iter().copied()),
                known,
            }
        })
    }
}

impl From<Recipe> for String {
    fn from(recipe: Recipe) -> Self {
        recipe.name().to_owned()
    }
}

impl TryFrom<String> for Recipe {
    type Error = PrecisionError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}
