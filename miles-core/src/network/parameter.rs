//! Every tensor of a model: its name, shape and role.

use serde::{Deserialize, Serialize};

/// Index of a parameter in [`super::Inventory::parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(pub u32);

impl ParamId {
    /// The index as `usize`.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One tensor of the model under its canonical name (Hugging Face, one tensor per expert).
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Canonical name, for example `model.layers.0.mlp.experts.3.gate_proj.weight`.
    pub name: String,
    /// Shape; a matrix is `[out, in]`.
    pub shape: Vec<usize>,
    /// What the tensor is for.
    pub role: Role,
    /// Whether it is the weight of a linear layer. Nothing else can have a quantized format.
    pub is_linear: bool,
    /// Decoder layer, where it belongs to one; a predicted layer has a number behind the last one.
    pub layer: Option<usize>,
    /// Routed expert, where it belongs to one.
    pub expert: Option<usize>,
    /// The other half of a gate/up pair: both are quantized with one outer scale.
    pub pair: Option<ParamId>,
}

impl Parameter {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rows and columns of a matrix; a vector `[n]` is one row of `n` columns.
    #[must_use]
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.shape.as_slice() {
            [rows, cols] => (*rows, *cols),
            other => (1, other.iter().product()),
        }
    }
}

/// What a tensor is for. Precision rules match on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Token embedding table `[vocab, hidden]`.
    Embedding,
    /// Output head `[vocab, hidden]`.
    Head,
    /// Weight of an RMS norm.
    Norm,
    /// Query projection.
    AttentionQ,
    /// Key projection.
    AttentionK,
    /// Value projection.
    AttentionV,
    /// Attention output projection.
    AttentionO,
    /// Bias of a linear layer.
    Bias,
    /// Logit of each head's attention sink `[heads]` (gpt-oss).
    AttentionSink,
    /// Linear attention: projections to queries, keys, values and the output's gate (`in_proj_qkvz`, or `in_proj_qkv`
    /// and `in_proj_z`).
    LinearAttentionIn,
    /// Linear attention: projections to the gates of its state (`in_proj_ba`, or `in_proj_b` and `in_proj_a`).
    LinearAttentionGates,
    /// Linear attention: convolution over time `[channels, 1, taps]`.
    LinearAttentionConv,
    /// Linear attention: decay of its state per head (`A_log`, `dt_bias`).
    LinearAttentionDecay,
    /// Linear attention: output projection.
    LinearAttentionOut,
    /// MLA query down-projection (`q_a_proj`).
    MlaQDown,
    /// MLA query up-projection (`q_b_proj`).
    MlaQUp,
    /// MLA key/value down-projection (`kv_a_proj_with_mqa`).
    MlaKvDown,
    /// MLA key/value up-projection (`kv_b_proj`).
    MlaKvUp,
    /// Router weight `[experts, hidden]`.
    Router,
    /// Router selection bias `[experts]` (`e_score_correction_bias`); not trained.
    RouterBias,
    /// Routed expert, gate projection.
    ExpertGate,
    /// Routed expert, up projection.
    ExpertUp,
    /// Routed expert, down projection.
    ExpertDown,
    /// Shared expert, gate projection.
    SharedGate,
    /// Shared expert, up projection.
    SharedUp,
    /// Shared expert, down projection.
    SharedDown,
    /// Gate of the shared expert's output `[1, hidden]` (Qwen3-Next).
    SharedExpertGate,
    /// Dense MLP, gate projection.
    MlpGate,
    /// Dense MLP, up projection.
    MlpUp,
    /// Dense MLP, down projection.
    MlpDown,
    /// Any tensor of a predicted layer (multi-token prediction), whatever it does there.
    Mtp,
}

impl Role {
    /// The name used in configs and tables (kebab-case).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Embedding => "embedding",
            Role::Head => "head",
            Role::Norm => "norm",
            Role::AttentionQ => "attention-q",
            Role::AttentionK => "attention-k",
            Role::AttentionV => "attention-v",
            Role::AttentionO => "attention-o",
            Role::Bias => "bias",
            Role::AttentionSink => "attention-sink",
            Role::LinearAttentionIn => "linear-attention-in",
            Role::LinearAttentionGates => "linear-attention-gates",
            Role::LinearAttentionConv => "linear-attention-conv",
            Role::LinearAttentionDecay => "linear-attention-decay",
            Role::LinearAttentionOut => "linear-attention-out",
            Role::MlaQDown => "mla-q-down",
            Role::MlaQUp => "mla-q-up",
            Role::MlaKvDown => "mla-kv-down",
            Role::MlaKvUp => "mla-kv-up",
            Role::Router => "router",
            Role::RouterBias => "router-bias",
            Role::ExpertGate => "expert-gate",
            Role::ExpertUp => "expert-up",
            Role::ExpertDown => "expert-down",
            Role::SharedGate => "shared-gate",
            Role::SharedUp => "shared-up",
            Role::SharedDown => "shared-down",
            Role::SharedExpertGate => "shared-expert-gate",
            Role::MlpGate => "mlp-gate",
            Role::MlpUp => "mlp-up",
            Role::MlpDown => "mlp-down",
            Role::Mtp => "mtp",
        }
    }

    /// Whether a tensor of this role is the weight of a linear layer. A tensor of role `mtp` may be either, so the
    /// parameter says it ([`Parameter::is_linear`]).
    #[must_use]
    pub fn is_linear(self) -> bool {
        !matches!(
            self,
            Role::Embedding
                | Role::Norm
                | Role::Bias
                | Role::AttentionSink
                | Role::LinearAttentionConv
                | Role::LinearAttentionDecay
                | Role::RouterBias
                | Role::Mtp
        )
    }

    /// Whether the optimizer changes it. The router selection bias is set by load balancing, not by gradients.
    #[must_use]
    pub fn is_trained(self) -> bool {
        self != Role::RouterBias
    }
}
