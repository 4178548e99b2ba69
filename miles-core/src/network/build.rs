//! From a [`ModelConfig`] to the full parameter list and layer structure.

use std::ops::Deref;

use super::{
    Attention, Expert, GroupedAttention, Inventory, Layer, Linear, LinearOutput, MlaAttention, Mlp, Moe, ParamId,
    Parameter, QueryPath, Role,
};
use crate::model::{AttentionConfig, MlpConfig, ModelConfig, MoeConfig, RouterConfig};

/// A model's parameters and the structure that uses them. It dereferences to the [`Inventory`] of its parameters.
#[derive(Clone, Debug)]
pub struct Network {
    /// What it was built from.
    pub config: ModelConfig,
    inventory: Inventory,
    /// Token embedding table.
    pub embedding: ParamId,
    /// Decoder layers in order.
    pub layers: Vec<Layer>,
    /// Norm after the last layer.
    pub final_norm: ParamId,
    /// Head; its weight is [`Network::embedding`] when the two are tied.
    pub head: Linear,
}

impl Network {
    /// Describes the network of a model.
    #[must_use]
    pub fn new(config: &ModelConfig) -> Self {
        let mut list = ParameterList::default();
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = list.add("model.embed_tokens.weight", vec![vocab, hidden], Role::Embedding);
        let layers = (0..config.layer_count()).map(|index| list.layer(config, index)).collect();
        list.scope = Scope::default();
        let final_norm = list.add("model.norm.weight", vec![hidden], Role::Norm);
        let head = if config.tie_word_embeddings {
            embedding
        } else {
            list.add("lm_head.weight", vec![vocab, hidden], Role::Head)
        };
        Network {
            config: config.clone(),
            inventory: Inventory::new(list.parameters, config.layer_count()),
            embedding,
            layers,
            final_norm,
            head: Linear { weight: head, bias: None, output: LinearOutput::F32 },
        }
    }
}

impl Deref for Network {
    type Target = Inventory;

    fn deref(&self) -> &Inventory {
        &self.inventory
    }
}

#[derive(Default)]
struct ParameterList {
    parameters: Vec<Parameter>,
    scope: Scope,
}

#[derive(Clone, Default)]
struct Scope {
    prefix: String,
    layer: Option<usize>,
    expert: Option<usize>,
}

impl ParameterList {
    fn add(&mut self, name: &str, shape: Vec<usize>, role: Role) -> ParamId {
        let id = ParamId(self.parameters.len() as u32);
        self.parameters.push(Parameter {
            name: format!("{}{name}", self.scope.prefix),
            shape,
            role,
            is_linear: role.is_linear(),
            layer: self.scope.layer,
            expert: self.scope.expert,
            pair: None,
        });
        id
    }

    fn linear(&mut self, name: &str, out: usize, input: usize, role: Role, bias: bool) -> Linear {
        let weight = self.add(&format!("{name}.weight"), vec![out, input], role);
        let bias = bias.then(|| self.add(&format!("{name}.bias"), vec![out], Role::Bias));
        Linear { weight, bias, output: LinearOutput::Activation }
    }

    fn layer(&mut self, config: &ModelConfig, index: usize) -> Layer {
        let hidden = config.hidden_size;
        self.scope = Scope { prefix: format!("model.layers.{index}."), layer: Some(index), expert: None };
        let input_norm = self.add("input_layernorm.weight", vec![hidden], Role::Norm);
        let attention = self.attention(&config.attention, hidden);
        let post_attention_norm = self.add("post_attention_layernorm.weight", vec![hidden], Role::Norm);
        let mlp = match &config.mlps[index] {
            MlpConfig::Dense { intermediate_size, bias } => {
                let roles = [Role::MlpGate, Role::MlpUp, Role::MlpDown];
                Mlp::Dense(self.gated("mlp", hidden, *intermediate_size, roles, *bias))
            }
            MlpConfig::Moe(moe) => Mlp::Moe(self.moe(moe, hidden)),
        };
        Layer { input_norm, attention, post_attention_norm, mlp }
    }

