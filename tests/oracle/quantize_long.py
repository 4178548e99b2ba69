"""Compares the `quantize` example, byte for byte, with a second implementation of docs/contract.md in numpy and ml_dtypes.

    pip install numpy ml_dtypes
    cargo build --release --example quantize
    python3 tests/oracle/quantize_long.py target/release/examples/quantize --elements 1e9

Every format gets `--elements` random elements: normal rows, rows and elements spread over many binades, and arbitrary finite
BF16 and F32 bit patterns, in ragged shapes. Codes, block scales and outer scales are compared. Nothing here shares code with
the Rust rules: elements are rounded by ml_dtypes, powers of two by frexp and ldexp.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

np.seterr(all="ignore")
F = np.float32
LARGEST = np.finfo(F).max
CHUNK = 1 << 24


def bits(pattern):
    return np.array(pattern, np.uint32).view(F)[()]


# --- safetensors -----------------------------------------------------------------------------------------------------


def save(path, tensors):
    head, at = {}, 0
    for name, (dtype, array) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.data)


def load(path):
    raw = np.fromfile(path, np.uint8)
    start = 8 + int(raw[:8].view("<u8")[0])
    types = {"U8": np.uint8, "F32": F, "BF16": np.uint16}
    return {
        name: raw[start + info["data_offsets"][0] : start + info["data_offsets"][1]].view(types[info["dtype"]]).reshape(info["shape"])
        for name, info in json.loads(raw[8:start].tobytes()).items()
        if name != "__metadata__"
    }


# --- elements and scales ---------------------------------------------------------------------------------------------


def e4m3(values):
    """Saturating conversion to E4M3."""
    return np.clip(values, F(-448), F(448)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def e2m1(values):
    """Saturating conversion to E2M1, one code per byte."""
    return np.clip(values, F(-6), F(6)).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 0x0F


def packed(codes):
    """Two codes per byte, the even element in the low nibble."""
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return codes[:, ::2] | codes[:, 1::2] << 4


def block_amax(x, rows, cols):
    """Largest magnitude of each rows x cols block; what is missing counts as 0."""
    padded = np.pad(np.abs(x), ((0, -x.shape[0] % rows), (0, -x.shape[1] % cols)))
    high, wide = padded.shape
    return padded.reshape(high // rows, rows, wide // cols, cols).max(axis=(1, 3))


def spread(scales, rows, cols, shape):
    return np.repeat(np.repeat(scales, rows, 0), cols, 1)[: shape[0], : shape[1]]


def power_of_two_up(x):
    """Exponent of the smallest power of two that is not below x."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.where(mantissa == 0.5, exponent - 1, exponent)


# --- formats: (values, is BF16) -> codes, scales, outer --------------------------------------------------------------


def nvfp4(x, scope, te_2_13=False):
    whole = np.abs(x).max(axis=1 if scope == "row" else None, keepdims=True)
    encode = np.minimum((F(2688) / whole).astype(F), LARGEST)
    encode = np.where((whole == 0) | (encode == 0), F(1), encode).astype(F)
    decode = (F(1) / encode).astype(F)
    blocks = block_amax(x, 1, 16)
    scaled = (blocks / F(6)).astype(F) * encode if te_2_13 else blocks * (encode * bits(0x3E2AAAAB)).astype(F)
    scales = e4m3(np.minimum(scaled.astype(F), LARGEST))
    product = (scales.view(ml_dtypes.float8_e4m3fn).astype(F) * decode).astype(F)
    factor = np.minimum((F(1) / product).astype(F), LARGEST)
    codes = e2m1((x * spread(factor, 1, 16, x.shape)).astype(F))
    zero = F(0) if scope == "row" else bits(0x00200000)
    return packed(codes), scales, np.where(whole == 0, zero, decode).astype(F).ravel()


