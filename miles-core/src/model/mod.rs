//! What a model *is*, as data: the resolved form of a Hugging Face `config.json`.
//!
//! [`ModelConfig`] has no optional hole that a later stage must fill: both generations of `config.json` keys are
//! resolved into it once (see [`huggingface`]), and [`crate::network::Network`] is derived from it alone.

mod error;
pub mod huggingface;
mod rope;

pub use error::ModelError;
pub use rope::{Llama3Scaling, RopeConfig, RopePairing, RopeScaling};

use serde::{Deserialize, Serialize};

/// The model families that the library describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Architecture {
    /// `LlamaForCausalLM`
    Llama,
    /// `Qwen2ForCausalLM`
    Qwen2,
    /// `Qwen3ForCausalLM`
    Qwen3,
    /// `Qwen3MoeForCausalLM`
    Qwen3Moe,
    /// `DeepseekV3ForCausalLM`
    DeepseekV3,
}

impl Architecture {
    /// Every family with its `architectures` name in `config.json`.
    pub const ALL: [(&'static str, Architecture); 5] = [
        ("LlamaForCausalLM", Architecture::Llama),
        ("Qwen2ForCausalLM", Architecture::Qwen2),
        ("Qwen3ForCausalLM", Architecture::Qwen3),
        ("Qwen3MoeForCausalLM", Architecture::Qwen3Moe),
        ("DeepseekV3ForCausalLM", Architecture::DeepseekV3),
    ];

    /// The name that `config.json` uses under `architectures`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
            Architecture::Qwen3Moe => "Qwen3MoeForCausalLM",
            Architecture::DeepseekV3 => "DeepseekV3ForCausalLM",
        }
    }
}

/// One model, fully resolved. Sizes are counts of elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Model family.
    pub architecture: Architecture,
    /// Rows of the embedding table and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest sequence (prompt and completion together), in tokens.
    pub context_tokens: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Whether the head is the embedding table itself.
    pub tie_word_embeddings: bool,
    /// Attention of every layer.
    pub attention: AttentionConfig,
    /// Feed-forward block of each layer, in layer order; its length is the number of layers.
    pub mlps: Vec<MlpConfig>,
    /// Every id that ends a completion (`generation_config.json` first, `config.json` otherwise; may be empty).
    pub eos_token_ids: Vec<u32>,
    /// Id put before a text by tokenizers that do so, if any.
    pub bos_token_id: Option<u32>,
}

impl ModelConfig {
    /// Number of decoder layers.
    #[must_use]
    pub fn layer_count(&self) -> usize {
        self.mlps.len()
    }

    /// Whether any layer has routed experts.
    #[must_use]
    pub fn has_routed_experts(&self) -> bool {
        self.mlps.iter().any(|mlp| matches!(mlp, MlpConfig::Moe(_)))
    }
}

/// Attention shape, the same for every layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttentionConfig {
    /// Multi-head attention with shared key/value heads (GQA).
    Grouped {
        /// Query heads.
        heads: usize,
        /// Key/value heads; divides `heads`.
        kv_heads: usize,
        /// Width of one head.
        head_dim: usize,
        /// Whether q, k and v projections carry a bias.
        qkv_bias: bool,
        /// Whether the output projection carries a bias.
        output_bias: bool,
        /// Whether each q and k head goes through an RMS norm before the rotary embedding (Qwen3).
        qk_norm: bool,
    },
    /// Multi-head latent attention (DeepSeek-V3).
    Mla {
        /// Query heads (keys and values have as many after the up-projection).
        heads: usize,
        /// Rank of the query down-projection; `None` projects directly.
        q_lora_rank: Option<usize>,
        /// Rank of the joint key/value down-projection.
        kv_lora_rank: usize,
        /// Part of a query/key head without position.
        qk_nope_head_dim: usize,
        /// Part of a query/key head with rotary position (the key part is shared by all heads).
        qk_rope_head_dim: usize,
        /// Width of a value head.
        v_head_dim: usize,
        /// Whether the down-projections and the output projection carry a bias.
        bias: bool,
    },
}

/// Feed-forward block of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MlpConfig {
    /// Gate, up and down projections with SwiGLU.
    Dense {
        /// Width between up and down projection.
        intermediate_size: usize,
        /// Whether the three projections carry a bias (Llama's `mlp_bias`).
        bias: bool,
    },
    /// A router and routed experts, optionally with shared experts.
    Moe(MoeConfig),
}

/// Routed experts of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoeConfig {
    /// Routed experts.
    pub experts: usize,
    /// Routed experts that each token visits.
    pub experts_per_token: usize,
    /// Width between up and down projection of one expert.
    pub intermediate_size: usize,
    /// Shared experts, computed for every token (0 for none); they act as one dense block of
    /// `shared_experts * intermediate_size`.
    pub shared_experts: usize,
    /// How a token's experts and their weights come from the router logits.
    pub router: RouterConfig,
}

/// From router logits to experts and their weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RouterConfig {
    /// Softmax over all experts, then the k largest (Qwen3-MoE).
    SoftmaxTopK {
        /// Whether the k weights are divided by their sum.
        normalize: bool,
    },
    /// Sigmoid scores, a selection bias, the best groups first, then the k largest (DeepSeek-V3).
    SigmoidGrouped {
        /// Groups that the experts are split into.
        groups: usize,
        /// Groups kept per token (a group's rank is the sum of its two best biased scores).
        groups_per_token: usize,
        /// Whether the k weights are divided by their sum (+1e-20).
        normalize: bool,
        /// Factor on the final weights.
        scaling_factor: f32,
    },
}
