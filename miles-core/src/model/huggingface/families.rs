//! The keys of each model family.

use super::{Keys, rope};
use crate::checkpoint::limits::{MAX_LAYERS, MAX_TENSORS};
use crate::model::{
    Architecture, AttentionConfig, MlpConfig, ModelConfig, ModelError, MoeConfig, RopePairing, RouterConfig,
};

const EXPERT_COUNT: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// Everything but the ids that end a completion.
pub(super) fn model(architecture: Architecture, keys: Keys<'_>) -> Result<ModelConfig, ModelError> {
    refuse_other_layers(keys)?;
    let hidden_size = keys.required_size("hidden_size")?;
    let layers = keys.required_size("num_hidden_layers")?;
    if layers > MAX_LAYERS {
        return Err(keys.wrong("num_hidden_layers", &format!("at most {MAX_LAYERS}")));
    }
    let attention = match architecture {
        Architecture::DeepseekV3 => latent_attention(keys)?,
        _ => grouped_attention(architecture, keys, hidden_size)?,
    };
    let (rotary_dim, pairing) = match attention {
        AttentionConfig::Grouped { head_dim, .. } => (head_dim, RopePairing::Halves),
        AttentionConfig::Mla { qk_rope_head_dim, .. } => {
            let interleaved = keys.flag("rope_interleave")?.unwrap_or(true);
            (qk_rope_head_dim, if interleaved { RopePairing::Interleaved } else { RopePairing::Halves })
        }
    };
    let bos = keys.ids("bos_token_id")?.and_then(|ids| ids.first().copied());
    let model = ModelConfig {
        architecture,
        vocab_size: keys.required_size("vocab_size")?,
        hidden_size,
        context_tokens: keys.required_size("max_position_embeddings")?,
        rms_norm_eps: keys.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: rope::rope(keys, rotary_dim, pairing)?,
        tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
        attention,
        mlps: mlps(architecture, keys, layers)?,
        eos_token_ids: Vec::new(),
        bos_token_id: bos,
    };
    refuse_uncountable(keys, &model)?;
    Ok(model)
}

/// Refuses widths whose products do not fit in `usize`: nothing behind this point has to fear an overflow.
fn refuse_uncountable(keys: Keys<'_>, model: &ModelConfig) -> Result<(), ModelError> {
    let (key, width) = widest(model);
    // A layer has less than 16 kinds of weights, none with more than width x width elements, of 4 bytes at most.
    let bytes = width.checked_mul(width).and_then(|elements| elements.checked_mul(64 * (1 + model.layer_count())));
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(keys.wrong(key, "small enough that the bytes of all weights can be counted in 64 bits"));
    }
    Ok(())
}

/// The largest extent of a weight, the experts of a layer counted as one weight, and the key that it comes from.
fn widest(model: &ModelConfig) -> (&'static str, usize) {
    let mut widths = vec![("vocab_size", model.vocab_size), ("hidden_size", model.hidden_size)];
    match model.attention {
        AttentionConfig::Grouped { heads, head_dim, .. } => widths.push(("num_attention_heads", heads * head_dim)),
        AttentionConfig::Mla {
            heads,
            q_lora_rank,
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
            ..
        } => {
            let head_dim = qk_nope_head_dim + qk_rope_head_dim + v_head_dim;
            widths.push(("num_attention_heads", heads * head_dim));
            widths.push(("q_lora_rank", q_lora_rank.unwrap_or(0)));
            widths.push(("kv_lora_rank", kv_lora_rank + qk_rope_head_dim));
        }
    }
    widths.extend(model.mlps.iter().map(|mlp| match mlp {
        MlpConfig::Dense { intermediate_size, .. } => ("intermediate_size", *intermediate_size),
        MlpConfig::Moe(moe) => ("moe_intermediate_size", moe.intermediate_size * moe.experts.max(moe.shared_experts)),
    }));
    widths.into_iter().max_by_key(|(_, width)| *width).unwrap_or_default()
}