def mxfp8(x, rounding="up", rows=1):
    amax = block_amax(x, rows, 32)
    if rounding == "up":
        t = (amax * bits(0x3B124925)).astype(F)
        exponents = np.where(t <= F(2.0**-127), 0, power_of_two_up(t) + 127)
    else:
        patterns = amax.view(np.uint32) + np.uint32(1 << 19 if rounding == "even" else 0)
        exponents = np.maximum((patterns >> 23).astype(np.int64) - 8, 0)
    factors = np.ldexp(np.float64(1), 127 - spread(exponents, rows, 32, x.shape))
    scales = np.repeat(exponents, rows, 0)[: x.shape[0]].astype(np.uint8)
    return e4m3((x.astype(np.float64) * factors).astype(F)), scales, None


def fp8_block(x, is_bf16, variant="", rows=128):
    amax = block_amax(x, rows, 128)
    full = lambda scales: spread(scales, rows, 128, x.shape)
    if variant in ("", "power-of-two"):
        scale = (F(448) / amax).astype(F)
        scale = np.where(np.isinf(scale), bits(0x7F7F0000) if is_bf16 else LARGEST, scale)
        scale = np.where(amax == 0, F(1), scale).astype(F)
        if variant:
            scale = (scale.view(np.uint32) & np.uint32(0xFF800000)).view(F)
        return e4m3((x * full(scale)).astype(F)), (F(1) / scale).astype(F), None
    amax = np.maximum(amax, F(1e-10) if variant.startswith("sglang") else F(1e-4))
    scale = (amax * bits(0x3B124925) if variant.startswith("deepseek") else amax / F(448)).astype(F)
    if variant.endswith("ue8m0"):
        scale = np.ldexp(np.float64(1), power_of_two_up(scale)).astype(F)
    multiplies = variant in ("deepgemm", "deepgemm-ue8m0", "sglang")
    scaled = x * full((F(1) / scale).astype(F)) if multiplies else x / full(scale)
    return e4m3(scaled.astype(F)), scale, None


def symmetric(x, half_range, group):
    amax = np.abs(x).max().reshape(1, 1) if group == "tensor" else block_amax(x, 1, group or x.shape[1])
    scale = (amax / F(half_range)).astype(F)
    scale = np.where(scale == 0, F(2.0**-23), scale).astype(F)
    scaled = (x / (scale if group == "tensor" else spread(scale, 1, group or x.shape[1], x.shape))).astype(F)
    if half_range == 448:
        return e4m3(scaled), scale, None
    if half_range == 127.5:
        return np.rint(np.clip(scaled, -128, 127)).astype(np.int8).view(np.uint8), scale, None
    return packed(np.rint(np.clip(scaled, -8, 7)).astype(np.int8).view(np.uint8) & 0x0F), scale, None


# name: (flags of the example, function of (values, is BF16))
FORMATS = {
    "nvfp4 row": (["--format", "nvfp4"], lambda x, _: nvfp4(x, "row")),
    "nvfp4 tensor": (["--format", "nvfp4", "--scale", "tensor"], lambda x, _: nvfp4(x, "tensor")),
    "nvfp4/te-2.13": (["--format", "nvfp4", "--variant", "te-2.13"], lambda x, _: nvfp4(x, "row", te_2_13=True)),
    "mxfp8": (["--format", "mxfp8"], lambda x, _: mxfp8(x)),
    "mxfp8/ocp-floor": (["--format", "mxfp8", "--variant", "ocp-floor"], lambda x, _: mxfp8(x, "floor")),
    "mxfp8/even": (["--format", "mxfp8", "--variant", "even"], lambda x, _: mxfp8(x, "even")),
    "mxfp8/32x32": (["--format", "mxfp8", "--variant", "32x32", "--operand", "weight"], lambda x, _: mxfp8(x, rows=32)),
    "fp8-block 1x128": (["--format", "fp8-block"], lambda x, bf16: fp8_block(x, bf16, rows=1)),
    "fp8-block 128x128": (["--format", "fp8-block", "--operand", "weight"], lambda x, bf16: fp8_block(x, bf16)),
    "fp8-channel": (["--format", "fp8-channel", "--operand", "weight"], lambda x, _: symmetric(x, 448, None)),
    "int8-channel": (["--format", "int8-channel", "--operand", "weight"], lambda x, _: symmetric(x, 127.5, None)),
    "int4-group/32": (["--format", "int4-group", "--variant", "32", "--operand", "weight"], lambda x, _: symmetric(x, 7.5, 32)),
    "int4-group/128": (["--format", "int4-group", "--variant", "128", "--operand", "weight"], lambda x, _: symmetric(x, 7.5, 128)),
}
for _variant in ("power-of-two", "deepgemm", "deepgemm-ue8m0", "sglang", "sglang-divide", "deepseek", "deepseek-ue8m0"):
    FORMATS[f"fp8-block/{_variant}"] = (
        ["--format", "fp8-block", "--variant", _variant, "--operand", "weight"],
        lambda x, bf16, variant=_variant: fp8_block(x, bf16, variant),
    )

