#!/usr/bin/env python3
"""How fast torchao and ml_dtypes quantize one weight on this machine's CPU, for the bench of miles to stand beside.

    pip install torch torchao ml_dtypes numpy        # torch.compile also needs a C++ compiler
    cargo run --release -p miles-backend-cpu-ref --example quantize_rates -- python

The bench starts this program as `quantize_peers.py FILE ROWS COLS THREADS`; FILE holds ROWS x COLS little-endian BF16. For every
line on standard input each peer does its work once, and one JSON line goes out: a list of [name, bytes in + out, seconds]. The
first round compiles and does not count.

torchao's functions are its own reference formulas under torch.compile, on THREADS threads:

- `mxfp8`: `to_mx`, round-up scales. `nvfp4`: `nvfp4_quantize` with the scale of the tensor's amax, which is computed too.
- `fp8 128x128` and `fp8 1x128`: the block FP8 functions of its training prototype (their GPU twins are what it ships).

ml_dtypes casts run on one thread and convert elements only: no scales, no blocks, one byte per E2M1 code.
"""

import json
import sys
import time

import ml_dtypes
import numpy as np
import torch
import torchao
from torchao.prototype.blockwise_fp8_training.kernels import (
    torch_blockwise_scale_act_quant_lhs,
    torch_blockwise_scale_weight_quant,
)
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale


def mxfp8(x):
    return to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)


def nvfp4(x):
    return nvfp4_quantize(x, per_tensor_scale=per_tensor_amax_to_scale(torch.amax(torch.abs(x))))


def torchao_peers(x):
    functions = {
        "mxfp8 1x32": mxfp8,
        "nvfp4 per tensor": nvfp4,
        "fp8-block 128x128": torch_blockwise_scale_weight_quant,
        "fp8-block 1x128": torch_blockwise_scale_act_quant_lhs,
    }
    for name, function in functions.items():
        compiled = torch.compile(function)
        yield f"torchao {torchao.__version__} {name}", lambda compiled=compiled: compiled(x)


def cast_peers(x):
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn):
        name = np.dtype(dtype).name
        yield f"ml_dtypes {ml_dtypes.__version__} cast to {name}", lambda dtype=dtype: (x.astype(dtype),)


def main():
    path, rows, cols, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    weight = np.fromfile(path, dtype=np.uint16).reshape(rows, cols)
    x = torch.from_numpy(weight.view(np.int16)).view(torch.bfloat16)
    peers = [*torchao_peers(x), *cast_peers(weight.view(ml_dtypes.bfloat16))]
    for _ in sys.stdin:
        figures = []
        with torch.no_grad():
            for name, work in peers:
                start = time.perf_counter()
                made = work()
                seconds = time.perf_counter() - start
                figures.append([name, weight.nbytes + sum(part.nbytes for part in made), seconds])
                del made
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