/// Features that change a layer and that the network does not have.
fn refuse_other_layers(keys: Keys<'_>) -> Result<(), ModelError> {
    if !matches!(keys.text("hidden_act")?.unwrap_or("silu"), "silu" | "swish") {
        return Err(keys.unsupported("hidden_act", "silu"));
    }
    if keys.flag("use_sliding_window")? == Some(true) {
        return Err(keys.unsupported("use_sliding_window", "false"));
    }
    if keys.texts("layer_types")?.is_some_and(|types| types.iter().any(|kind| kind != "full_attention")) {
        return Err(keys.unsupported("layer_types", "full_attention"));
    }
    Ok(())
}

fn grouped_attention(architecture: Architecture, keys: Keys<'_>, hidden: usize) -> Result<AttentionConfig, ModelError> {
    let heads = keys.required_size("num_attention_heads")?;
    let kv_heads = keys.size("num_key_value_heads")?.unwrap_or(heads);
    if heads % kv_heads != 0 {
        let why = format!("{kv_heads} does not divide `num_attention_heads`, {heads}");
        return Err(keys.contradiction("num_key_value_heads", why));
    }
    let head_dim = match keys.size("head_dim")? {
        Some(width) => width,
        // Qwen3 is the one family whose default does not follow from the other sizes.
        None if architecture == Architecture::Qwen3 && !keys.has("head_dim") => 128,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let why = format!("{heads} does not divide `hidden_size`, {hidden}, and there is no `head_dim`");
            return Err(keys.contradiction("num_attention_heads", why));
        }
    };
    let bias = keys.flag("attention_bias")?.unwrap_or(false);
    let qwen2 = architecture == Architecture::Qwen2;
    Ok(AttentionConfig::Grouped {
        heads,
        kv_heads,
        head_dim,
        qkv_bias: qwen2 || bias,
        output_bias: !qwen2 && bias,
        qk_norm: matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe),
    })
}

fn latent_attention(keys: Keys<'_>) -> Result<AttentionConfig, ModelError> {
    let heads = keys.required_size("num_attention_heads")?;
    if let Some(kv_heads) = keys.size("num_key_value_heads")?
        && kv_heads != heads
    {
        let why =
            format!("{kv_heads} differs from `num_attention_heads`, {heads}; latent attention has no shared heads");
        return Err(keys.contradiction("num_key_value_heads", why));
    }
    if !keys.has("q_lora_rank") {
        return Err(keys.missing("q_lora_rank"));
    }
    Ok(AttentionConfig::Mla {
        heads,
        q_lora_rank: keys.size("q_lora_rank")?,
        kv_lora_rank: keys.required_size("kv_lora_rank")?,
        qk_nope_head_dim: keys.required_size("qk_nope_head_dim")?,
        qk_rope_head_dim: keys.required_size("qk_rope_head_dim")?,
        v_head_dim: keys.required_size("v_head_dim")?,
        bias: keys.flag("attention_bias")?.unwrap_or(false),
    })
}

