//! [`Family`]: a model family whose names are known.

use super::tables::{self, Predicted, Row, Table};
use crate::model::Architecture;

/// A model family, by the names of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama.
    Llama,
    /// Qwen2.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Qwen3-MoE.
    Qwen3Moe,
    /// Qwen3-Next.
    Qwen3Next,
    /// Qwen3.5-MoE, text part.
    Qwen3_5Moe,
    /// DeepSeek-V3.
    DeepseekV3,
    /// GLM-4.5 MoE.
    Glm4Moe,
    /// gpt-oss.
    GptOss,
}

impl Family {
    /// Every name under `architectures` in a `config.json`, with its family.
    pub const ARCHITECTURES: [(&'static str, Family); 10] = [
        ("LlamaForCausalLM", Family::Llama),
        ("Qwen2ForCausalLM", Family::Qwen2),
        ("Qwen3ForCausalLM", Family::Qwen3),
        ("Qwen3MoeForCausalLM", Family::Qwen3Moe),
        ("Qwen3NextForCausalLM", Family::Qwen3Next),
        ("Qwen3_5MoeForCausalLM", Family::Qwen3_5Moe),
        ("Qwen3_5MoeForConditionalGeneration", Family::Qwen3_5Moe),
        ("DeepseekV3ForCausalLM", Family::DeepseekV3),
        ("Glm4MoeForCausalLM", Family::Glm4Moe),
        ("GptOssForCausalLM", Family::GptOss),
    ];

    /// Name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "Llama",
            Family::Qwen2 => "Qwen2",
            Family::Qwen3 => "Qwen3",
            Family::Qwen3Moe => "Qwen3-MoE",
            Family::Qwen3Next => "Qwen3-Next",
            Family::Qwen3_5Moe => "Qwen3.5-MoE",
            Family::DeepseekV3 => "DeepSeek-V3",
            Family::Glm4Moe => "GLM-4.5 MoE",
            Family::GptOss => "gpt-oss",
        }
    }

    /// Every known name of the family, `{L}` standing for a layer and `{E}` for a routed expert.
    #[must_use]
    pub fn patterns(self) -> Vec<String> {
        let table = self.table();
        let outside = |rows: &[Row]| rows.iter().map(|row| row.name.to_owned()).collect::<Vec<_>>();
        let under = |prefix: &str, rows: &[Row]| rows.iter().map(|row| format!("{prefix}{}", row.name)).collect();
        let layer = |prefix: &str| {
            let mut names: Vec<String> = table.layer_rows().map(|(_, row)| format!("{prefix}{}", row.name)).collect();
            // Alternatives share groups.
            names.sort_unstable();
            names.dedup();
            names
        };
        let predicted = match table.predicted {
            Predicted::None => Vec::new(),
            Predicted::Behind(rows) => under("model.layers.{L}.", rows),
            Predicted::Apart(rows) => [outside(rows), layer("mtp.layers.{L}.")].concat(),
        };
        [outside(table.first), layer("model.layers.{L}."), outside(table.last), predicted].concat()
    }

    /// Whether its layers may have routed experts.
    #[must_use]
    pub fn has_routed_experts(self) -> bool {
        self.table().has_experts()
    }

    /// Whether a [`Network`](crate::network::Network) describes models of the family, so that they can be run and trained.
    #[must_use]
    pub fn has_forward_pass(self) -> bool {
        Architecture::ALL.iter().any(|(_, architecture)| Family::from(*architecture) == self)
    }

    pub(super) fn table(self) -> &'static Table {
        match self {
            Family::Llama => &tables::LLAMA,
            Family::Qwen2 => &tables::QWEN2,
            Family::Qwen3 => &tables::QWEN3,
            Family::Qwen3Moe => &tables::QWEN3_MOE,
            Family::Qwen3Next => &tables::QWEN3_NEXT,
            Family::Qwen3_5Moe => &tables::QWEN3_5_MOE,
            Family::DeepseekV3 => &tables::DEEPSEEK_V3,
            Family::Glm4Moe => &tables::GLM4_MOE,
            Family::GptOss => &tables::GPT_OSS,
        }
    }
}

impl From<Architecture> for Family {
    fn from(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Llama => Family::Llama,
            Architecture::Qwen2 => Family::Qwen2,
            Architecture::Qwen3 => Family::Qwen3,
            Architecture::Qwen3Moe => Family::Qwen3Moe,
            Architecture::DeepseekV3 => Family::DeepseekV3,
        }
    }
}
