"""The three low-precision formats in numpy, as simply as their arithmetic allows.

An independent witness for `linear.safetensors`: written from the arithmetic contract, sharing nothing with the Rust quantizers.
Every function takes float32 `[rows, cols]` and quantizes blocks along the columns (transpose first for a column copy). A width
that is no multiple of the block counts as zero padded. All intermediates are float32, round to nearest even, no fused
multiply-add, subnormals kept, which is what numpy does with float32 arrays.

Run `python quantizers.py GOLDEN_DIR` to compare codes, scales and dequantized values with golden vectors, byte by byte.
"""

import pathlib
import sys

import numpy as np

F32 = np.float32
F32_MAX = np.finfo(np.float32).max
ONE_SIXTH = np.uint32(0x3E2AAAAB).view(np.float32)
ONE_448TH = np.uint32(0x3B124925).view(np.float32)
ONE_2688TH = np.uint32(0x39C30C31).view(np.float32)

E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)
# Codes 0x00..0x7E: eight subnormals of 2^-9, then 1.mantissa * 2^(exponent - 7).
E4M3_VALUES = np.array(
    [m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127], F32
)


def _encode_nearest_even(x, values, nan_code, sign_bit):
    """Codes of the nearest magnitudes in `values`, ties to the even code, saturating; the sign of zero is kept."""
    magnitude = np.abs(x)
    midpoints = (values[:-1] + values[1:]) / 2  # exact: one more significant bit than a value has
    low = np.searchsorted(midpoints, magnitude, side="left")
    high = np.searchsorted(midpoints, magnitude, side="right")
    code = np.where(low % 2 == 0, low, high) | np.where(np.signbit(x), sign_bit, 0)
    return np.where(np.isnan(x), nan_code, code).astype(np.uint8)


def e4m3_encode(x):
    return _encode_nearest_even(x, E4M3_VALUES, 0x7F, 0x80)


def e4m3_decode(code):
    table = np.append(E4M3_VALUES, F32(np.nan))
    return np.where(code & 0x80, F32(-1), F32(1)) * table[code & 0x7F]


def e2m1_encode(x):
    return _encode_nearest_even(x, E2M1_VALUES, 7, 8)


def e2m1_decode(code):
    return np.where(code & 8, F32(-1), F32(1)) * E2M1_VALUES[code & 7]