    fn attention(&mut self, config: &AttentionConfig, hidden: usize) -> Attention {
        match *config {
            AttentionConfig::Grouped { heads, kv_heads, head_dim, qkv_bias, output_bias, qk_norm } => {
                let (q_dim, kv_dim) = (heads * head_dim, kv_heads * head_dim);
                let q = self.linear("self_attn.q_proj", q_dim, hidden, Role::AttentionQ, qkv_bias);
                let k = self.linear("self_attn.k_proj", kv_dim, hidden, Role::AttentionK, qkv_bias);
                let v = self.linear("self_attn.v_proj", kv_dim, hidden, Role::AttentionV, qkv_bias);
                let o = self.linear("self_attn.o_proj", hidden, q_dim, Role::AttentionO, output_bias);
                let qk_norms = qk_norm.then(|| {
                    (
                        self.add("self_attn.q_norm.weight", vec![head_dim], Role::Norm),
                        self.add("self_attn.k_norm.weight", vec![head_dim], Role::Norm),
                    )
                });
                Attention::Grouped(GroupedAttention { q, k, v, o, qk_norms, heads, kv_heads, head_dim })
            }
            AttentionConfig::Mla {
                heads,
                q_lora_rank,
                kv_lora_rank,
                qk_nope_head_dim: nope_dim,
                qk_rope_head_dim: rope_dim,
                v_head_dim: v_dim,
                bias,
            } => {
                let q_dim = heads * (nope_dim + rope_dim);
                let query = match q_lora_rank {
                    None => QueryPath::Direct(self.linear("self_attn.q_proj", q_dim, hidden, Role::AttentionQ, false)),
                    Some(rank) => QueryPath::LowRank {
                        down: self.linear("self_attn.q_a_proj", rank, hidden, Role::MlaQDown, bias),
                        norm: self.add("self_attn.q_a_layernorm.weight", vec![rank], Role::Norm),
                        up: self.linear("self_attn.q_b_proj", q_dim, rank, Role::MlaQUp, false),
                    },
                };
                let down = kv_lora_rank + rope_dim;
                let kv_down = self.linear("self_attn.kv_a_proj_with_mqa", down, hidden, Role::MlaKvDown, bias);
                let kv_norm = self.add("self_attn.kv_a_layernorm.weight", vec![kv_lora_rank], Role::Norm);
                let up = heads * (nope_dim + v_dim);
                let kv_up = self.linear("self_attn.kv_b_proj", up, kv_lora_rank, Role::MlaKvUp, false);
                let o = self.linear("self_attn.o_proj", hidden, heads * v_dim, Role::AttentionO, bias);
                Attention::Mla(MlaAttention {
                    query,
                    kv_down,
                    kv_norm,
                    kv_up,
                    o,
                    heads,
                    kv_lora_rank,
                    nope_dim,
                    rope_dim,
                    v_dim,
                })
            }
        }
    }

    fn gated(&mut self, name: &str, hidden: usize, inner: usize, roles: [Role; 3], bias: bool) -> Expert {
        let [gate_role, up_role, down_role] = roles;
        let gate = self.linear(&format!("{name}.gate_proj"), inner, hidden, gate_role, bias);
        let up = self.linear(&format!("{name}.up_proj"), inner, hidden, up_role, bias);
        let down = self.linear(&format!("{name}.down_proj"), hidden, inner, down_role, bias);
        self.parameters[gate.weight.index()].pair = Some(up.weight);
        self.parameters[up.weight.index()].pair = Some(gate.weight);
        Expert { gate, up, down }
    }

    fn moe(&mut self, config: &MoeConfig, hidden: usize) -> Moe {
        let mut router = self.linear("mlp.gate", config.experts, hidden, Role::Router, false);
        router.output = LinearOutput::F32;
        let selection_bias = matches!(config.router, RouterConfig::SigmoidGrouped { .. })
            .then(|| self.add("mlp.gate.e_score_correction_bias", vec![config.experts], Role::RouterBias));
        let (mut gates, mut ups, mut downs) = (Vec::new(), Vec::new(), Vec::new());
        for expert in 0..config.experts {
            self.scope.expert = Some(expert);
            let roles = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
            let name = format!("mlp.experts.{expert}");
            let block = self.gated(&name, hidden, config.intermediate_size, roles, false);
            gates.push(block.gate);
            ups.push(block.up);
            downs.push(block.down);
        }
        self.scope.expert = None;
        let shared = (config.shared_experts > 0).then(|| {
            let roles = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
            let inner = config.shared_experts * config.intermediate_size;
            self.gated("mlp.shared_experts", hidden, inner, roles, false)
        });
        Moe {
            router,
            selection_bias,
            rule: config.router.clone(),
            experts_per_token: config.experts_per_token,
            gates,
            ups,
            downs,
            shared,
        }
    }
}
