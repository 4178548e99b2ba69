"""Writes tests/data/names/*.json: names and shapes of tiny models of the families that have no forward pass here.

    pip install torch transformers safetensors
    python3 tests/oracle/family_names.py tests/data/names

One file per family: the configuration that transformers saves, the tensors of the checkpoint that it saves (`stored`), and
those of the model in memory whose name or shape differs (`in_memory`: experts packed). Values are not kept.
"""

import json
import os
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from transformers.models.qwen3_5_moe import configuration_qwen3_5_moe, modeling_qwen3_5_moe

SIZES = dict(
    vocab_size=48,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=24,
    max_position_embeddings=64,
)
EXPERTS = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=12, shared_expert_intermediate_size=20)
LINEAR = dict(
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=4,
    linear_value_head_dim=4,
    layer_types=["linear_attention", "full_attention"],
)
VISION = dict(
    depth=1,
    hidden_size=16,
    intermediate_size=16,
    num_heads=2,
    out_hidden_size=16,
    patch_size=2,
    num_position_embeddings=16,
    spatial_merge_size=1,
    temporal_patch_size=1,
)


def models():
    text = {**SIZES, **EXPERTS, **LINEAR}
    yield "glm4-moe", transformers.Glm4MoeForCausalLM, transformers.Glm4MoeConfig(
        **SIZES,
        moe_intermediate_size=12,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
        attention_bias=True,
        use_qk_norm=True,
    )
    yield "gpt-oss", transformers.GptOssForCausalLM, transformers.GptOssConfig(
        **SIZES,
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["sliding_attention", "full_attention"],
    )
    yield "qwen3-next", transformers.Qwen3NextForCausalLM, transformers.Qwen3NextConfig(**text)
    configs, classes = configuration_qwen3_5_moe, modeling_qwen3_5_moe
    yield "qwen3.5-moe-text", classes.Qwen3_5MoeForCausalLM, configs.Qwen3_5MoeTextConfig(**text)
    yield "qwen3.5-moe", classes.Qwen3_5MoeForConditionalGeneration, configs.Qwen3_5MoeConfig(
        text_config=text, vision_config=VISION
    )


def described(model):
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        with open(os.path.join(directory, "config.json")) as file:
            config = json.load(file)
        with safe_open(os.path.join(directory, "model.safetensors"), "pt") as file:
            stored = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    in_memory = {name: list(tensor.shape) for name, tensor in sorted(model.state_dict().items())}
    packed = {name: shape for name, shape in in_memory.items() if stored.get(name) != shape}
    return {"config": config, "stored": stored, "in_memory": packed}


def main():
    (directory,) = sys.argv[1:]
    for name, model, config in models():
        with torch.no_grad():
            described_model = described(model(config))
        with open(os.path.join(directory, f"{name}.json"), "w") as file:
            rows = [f'"config": {json.dumps(described_model["config"])}']
            for key in ("stored", "in_memory"):
                tensors = ",\n".join(f"{json.dumps(n)}: {json.dumps(s)}" for n, s in described_model[key].items())
                rows.append(f'"{key}": {{\n{tensors}\n}}')
            file.write("{\n" + ",\n".join(rows) + "\n}\n")


main()
