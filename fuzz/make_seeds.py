#!/usr/bin/env python3
"""Writes fuzz/seeds: one small valid input or more for each target that reads files or text.

Targets that take structured values start from nothing; the other seeds are what a fuzzer would not find by itself, a
header whose length and offsets fit. Nothing but the standard library is needed. Run it after a change of what a seed
describes and commit the result: `python3 fuzz/make_seeds.py`.
"""

import json
import struct
from pathlib import Path

SEEDS = Path(__file__).parent / "seeds"

BASE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "vocab_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": [1, 2],
    "torch_dtype": "bfloat16",
}
LLAMA = BASE | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "rope_theta": 10000.0}
QWEN3_MOE = BASE | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 1,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}
DEEPSEEK = BASE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "rope_theta": 10000.0,
}
YARN = LLAMA | {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}


def safetensors(tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)"""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def archive(names, files):
    out = b""
    for name, content in files.items():
        assert len(content) < 1 << 16, name
        out += struct.pack("<BH", names.index(name), len(content)) + content
    return out


def bf16(*shape):
    count = 1
    for extent in shape:
        count *= extent
    return ("BF16", list(shape), b"\x80\x3f" * count)


def attention(layer, q_norm):
    base = f"model.layers.{layer}."
    tensors = {
        base + "input_layernorm.weight": bf16(16),
        base + "post_attention_layernorm.weight": bf16(16),
        base + "self_attn.q_proj.weight": bf16(8, 16),
        base + "self_attn.k_proj.weight": bf16(4, 16),
        base + "self_attn.v_proj.weight": bf16(4, 16),
        base + "self_attn.o_proj.weight": bf16(16, 8),
    }
    if q_norm:
        tensors |= {base + "self_attn.q_norm.weight": bf16(4), base + "self_attn.k_norm.weight": bf16(4)}
    return tensors


def ends():
    return {"model.embed_tokens.weight": bf16(8, 16), "model.norm.weight": bf16(16)}


def llama(mlp):
    return ends() | attention(0, False) | mlp


def dense_mlp():
    base = "model.layers.0.mlp."
    return {
        base + "gate_proj.weight": bf16(32, 16),
        base + "up_proj.weight": bf16(32, 16),
        base + "down_proj.weight": bf16(16, 32),
    }


def nvfp4_mlp():
    tensors = {}
    for name, rows, cols in [("gate_proj", 32, 16), ("up_proj", 32, 16), ("down_proj", 16, 32)]:
        base = f"model.layers.0.mlp.{name}."
        tensors[base + "weight"] = ("U8", [rows, cols // 2], b"\x21" * (rows * cols // 2))
        tensors[base + "weight_scale"] = ("F8_E4M3", [rows, cols // 16], b"\x38" * (rows * cols // 16))
        tensors[base + "weight_scale_2"] = ("F32", [], struct.pack("<f", 0.5))
        tensors[base + "input_scale"] = ("F32", [], struct.pack("<f", 1.0))
    return tensors


def eight_bit_mlp(dtype, scales, one):
    tensors = {}
    for name, rows, cols in [("gate_proj", 32, 16), ("up_proj", 32, 16), ("down_proj", 16, 32)]:
        base = f"model.layers.0.mlp.{name}."
        shape = scales(rows, cols)
        tensors[base + "weight"] = ("F8_E4M3", [rows, cols], b"\x38" * (rows * cols))
        tensors[base + "weight_scale_inv"] = (dtype, shape, one * (shape[0] * shape[1]))
    return tensors


def packed_experts():
    base = "model.layers.0.mlp."
    return ends() | attention(0, True) | {
        base + "gate.weight": bf16(2, 16),
        base + "experts.gate_up_proj": bf16(2, 64, 16),
        base + "experts.down_proj": bf16(2, 16, 32),
    }


def text(value):
    return json.dumps(value, separators=(",", ":")).encode()


def checkpoint_files():
    names = [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "a.safetensors",
        "generation_config.json",
        "hf_quant_config.json",
    ]

    def directory(config, tensors, **more):
        files = {"config.json": text(config), "model.safetensors": safetensors(tensors)}
        return archive(names, files | {name.replace("_json", ".json"): content for name, content in more.items()})

    nvfp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    mxfp8 = {"quant_method": "mxfp8", "weight_block_size": [1, 32]}
    sharded = llama(dense_mlp())
    weight_map = {"weight_map": {name: "a.safetensors" for name in sharded}}
    yield "llama", directory(LLAMA, llama(dense_mlp()), generation_config_json=text({"eos_token_id": 3}))
    yield "nvfp4", directory(LLAMA | {"quantization_config": nvfp4}, llama(nvfp4_mlp()))
    tiles = eight_bit_mlp("F32", lambda rows, cols: [1, 1], struct.pack("<f", 0.5))
    yield "fp8-block", directory(LLAMA | {"quantization_config": fp8}, llama(tiles))
    blocks = eight_bit_mlp("U8", lambda rows, cols: [rows, (cols + 31) // 32], b"\x7f")
    yield "mxfp8", directory(LLAMA | {"quantization_config": mxfp8}, llama(blocks))
    yield "packed", directory(QWEN3_MOE, packed_experts())
    files = {
        "config.json": text(LLAMA),
        "model.safetensors.index.json": text(weight_map),
        "a.safetensors": safetensors(sharded),
    }
    yield "sharded", archive(names, files)


def floats(*shape):
    count = 1
    for extent in shape:
        count *= extent
    return ("F32", list(shape), struct.pack("<f", 0.25) * count)


def trainer_files(names):
    tensors = {name: floats(*shape) for name, (_, shape, _) in llama(dense_mlp()).items()}
    state = safetensors(tensors)
    files = {"state.json": text({"optimizer_steps": 12})}
    files |= {name: state for name in names if name.endswith(".safetensors")}
    return archive(names, files)


def write(target, name, content):
    path = SEEDS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main():
    for name, config in [("llama", LLAMA), ("qwen3-moe", QWEN3_MOE), ("deepseek", DEEPSEEK), ("llama3-rope", YARN)]:
        write("model_config", name + ".json", json.dumps(config, indent=1).encode() + b"\n")
    for name, content in checkpoint_files():
        write("checkpoint_files", name, content)
    write("state_file", "two", safetensors({"a": floats(2, 3), "b": floats(), "c": floats(0)}, {"step": "3"}))
    names = ["state.json", "masters.safetensors", "first_moments.safetensors", "second_moments.safetensors"]
    write("trainer_state", "whole", trainer_files(names))
    rules = """recipe = "nvfp4-high-precision"
