"""References for one linear, `y = x W^T`, in every low-precision format and backward mode.

Operands are quantized by `quantizers.py`; every product and sum is float64. So the values carry no summation order, and what
remains between them and a float32 implementation is that implementation's own rounding.
"""

import numpy as np
import torch

from quantizers import Fp8Block, Mxfp8, Nvfp4, bf16_round

SEED = 20_260_701


def _operands(rng, tokens, in_features, out_features):
    """BF16-valued x `[tokens, in]`, W `[out, in]`, g `[tokens, out]` with the shapes of trouble real tensors have."""
    x = rng.standard_normal((tokens, in_features))
    x[:, 5] *= 40.0  # an outlier channel
    x[3] = 0.0  # a token that is all zero
    x[7] *= 1e-3  # a small token
    x[11, 16:48] = 0.0  # zero blocks inside a token
    w = rng.standard_normal((out_features, in_features)) * 0.05
    w[2, 32:64] = 0.0
    w[9] *= 8.0
    g = rng.standard_normal((tokens, out_features)) * np.exp(rng.standard_normal((tokens, 1)))
    g[4] = 0.0  # a token without gradient, such as a prompt token
    return [bf16_round(a.astype(np.float32)) for a in (x, w, g)]


def _quantized_operands(name, x, w, g):
    """Operands of the forward as quantized, then of the `quantized` backward (None where the format has no such mode)."""
    turned = lambda a: np.ascontiguousarray(a.T)
    if name == "nvfp4":
        return Nvfp4(x, "row"), Nvfp4(w, "tensor"), None
    if name == "mxfp8":
        backward = dict(g_row=Mxfp8(g).exact(), w_column=Mxfp8(turned(w)).exact().T)
        backward |= dict(g_column=Mxfp8(turned(g)).exact().T, x_column=Mxfp8(turned(x)).exact().T)
        return Mxfp8(x), Mxfp8(w), backward
    weight = Fp8Block(w, 128)
    # The weight's second copy is the same codes and scales, transposed; tokens' second copies are quantized afresh.
    backward = dict(g_row=Fp8Block(g, 1).exact(), w_column=weight.exact())
    backward |= dict(g_column=Fp8Block(turned(g), 1).exact().T, x_column=Fp8Block(turned(x), 1).exact().T)
    return Fp8Block(x, 1), weight, backward


def _case(prefix, formats, x, w, g, every_mode):
    """Inputs and results under `prefix`; only `quantized` is stored of the backward modes unless `every_mode`."""
    f64 = lambda a: a.astype(np.float64)
    bf16 = lambda a: torch.from_numpy(a).to(torch.bfloat16)
    out = {f"{prefix}x": bf16(x), f"{prefix}w": bf16(w), f"{prefix}g": bf16(g)}
    store = lambda name, value: out.update({f"{prefix}{name}": torch.from_numpy(np.ascontiguousarray(value))})
    if every_mode:
        store("high-precision/y", f64(x) @ f64(w).T)
        store("high-precision/dx", f64(g) @ f64(w))
        store("high-precision/dw", f64(g).T @ f64(x))
    for name in formats:
        qx, qw, backward = _quantized_operands(name, x, w, g)
        store(f"{name}/y", qx.exact() @ qw.exact().T)
        if every_mode:
            xd, wd = qx.dequantized(), qw.dequantized()
            out[f"{prefix}{name}/x_dequantized"], out[f"{prefix}{name}/w_dequantized"] = bf16(xd), bf16(wd)
            store(f"{name}/dequantized/dx", f64(g) @ f64(wd))
            store(f"{name}/dequantized/dw", f64(g).T @ f64(xd))
        if backward:
            store(f"{name}/quantized/dx", backward["g_row"] @ backward["w_column"])
            store(f"{name}/quantized/dw", backward["g_column"].T @ backward["x_column"])
    return out


def linear_references():
    """All tensors of `linear.safetensors`, by name."""
    rng = np.random.default_rng(SEED)
    tensors = _case("", ("nvfp4", "mxfp8", "fp8-block"), *_operands(rng, 37, 96, 64), every_mode=True)
    # Larger than one 128-tile along tokens, inputs and outputs, ragged in each: only here do tile borders show.
    return tensors | _case("wide/", ("fp8-block",), *_operands(rng, 133, 136, 130), every_mode=False)