def bf16_round(x):
    """float32 rounded to BF16 (nearest even), still held as float32."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(F32)
    return np.where(np.isnan(x), F32(np.nan), rounded)


def _amax(x, axis):
    """Largest magnitude, NaN ignored, at least +0."""
    return np.max(np.where(np.isnan(x), F32(0), np.abs(x)), axis=axis, initial=F32(0))


def _blocks(x, block):
    """`[rows, cols]` as `[rows, ceil(cols / block), block]`, zero padded."""
    rows, cols = x.shape
    padded = np.zeros((rows, -(-cols // block) * block), F32)
    padded[:, :cols] = x
    return padded.reshape(rows, -1, block)


def _flat(blocks, cols):
    return blocks.reshape(blocks.shape[0], -1)[:, :cols]


class Nvfp4:
    """E2M1 codes, one E4M3 scale per 16 columns, one FP32 outer scale per row (`scope="row"`) or for all (`"tensor"`)."""

    def __init__(self, x, scope):
        self.cols = x.shape[1]
        blocks = _blocks(x, 16)
        amax = _amax(x, axis=1)[:, None] if scope == "row" else np.full((x.shape[0], 1), _amax(x, axis=None), F32)
        with np.errstate(all="ignore"):
            encode = np.minimum(F32(2688) / amax, F32_MAX)
            encode = np.where((amax == 0) | (encode == 0), F32(1), encode)
            zero_decode = F32(0) if scope == "row" else F32(1) / F32_MAX
            self.decode = np.where(amax == 0, zero_decode, F32(1) / encode)
            multiplier = encode * ONE_SIXTH
            self.scale_codes = e4m3_encode(np.minimum(_amax(blocks, axis=2) * multiplier, F32_MAX))
            self.scales = e4m3_decode(self.scale_codes)
            inverse = np.minimum(F32(1) / (self.scales * (F32(1) / encode)), F32_MAX)
            self.code_blocks = e2m1_encode(blocks * inverse[..., None])
        self.amax = amax

    def codes(self):
        return _flat(self.code_blocks, self.cols)

    def exact(self):
        """code * block scale * outer decode scale, in float64 without any rounding."""
        products = e2m1_decode(self.code_blocks).astype(np.float64) * self.scales.astype(np.float64)[..., None]
        return _flat(products, self.cols) * self.decode.astype(np.float64)

    def dequantized(self):
        """BF16 values that the `dequantized` backward mode multiplies: bf16(code * ((scale * amax) * (1/2688)))."""
        with np.errstate(all="ignore"):
            full = (self.scales * self.amax) * ONE_2688TH
            return bf16_round(_flat(e2m1_decode(self.code_blocks) * full[..., None], self.cols))


class Mxfp8:
    """E4M3 codes, one E8M0 (power of two) scale per 32 columns, rounded up."""

    def __init__(self, x):
        self.cols = x.shape[1]
        blocks = _blocks(x, 32)
        with np.errstate(all="ignore"):
            target = _amax(blocks, axis=2) * ONE_448TH
            bits = target.view(np.uint32)
            exponent, mantissa = (bits >> 23).astype(np.int64), bits & 0x7FFFFF
            up = np.where(exponent == 0, mantissa > 0x400000, mantissa != 0)
            self.scale_codes = np.minimum(exponent + up, 254).astype(np.uint8)
            inverse = np.ldexp(1.0, 127 - self.scale_codes.astype(np.int64)).astype(F32)
            self.code_blocks = e4m3_encode(blocks * inverse[..., None])

    def codes(self):
        return _flat(self.code_blocks, self.cols)

    def exact(self):
        scales = np.ldexp(1.0, self.scale_codes.astype(np.int64) - 127)
        return _flat(e4m3_decode(self.code_blocks).astype(np.float64) * scales[..., None], self.cols)

    def dequantized(self):
        with np.errstate(all="ignore"):
            return bf16_round(self.exact().astype(F32))


class Fp8Block:
    """E4M3 codes with FP32 scales: one per 128 columns of a row (`tile_rows=1`) or per 128x128 tile (`tile_rows=128`).

    `saturated` is the encode scale where 448 / amax overflows: the largest finite value of the dtype that `x` came in."""

    def __init__(self, x, tile_rows, saturated=np.uint32(0x7F7F0000).view(F32)):
        self.cols = x.shape[1]
        blocks = _blocks(x, 128)
        tile = np.arange(x.shape[0]) // tile_rows
        block_amax = _amax(blocks, axis=2)
        amax = np.stack([block_amax[tile == t].max(axis=0) for t in range(tile[-1] + 1)])
        with np.errstate(all="ignore"):
            encode = F32(448) / amax
            encode = np.where(np.isinf(encode), saturated, encode)
            encode = np.where((amax == 0) | np.isinf(amax), F32(1), encode)
            self.scale_inverses = F32(1) / encode
            self.code_blocks = e4m3_encode(blocks * encode[tile][..., None])
        self.row_scales = self.scale_inverses[tile]

    def codes(self):
        return _flat(self.code_blocks, self.cols)

    def exact(self):
        return _flat(
            e4m3_decode(self.code_blocks).astype(np.float64) * self.row_scales.astype(np.float64)[..., None], self.cols
        )

    def dequantized(self):
        with np.errstate(all="ignore"):
            return bf16_round(_flat(e4m3_decode(self.code_blocks) * self.row_scales[..., None], self.cols))


def compare_with_golden(folder):
    """Print how many golden tensors agree byte for byte; exit 1 on the first that does not."""
    import torch
    from safetensors.torch import load_file

    folder, checked = pathlib.Path(folder), 0
    inputs = load_file(folder / "inputs.safetensors")
    golden = load_file(folder / "nvfp4.safetensors") | load_file(folder / "blockfp8.safetensors")
    golden |= {name.replace("/", "/mx_"): t for name, t in load_file(folder / "mxfp8.safetensors").items()}

    def check(name, found):
        nonlocal checked
        if name not in golden:
            return
        want = golden[name]
        if want.dtype == torch.bfloat16:
            # Only NaN payloads are free in a dequantized tensor.
            want = want.float().numpy()
            same = np.array_equal(found, want, equal_nan=True) and np.array_equal(np.signbit(found), np.signbit(want))
        else:
            same = np.ascontiguousarray(found).tobytes() == want.numpy().tobytes()
        if not same:
            sys.exit(f"{name}: differs from the golden vector")
        checked += 1

    pack = lambda codes: codes[:, 0::2] | (codes[:, 1::2] << 4)
    for key, tensor in inputs.items():
        case = key.rsplit("/", 1)[0]
        x = tensor.float().numpy()
        if x.ndim != 2:
            continue
        saturated = F32_MAX if tensor.dtype == torch.float32 else np.uint32(0x7F7F0000).view(F32)
        transposed = np.ascontiguousarray(x.T)
        for prefix, source, scope in (
            ("row", x, "row"), ("ten", x, "tensor"), ("col", transposed, "row"), ("tencol", transposed, "tensor"),
        ):
            if source.shape[1] % 2 == 0:
                q = Nvfp4(source, scope)
                check(f"{case}/{prefix}.codes", q.codes()[:, 0::2] | (q.codes()[:, 1::2] << 4))
                check(f"{case}/{prefix}.scales", q.scale_codes)
                check(f"{case}/{prefix}.dq_bf16", q.dequantized())
                check(f"{case}/{prefix}.token_scale", q.decode[:, 0])
                check(f"{case}/{prefix}.scale_2", q.decode[:1, 0])
        row, column = Mxfp8(x), Mxfp8(transposed)
        # MXFP8 column codes stay in the layout of the input; the other formats store the transpose.
        check(f"{case}/mx_row.codes", row.codes())
        check(f"{case}/mx_row.scales", row.scale_codes)
        check(f"{case}/mx_row.dq_bf16", row.dequantized())
        check(f"{case}/mx_col.codes", column.codes().T)
        check(f"{case}/mx_col.scales", column.scale_codes.T)
        for part, rows in (("act", 1), ("wt", 128)):
            q = Fp8Block(x, rows, saturated)
            check(f"{case}/{part}_f32.codes", q.codes())
            check(f"{case}/{part}_f32.scale_inv", q.scale_inverses)
            check(f"{case}/{part}_f32.dq_bf16", q.dequantized())
            t = Fp8Block(transposed, rows, saturated)
            check(f"{case}/{part}_f32.codes_t", t.codes())
            check(f"{case}/{part}_f32.scale_inv_t", t.scale_inverses)
    print(f"{checked} golden tensors equal")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    compare_with_golden(sys.argv[1])