rules = [
  { name = "*.experts.1.*", format = "mxfp8", backward = "dequantized" },
  { roles = ["attention-o"], layers = { first = 1 }, format = "bf16" },
  { layers = { last-percent = 50 }, format = "f32" },
  { layers = { range = [0, 1] }, format = "fp8-block" },
]
"""
    write("precision_rules", "rules", rules.encode())
    digest = "ab" * 32
    event = {
        "run": "r",
        "step": 1,
        "version": 2,
        "tensor": "t",
        "source_digest": digest,
        "source_dtype": "bf16",
        "format": "nvfp4",
        "quantizer": "cpu-ref",
        "output_digest": digest,
    }
    export = {
        "run": "r",
        "step": 1,
        "version": 2,
        "precision_map": digest,
        "policy_digest": digest,
        "as_held": True,
        "files": {"a.safetensors": {"bytes": 8, "digest": digest}},
    }
    later = event | {"version": 3, "step": 2}
    lines = [text(line) + b"\n" for line in [event, event | {"tensor": "u"}, export, later]]
    write("ledger_file", "two-versions", b"".join(lines))
    write("ledger_file", "digest", digest.encode() + b"\n")
    write("metrics_file", "two", b'{"step":0,"loss":0.5}\n{"step":1,"loss":1e-3,"policy":"ab"}\n')
    run = """[run]
name = "a"
steps = 8
[model]
dir = "m"
[precision]
recipe = "mxfp8"
[loss]
name = "clipped"
options = { eps_low = 0.2 }
-train.learning_rate=1e-3
-run.existing=overwrite
"""
    write("run_config", "run", run.encode())
    rows = [
        {"prompt": "12+3=", "answer": "15"},
        {"prompt": "1", "answer": 7},
        {"messages": [{"role": "user", "content": "12+3="}], "answer": None},
    ]
    for index, row in enumerate(rows):
        write("prompt_rows", f"row-{index}", text(row) + b"\n")
    write("saved_loop", "loop", saved_loop(digest))


def saved_loop(digest):
    names = [
        "step-00000012/loop.json",
        "step-00000012/trainer.json",
        "step-00000012/trainer/state.json",
        "step-00000012/trainer/masters.safetensors",
        "step-00000003/loop.json",
    ]
    stamp = {"version": 12, "digest": digest}
    loop = {
        "steps_done": 12,
        "policy": stamp,
        "reference": stamp,
        "precision_map": digest,
        "scheduler": None,
        "metrics_bytes": 0,
        "metrics_digest": digest,
        "ledger_bytes": 0,
        "ledger_digest": digest,
        "config_digest": digest,
        "config": {"values": {"run.seed": 1}},
    }
    # BLAKE3 of the empty input.
    empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    files = {
        names[0]: text(loop),
        names[1]: text({"state.json": empty}),
        names[2]: b"",
    }
    return archive(names, files)


if __name__ == "__main__":
    main()