# --- the comparison --------------------------------------------------------------------------------------------------


def sources(rng, count):
    """Named matrices of at least `count` elements: (dtype in the file, stored array, values)."""
    made, elements = {}, 0
    while elements < count:
        kind = len(made) % 4
        rows, cols = (2048, 2048) if len(made) % 3 == 0 else (int(rng.integers(1, 900)), 2 * int(rng.integers(1, 2000)))
        if kind < 3:
            spreads = [np.zeros((1, 1)), rng.uniform(-40, 40, (rows, 1)), rng.uniform(-20, 20, (rows, cols))]
            x = (rng.standard_normal((rows, cols), F) * np.exp2(spreads[kind])).astype(F)
        else:
            x = rng.integers(0, 1 << 32, (rows, cols), np.uint32).view(F)
            x[~(np.abs(x) < 1e38)] = 0
        x[rng.random(rows) < 0.01] = 0
        if len(made) % 2 == 0:
            patterns = x.view(np.uint32)
            stored = ((patterns + 0x7FFF + ((patterns >> 16) & 1)) >> 16).astype(np.uint16)
            made[f"t{len(made):03}"] = ("BF16", stored, (stored.astype(np.uint32) << 16).view(F))
        else:
            made[f"t{len(made):03}"] = ("F32", x, x)
        elements += x.size
    return made


def differing_bytes(found, expected):
    expected = np.ascontiguousarray(expected)
    if found.shape != expected.shape and found.size == expected.size:
        found = found.reshape(expected.shape)
    if found.shape != expected.shape:
        sys.exit(f"shape {found.shape}, expected {expected.shape}")
    return int((np.ascontiguousarray(found).view(np.uint8) != expected.view(np.uint8)).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="the quantize example, built in release mode")
    parser.add_argument("--elements", type=float, default=1e7, help="elements per format")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), help="of: " + ", ".join(FORMATS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tally = {name: [0, 0] for name in options.formats}
    started, chunk = time.time(), 0
    scratch = "/dev/shm" if os.path.isdir("/dev/shm") else None
    while min(elements for elements, _ in tally.values()) < options.elements:
        rng = np.random.Generator(np.random.Philox(key=[options.seed, chunk]))
        data = sources(rng, min(CHUNK, options.elements))
        with tempfile.TemporaryDirectory(dir=scratch) as directory:
            save(f"{directory}/in", {name: (dtype, stored) for name, (dtype, stored, _) in data.items()})
            for name in options.formats:
                flags, oracle = FORMATS[name]
                command = [options.binary, "--input", f"{directory}/in", "--output", f"{directory}/out", *flags]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                made = load(f"{directory}/out")
                for tensor, (dtype, _, x) in data.items():
                    codes, scales, outer = oracle(x, dtype == "BF16")
                    parts = {"codes": codes, "scales": scales, "outer": outer}
                    off = [differing_bytes(made[f"{tensor}/{part}"], a) for part, a in parts.items() if a is not None]
                    tally[name][0] += x.size
                    tally[name][1] += sum(off)
        chunk += 1
        print(f"chunk {chunk}: {time.time() - started:.0f} s, {sum(off for _, off in tally.values())} bytes differ", flush=True)
    for name, (elements, off) in tally.items():
        print(f"{name:28} {elements:>13,} elements {off:>6} bytes differ")
    sys.exit(any(off for _, off in tally.values()))


main()