fn mlps(architecture: Architecture, keys: Keys<'_>, layers: usize) -> Result<Vec<MlpConfig>, ModelError> {
    let dense = |bias| Ok(MlpConfig::Dense { intermediate_size: keys.required_size("intermediate_size")?, bias });
    let is_moe: Box<dyn Fn(usize) -> bool> = match architecture {
        Architecture::Llama => {
            let bias = keys.flag("mlp_bias")?.unwrap_or(false);
            return Ok(vec![dense(bias)?; layers]);
        }
        Architecture::Qwen2 | Architecture::Qwen3 => return Ok(vec![dense(false)?; layers]),
        Architecture::Qwen3Moe => {
            let step = keys.size("decoder_sparse_step")?.unwrap_or(1);
            let dense_layers = keys.ids("mlp_only_layers")?.unwrap_or_default();
            Box::new(move |layer| (layer + 1) % step == 0 && !dense_layers.contains(&(layer as u32)))
        }
        Architecture::DeepseekV3 => {
            let first = keys.count("first_k_dense_replace")?.ok_or_else(|| keys.missing("first_k_dense_replace"))?;
            let step = keys.size("moe_layer_freq")?.unwrap_or(1);
            Box::new(move |layer| layer >= first && layer % step == 0)
        }
    };
    let routed = (0..layers).filter(|layer| is_moe(*layer)).count();
    let moe = if routed > 0 { Some(experts(architecture, keys)?) } else { None };
    if let Some(moe) = &moe
        && moe.experts.saturating_mul(3).saturating_mul(routed) > MAX_TENSORS
    {
        let key = keys.alias(&EXPERT_COUNT)?;
        return Err(keys.wrong(key, &format!("at most {MAX_TENSORS} tensors in all experts together")));
    }
    (0..layers)
        .map(|layer| match &moe {
            Some(moe) if is_moe(layer) => Ok(MlpConfig::Moe(moe.clone())),
            _ => dense(false),
        })
        .collect()
}

fn experts(architecture: Architecture, keys: Keys<'_>) -> Result<MoeConfig, ModelError> {
    let experts = keys.required_size(keys.alias(&EXPERT_COUNT)?)?;
    let experts_per_token = keys.required_size("num_experts_per_tok")?;
    if experts_per_token > experts {
        let why = format!("{experts_per_token} experts per token of only {experts}");
        return Err(keys.contradiction("num_experts_per_tok", why));
    }
    let (shared_experts, router) = match architecture {
        Architecture::DeepseekV3 => {
            let shared = keys.count("n_shared_experts")?.ok_or_else(|| keys.missing("n_shared_experts"))?;
            (shared, grouped_router(keys, experts, experts_per_token)?)
        }
        _ => (0, RouterConfig::SoftmaxTopK { normalize: keys.flag("norm_topk_prob")?.unwrap_or(false) }),
    };
    let intermediate_size = keys.required_size("moe_intermediate_size")?;
    Ok(MoeConfig { experts, experts_per_token, intermediate_size, shared_experts, router })
}

fn grouped_router(keys: Keys<'_>, experts: usize, experts_per_token: usize) -> Result<RouterConfig, ModelError> {
    if keys.text("scoring_func")?.unwrap_or("sigmoid") != "sigmoid" {
        return Err(keys.unsupported("scoring_func", "sigmoid"));
    }
    if keys.text("topk_method")?.unwrap_or("noaux_tc") != "noaux_tc" {
        return Err(keys.unsupported("topk_method", "noaux_tc"));
    }
    let groups = keys.required_size("n_group")?;
    let groups_per_token = keys.required_size("topk_group")?;
    if !experts.is_multiple_of(groups) {
        return Err(keys.contradiction("n_group", format!("{groups} does not divide the number of experts, {experts}")));
    }
    let group_experts = experts / groups;
    if group_experts < 2 {
        let why =
            format!("a group is ranked by its two best experts, but {experts} experts in {groups} groups have fewer");
        return Err(keys.contradiction("n_group", why));
    }
    if groups_per_token > groups {
        let why = format!("{groups_per_token} groups per token of only {groups}");
        return Err(keys.contradiction("topk_group", why));
    }
    if experts_per_token > groups_per_token * group_experts {
        let why =
            format!("{experts_per_token} experts per token, but {groups_per_token} groups hold {group_experts} each");
        return Err(keys.contradiction("num_experts_per_tok", why));
    }
    let scaling_factor =
        keys.positive("routed_scaling_factor")?.ok_or_else(|| keys.missing("routed_scaling_factor"))?;
    Ok(RouterConfig::SigmoidGrouped {
        groups,
        groups_per_token,
        normalize: keys.flag("norm_topk_prob")?.unwrap_or(true),
        scaling_factor: scaling_factor as f32,
    })
}
