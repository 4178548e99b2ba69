"""Writes golden.safetensors: the part of tests/data/golden that the conformance suite carries.

Run from anywhere, without packages: python3 make_golden.py
Bytes are copied, never computed. Keys of the result:

    input/CASE                                          BF16 or F32 [rows, cols]
    CASE|FORMAT|OPERAND|AXIS|SCOPE|PART                 PART: codes, scales, outer or amax
    PAIR|FORMAT|OPERAND|AXIS|SCOPE|{gate,up}.PART       quantized jointly; input/PAIR.gate and input/PAIR.up
"""

import json
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parents[2] / "tests" / "data" / "golden"

# Small cases that between them hold ties, non-finite values, signed zeros, subnormals, saturating outer scales, short
# blocks; two larger ones that the variants are defined on too, and one of whole 32x32 tiles.
CASES = ["e2m1_ties", "e2m1_ties_pm", "inf", "nan", "neg_zero", "bf16_subnormal", "f32_subnormal", "tiny_rows",
         "ragged_k40", "ragged_k200", "bf16_max", "zero_blocks", "row_magnitudes"]
PAIRS = ["gateup0", "gateup2"]

# (file, prefix, part) -> (format, operand, axis, scope, part); prefixes of several formats are spelt out.
SPECS = {
    "nvfp4": {
        "row": ("nvfp4", "activation", "row", "row"),
        "ten": ("nvfp4", "weight", "row", "tensor"),
        "col": ("nvfp4", "activation", "column", "row"),
        "tencol": ("nvfp4", "weight", "column", "tensor"),
        "w2d": ("nvfp4/16x16", "weight", "row", "tensor"),
    },
    "mxfp8": {
        "row": ("mxfp8", "activation", "row", "row"),
        "col": ("mxfp8", "activation", "column", "row"),
        "w2d": ("mxfp8/32x32", "weight", "row", "tensor"),
    },
    "blockfp8": {
        "act_f32": ("fp8-block", "activation", "row", "row"),
        "wt_f32": ("fp8-block", "weight", "row", "tensor"),
        "act_p2": ("fp8-block/power-of-two", "activation", "row", "row"),
        "wt_p2": ("fp8-block/power-of-two", "weight", "row", "tensor"),
    },
    "variants": {
        "mx_floor": ("mxfp8/ocp-floor", "activation", "row", "row"),
        "mx_even": ("mxfp8/even", "activation", "row", "row"),
        "nv_te213": ("nvfp4/te-2.13", "weight", "row", "tensor"),
        "fp8_dg_act_f32": ("fp8-block/deepgemm", "activation", "row", "row"),
        "fp8_dg_wt_f32": ("fp8-block/deepgemm", "weight", "row", "tensor"),
        "fp8_dg_act_ue8m0": ("fp8-block/deepgemm-ue8m0", "activation", "row", "row"),
        "fp8_dg_wt_ue8m0": ("fp8-block/deepgemm-ue8m0", "weight", "row", "tensor"),
        "fp8_sgl_act": ("fp8-block/sglang", "activation", "row", "row"),
        "fp8_sgl_wt": ("fp8-block/sglang", "weight", "row", "tensor"),
        "fp8_div_act": ("fp8-block/sglang-divide", "activation", "row", "row"),
        "fp8_div_wt": ("fp8-block/sglang-divide", "weight", "row", "tensor"),
    },
}
for error in ("mae", "mse"):
    for largest in ("448", "256"):
        name = f"nvfp4/four-over-six-{error}-{largest}"
        SPECS["variants"][f"nv_4o6_row_{error}_{largest}"] = (name, "activation", "row", "row")
        SPECS["variants"][f"nv_4o6_ten_{error}_{largest}"] = (name, "weight", "row", "tensor")

PARTS = {"codes": "codes", "scales": "scales", "scale": "scales", "scale_inv": "scales", "amax": "amax",
         "token_scale": "outer", "scale_2": "outer", "codes_t": "codes", "scale_inv_t": "scales"}


def read(name):
    """{key: (dtype, shape, bytes)} of one golden file."""
    data = (GOLDEN / f"{name}.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {key: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for key, t in header.items()}


def write(tensors):
    header, body = {}, b""
    # By falling alignment, as safetensors writers do.
    size = {"F32": 4, "BF16": 2, "U8": 1}
    for key in sorted(tensors, key=lambda key: (-size[tensors[key][0]], key)):
        dtype, shape, data = tensors[key]
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (HERE / "golden.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    out = {}
    inputs = read("inputs")
    for case in CASES:
        out[f"input/{case}"] = inputs[f"{case}/input"]
    for file, specs in SPECS.items():
        for key, tensor in read(file).items():
            case, field = key.split("/", 1)
            prefix, _, part = field.partition(".")
            if case not in CASES or prefix not in specs or part not in PARTS:
                continue
            form, operand, axis, scope = specs[prefix]
            if part.endswith("_t"):
                axis = "column"
            out["|".join([case, form, operand, axis, scope, PARTS[part]])] = tensor
    variants = read("variants")
    for pair in PAIRS:
        for half in ("gate", "up"):
            out[f"input/{pair}.{half}"] = variants[f"{pair}/{half}.input"]
            spec = "|".join([pair, "nvfp4", "weight", "row", "tensor", half])
            for part in ("codes", "scales"):
                out[f"{spec}.{part}"] = variants[f"{pair}/{half}.{part}"]
            out[f"{spec}.amax"] = variants[f"{pair}/amax"]
            out[f"{spec}.outer"] = variants[f"{pair}/scale_2"]
    write(out)


main()
