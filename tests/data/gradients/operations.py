"""References for single operations: forward and backward by PyTorch autograd in float64.

Each reference is the definition written out, not a library layer, so that nothing inside is rounded to float32. Inputs are
float32 values held as F32; results are F64.
"""

import math

import torch

SEED = 20_260_702


class _Recorder:
    """Collects tensors under `operation/name`: inputs as F32 or I32, results as F64."""

    def __init__(self):
        self.tensors, self.generator = {}, torch.Generator().manual_seed(SEED)

    def normal(self, name, *shape, scale=1.0, shift=0.0):
        """A seeded float32 input, returned as a float64 leaf that wants a gradient."""
        value = torch.randn(*shape, generator=self.generator) * scale + shift
        self.tensors[name] = value
        return value.double().requires_grad_()

    def integers(self, name, values):
        self.tensors[name] = torch.tensor(values, dtype=torch.int32)
        return self.tensors[name].long()

    def result(self, name, value):
        self.tensors[name] = value.detach().double().contiguous()

    def backward(self, operation, y, upstream, **inputs):
        """Store y and the gradient of sum(y * upstream) with respect to each input, as `operation/d<input>`."""
        self.result(f"{operation}/y", y)
        gradients = torch.autograd.grad(y, list(inputs.values()), upstream.detach(), retain_graph=True)
        for name, gradient in zip(inputs, gradients):
            self.result(f"{operation}/d{name}", gradient)


def _rms_norm(r):
    x, w = r.normal("rms_norm/x", 5, 48, scale=2.0), r.normal("rms_norm/weight", 48, scale=0.3, shift=1.0)
    g = r.normal("rms_norm/dy", 5, 48)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    r.backward("rms_norm", y, g, x=x, weight=w)


def _swiglu(r):
    gate, up = r.normal("swiglu/gate", 5, 40, scale=3.0), r.normal("swiglu/up", 5, 40)
    g = r.normal("swiglu/dy", 5, 40)
    r.backward("swiglu", gate * torch.sigmoid(gate) * up, g, gate=gate, up=up)


def _inverse_frequencies(dim, theta):
    return theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def _rope(r):
    """Both pairings of one input; `interleaved` rotates (2i, 2i+1) and leaves each pair in its place."""
    x, g = r.normal("rope/x", 7, 3, 16), r.normal("rope/dy", 7, 3, 16)
    positions = r.integers("rope/positions", [0, 1, 2, 3, 17, 100, 511])
    angle = positions[:, None].double() * _inverse_frequencies(16, 10000.0)
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    a, b = x[..., :8], x[..., 8:]
    r.backward("rope/half_split", torch.cat([a * cos - b * sin, b * cos + a * sin], -1), g, x=x)
    a, b = x[..., 0::2], x[..., 1::2]
    pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    r.backward("rope/interleaved", pairs, g, x=x)


def _rope_llama3(r):
    """Inverse frequencies of llama3 scaling: factor 8, low 1, high 4, original length 128, theta 500000, head_dim 32."""
    factor, low, high, original = 8.0, 1.0, 4.0, 128.0
    frequency = _inverse_frequencies(32, 500000.0)
    wavelength = 2 * math.pi / frequency
    smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    r.result("rope_llama3/inverse_frequencies", (1 - smooth) * frequency / factor + smooth * frequency)


def _attention(r, operation, tokens, heads, kv_heads, qk_dim, v_dim):
    """Causal softmax attention over one sequence; head h reads key/value head h // (heads / kv_heads)."""
    q = r.normal(f"{operation}/q", tokens, heads, qk_dim, scale=1.5)
    k = r.normal(f"{operation}/k", tokens, kv_heads, qk_dim, scale=1.5)
    v = r.normal(f"{operation}/v", tokens, kv_heads, v_dim)
    g = r.normal(f"{operation}/dy", tokens, heads, v_dim)
    share = heads // kv_heads
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(share, 1)) / math.sqrt(qk_dim)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(future, -math.inf).softmax(-1)
    y = torch.einsum("hqk,khd->qhd", probabilities, v.repeat_interleave(share, 1))
    r.backward(operation, y, g, q=q, k=k, v=v)


def _log_softmax_gather(r):
    """Log-probability of each target, and the entropy, of softmax(logits / 0.7) over the whole vocabulary."""
    logits = r.normal("log_softmax_gather/logits", 6, 50, scale=4.0)
    targets = r.integers("log_softmax_gather/targets", [0, 49, 7, 23, 23, 11])
    g = r.normal("log_softmax_gather/dy", 6)
    log_probabilities = (logits / 0.7).log_softmax(-1)
    r.backward("log_softmax_gather", log_probabilities.gather(1, targets[:, None])[:, 0], g, logits=logits)
    r.backward("log_softmax_gather/entropy", -(log_probabilities.exp() * log_probabilities).sum(-1), g, logits=logits)


def _softmax_router(r):
    """Qwen3-MoE: softmax over 8 experts, the 3 most probable in descending order, with and without renormalizing."""
    logits, g = r.normal("softmax_router/logits", 6, 8, scale=1.5), r.normal("softmax_router/dy", 6, 3)
    chosen, experts = logits.softmax(-1).topk(3, dim=-1)
    r.integers("softmax_router/experts", experts.tolist())
    r.backward("softmax_router/plain", chosen, g, logits=logits)
    r.backward("softmax_router/normalized", chosen / chosen.sum(-1, keepdim=True), g, logits=logits)


def _grouped_router(r):
    """DeepSeek-V3: sigmoid scores of 16 experts in 4 groups; bias only chooses. Best 2 groups, then best 4 experts in them.

    A group's score is the sum of its two best biased scores. Experts are listed by descending biased score."""
    logits, g = r.normal("grouped_router/logits", 6, 16, scale=1.5), r.normal("grouped_router/dy", 6, 4)
    bias = r.normal("grouped_router/e_score_correction_bias", 16, scale=0.2)
    scores = logits.sigmoid()
    biased = (scores + bias).detach()
    groups = biased.view(6, 4, 4).topk(2, dim=-1)[0].sum(-1).topk(2, dim=-1)[1]
    allowed = torch.zeros(6, 4, dtype=torch.bool).scatter(1, groups, True).repeat_interleave(4, 1)
    experts = biased.masked_fill(~allowed, -math.inf).topk(4, dim=-1)[1]
    r.integers("grouped_router/experts", experts.tolist())
    chosen = scores.gather(1, experts)
    r.backward("grouped_router/plain", chosen * 2.5, g, logits=logits)
    r.backward("grouped_router/normalized", chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * 2.5, g, logits=logits)


def operation_references():
    """All tensors of `ops.safetensors`, by name."""
    r = _Recorder()
    _rms_norm(r)
    _swiglu(r)
    _rope(r)
    _rope_llama3(r)
    _attention(r, "gqa_attention", tokens=9, heads=4, kv_heads=2, qk_dim=16, v_dim=16)
    _attention(r, "mla_attention", tokens=7, heads=3, kv_heads=3, qk_dim=48, v_dim=32)
    _log_softmax_gather(r)
    _softmax_router(r)
    _grouped_router(r)
    return r.tensors
