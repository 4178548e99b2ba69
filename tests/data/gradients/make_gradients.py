#!/usr/bin/env python3
"""Make the gradient references of this directory: whole tiny models, one linear in every format, single operations.

    pip install torch numpy safetensors transformers      # made with torch 2.15, transformers 5.24
    python tests/data/gradients/make_gradients.py

Deterministic: every random number is seeded. Running it again rewrites the same inputs and, up to the float32 summation order of
the installed PyTorch, the same gradients. README.md lists names and shapes.
"""

import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from linear import linear_references  # noqa: E402
from operations import operation_references  # noqa: E402

FIXTURES = HERE.parent / "fixtures"
FAMILIES = [
    "llama-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3", "qwen3-moe", "qwen3-moe-sharded", "deepseek-v3",
]
# Where a fixture's expected logits cannot follow from its files, [row, position]. The stored selection bias is rounded to BF16;
# the expected values came from the unrounded one, which picks another expert group for this token in the last layer.
UNREPRODUCIBLE = {"deepseek-v3": [(0, 3)]}
SEED = 20_260_703
WHOLE_UP_TO = 512  # elements; a larger gradient is stored as a sample
SAMPLE, EXPERT_SAMPLE = 512, 128  # elements kept of a larger gradient; the second where a model has many experts


def huggingface_gradients(model):
    """(name as in a checkpoint file, gradient) of every parameter; packed experts are taken apart again."""
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            raise SystemExit(f"{name}: no gradient")
        if name.endswith("experts.gate_up_proj"):  # [experts, 2 * intermediate, hidden]
            for expert, both in enumerate(gradient):
                gate, up = both.chunk(2, dim=0)
                yield name.replace("gate_up_proj", f"{expert}.gate_proj.weight"), gate
                yield name.replace("gate_up_proj", f"{expert}.up_proj.weight"), up
        elif name.endswith("experts.down_proj"):  # [experts, hidden, intermediate]
            for expert, down in enumerate(gradient):
                yield name.replace("down_proj", f"{expert}.down_proj.weight"), down
        else:
            yield name, gradient


def checkpoint_names(folder):
    """Parameter names in the checkpoint's files; buffers, which no optimizer updates, are left out."""
    names = {name for path in folder.glob("model*.safetensors") for name in load_file(path)}
    return {name for name in names if not name.endswith("e_score_correction_bias")}


def stored(name, gradient, rng):
    """The tensors kept for one gradient: whole if small, else a sorted random sample; always its L2 norm."""
    flat = gradient.contiguous().flatten()
    kept = {f"{name}/norm": flat.double().norm().float().reshape(1)}
    if flat.numel() <= WHOLE_UP_TO:
        return kept | {name: gradient.contiguous().clone()}
    size = EXPERT_SAMPLE if ".experts." in name else SAMPLE
    index = np.sort(rng.choice(flat.numel(), size=size, replace=False))
    return kept | {
        f"{name}/index": torch.from_numpy(index.astype(np.int32)),
        f"{name}/values": flat[torch.from_numpy(index)].clone(),
    }


def check_forward(found, expected, except_at):
    """The forward must be the one the fixture was made with, or its gradients mean nothing."""
    compared = torch.ones(found.shape[:2], dtype=torch.bool)
    for row, position in except_at:
        compared[row, position] = False
    torch.testing.assert_close(found[compared], expected[compared], rtol=0, atol=1e-5)


def family_references(family):
    """Tensors of `<family>.safetensors`: gradients of sum_t weight_t * logprob(token t+1), and what they came from."""
    folder = FIXTURES / family
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.set_experts_implementation("eager")
    expected = load_file(folder / "expected.safetensors")
    ids = expected["input_ids"].long()
    rng = np.random.default_rng(SEED)
    weights = torch.from_numpy(rng.uniform(-1.0, 1.0, (ids.shape[0], ids.shape[1] - 1)).astype(np.float32))

    logits = model(input_ids=ids, use_cache=False).logits
    log_probabilities = logits[:, :-1].log_softmax(-1)
    logprobs = log_probabilities.gather(-1, ids[:, 1:, None])[..., 0]
    entropies = -(log_probabilities.exp() * log_probabilities).sum(-1)
    check_forward(logits.detach(), expected["logits"], UNREPRODUCIBLE.get(family, []))
    check_forward(logprobs.detach(), expected["next_token_logprobs"], UNREPRODUCIBLE.get(family, []))
    loss = (weights * logprobs).sum()
    loss.backward()

    tensors = {
        "weights": weights, "loss": loss.detach().reshape(1),
        "logprobs": logprobs.detach(), "entropies": entropies.detach(),
    }
    gradients = dict(huggingface_gradients(model))
    if gradients.keys() != checkpoint_names(folder):
        raise SystemExit(f"{family}: gradients and checkpoint differ: {gradients.keys() ^ checkpoint_names(folder)}")
    for name in sorted(gradients):
        tensors |= stored(name, gradients[name], rng)
    return tensors


def save(name, tensors):
    path = HERE / f"{name}.safetensors"
    save_file(dict(sorted(tensors.items())), path)
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    save("ops", operation_references())
    save("linear", linear_references())
    for family in FAMILIES:
        save(family, family_references(family))


if __name__ == "__main__":
    main()
