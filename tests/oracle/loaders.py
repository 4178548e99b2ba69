"""Reads what the `layouts` example stores with transformers, compressed-tensors and torchao, on the CPU, and compares.

    pip install torch transformers accelerate compressed-tensors torchao
    cargo run --release --example layouts -- --model tests/data/fixtures/qwen3-moe --output OUT --values
    cargo build --release --example logprobs
    python3 tests/oracle/loaders.py OUT --logprobs target/release/examples/logprobs

Per layout and loader there is one line: how many weights are those of OUT/NAME.values to the bit and how far the others
are, and how far the logits are from ours (OUT/NAME.logits.safetensors). A loader that has no code for a layout, or refuses
it, says so; only a result that is wrong makes the script fail.

| loader | what it does on a CPU |
|---|---|
| transformers | `fp8`, `mxfp8`: dequantizes while loading (products of codes need a GPU). `compressed-tensors`: dequantizes while
|              | loading, or (`run`) at the first forward, with activations quantized as the file says. ModelOpt: no loader |
| compressed-tensors | the package's own readers of block FP8, ModelOpt NVFP4 and its own formats, without a model |
| torchao | no loader of these directories: its tensor types are made from the stored parts and dequantized |

With `--logprobs`, the models of `run` are saved by transformers and read back by us: the logits have to be the same bits.

Nothing here shares code with the Rust readers and writers.
"""

import argparse
import functools
import gc
import json
import logging
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
from safetensors.torch import load_file
from tqdm import tqdm

tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")
torch.set_grad_enabled(False)

# Of the largest logit: two implementations of one forward in F32.
LOGITS = 2e-4
# Of the largest weight: torchao multiplies the two scales of NVFP4 first, and compressed-tensors keeps the reciprocal of
# the outer one, so that a weight is rounded once more than here.
TWO_SCALES = 2.0**-21


class NoLoader(Exception):
    """The program has no code for this layout."""


def tensors_of(directory):
    found = {}
    for file in sorted(directory.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def quantization(directory):
    return json.loads((directory / "config.json").read_text())["quantization_config"]


# --- transformers ----------------------------------------------------------------------------------------------------


def model_of(directory, **options):
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **options
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if report.get(key):
            raise RuntimeError(f"{key}: {sorted(map(str, report[key]))[:3]}")
    return model.eval()


def refuse_cut_blocks(directory, program):
    """A block size taken from the shape of the scales is another one where the last block is cut short."""
    if quantization(directory)["quant_method"] == "fp8":
        tensors = tensors_of(directory)
        for name in tensors:
            if name.endswith(".weight_scale_inv"):
                weight, scales = tensors[name.removesuffix("_scale_inv")], tensors[name]
                if any(extent % 128 and blocks > 1 for extent, blocks in zip(weight.shape, scales.shape)):
                    raise NoLoader(f"{program} takes {tuple(weight.shape)} in {tuple(scales.shape)} blocks for blocks of equal size")


def transformers_dequantized(directory):
    refuse_cut_blocks(directory, "transformers")
    declared = quantization(directory)
    if declared["quant_method"] == "modelopt":
        raise NoLoader("transformers has no loader of ModelOpt directories")
    if declared["quant_method"] == "compressed-tensors":
        from transformers import CompressedTensorsConfig

        return model_of(directory, quantization_config=CompressedTensorsConfig(dequantize=True))
    return model_of(directory)


def transformers_run(directory):
    if quantization(directory)["quant_method"] != "compressed-tensors":
        raise NoLoader("products of codes need a GPU")
    if any(".experts." in name for name in tensors_of(directory)):
        raise NoLoader("transformers dequantizes experts and leaves their activations as they are")
    return model_of(directory)


# --- compressed-tensors ----------------------------------------------------------------------------------------------


def compressed_tensors(directory):
    from compressed_tensors.entrypoints.convert import converters

    declared, tensors = quantization(directory), tensors_of(directory)
    method = declared["quant_method"]
    if method == "compressed-tensors":
        dense = converters.CompressedTensorsDequantizer(directory, dtype=torch.float32).validate(tensors)
    elif method == "fp8":
        from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer

        dense = FP8BlockDequantizer.from_pretrained(str(directory), dtype=torch.float32).validate(tensors)
    elif method == "modelopt" and declared["quant_algo"] == "NVFP4":
        converter = converters.ModelOptNvfp4Converter(targets=["Linear"], ignore=declared["ignore"])
        dense = unpacked(converter.validate(tensors), "weight_packed", "nvfp4-pack-quantized", "NVFP4")
    elif method == "modelopt":
        dense = unpacked(tensors, "weight_scale", "mxfp8-quantized", "MXFP8")
    else:
        raise NoLoader("compressed-tensors has no reader of `quant_method: mxfp8`")
    return dense


def unpacked(tensors, key, compression, preset):
    """Decompresses every module that has `key`."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    scheme = QuantizationScheme(targets=["Linear"], format=compression, **PRESET_SCHEMES[preset])
    compressor = BaseCompressor.get_value_from_registry(compression)
    modules = {name.removesuffix(f".{key}") for name in tensors if name.endswith(f".{key}")}
    dense = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if module not in modules or part == "bias":
            dense[name] = tensor
        elif part == "weight_packed":
            # What its `decompress` does, which knows no number type but BF16.
            rows, half = tensor.shape
            codes = unpack_fp4_from_uint8(tensor, rows, 2 * half, dtype=torch.float32)
            scale, outer = tensors[f"{module}.weight_scale"].float(), tensors[f"{module}.weight_global_scale"]
            dense[f"{module}.weight"] = dequantize(codes, scale, args=scheme.weights, global_scale=outer, dtype=torch.float32)
        elif part == key:
            parts = {part: tensors[f"{module}.{part}"] for part in ("weight", "weight_scale")}
            dense[f"{module}.weight"] = compressor.decompress(parts, scheme)["weight"]
    return dense


# --- torchao ---------------------------------------------------------------------------------------------------------


def torchao(directory):
    refuse_cut_blocks(directory, "a Float8Tensor of torchao")
    tensors, dense = tensors_of(directory), {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        own = lambda part: tensors.get(f"{module}.{part}")
        if part in ("weight", "weight_packed") and any(own(f"weight_{kind}") is not None for kind in ("scale", "scale_inv")):
            dense[f"{module}.weight"] = torchao_tensor(own).dequantize()
        elif not part.startswith(("weight_", "input_scale")):
            dense[name] = tensor
    return dense


def torchao_tensor(part):
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import Float8Tensor, IntxUnpackedToInt8Tensor
    from torchao.quantization.quantize_.common import KernelPreference

    codes, scale = part("weight"), part("weight_scale")
    scale_inv = part("weight_scale_inv")
    if scale_inv is not None and scale_inv.dtype == torch.uint8 or scale is not None and scale.dtype == torch.uint8:
        e8m0 = (scale if scale_inv is None else scale_inv).view(torch.float8_e8m0fnu)
        return MXTensor(codes, e8m0, codes.dtype, 32, torch.float32, KernelPreference.EMULATED, None, False)
    if scale_inv is not None:
        block = [codes.shape[0] // scale_inv.shape[0], codes.shape[1] // scale_inv.shape[1]]
        return Float8Tensor(codes, scale_inv, block_size=block, dtype=torch.float32)
    if part("weight_scale_2") is not None:
        return NVFP4Tensor(codes, scale, 16, torch.float32, per_tensor_scale=part("weight_scale_2"))
    if codes is not None and codes.dtype == torch.float8_e4m3fn:
        block = [codes.shape[0] // scale.shape[0], codes.shape[1]]
        return Float8Tensor(codes, scale.reshape(-1, 1), block_size=block, dtype=torch.float32)
    if codes is None:
        rows, cols = part("weight_shape").tolist()
        words = part("weight_packed")
        nibbles = torch.stack([(words >> (4 * at)) & 0xF for at in range(8)], dim=-1)
        codes, target = (nibbles.reshape(rows, cols) - 8).to(torch.int8), torch.int4
    else:
        (rows, cols), target = codes.shape, torch.int8
    return IntxUnpackedToInt8Tensor(
        qdata=codes,
        scale=scale,
        zero_point=torch.zeros_like(scale, dtype=torch.int8),
        target_dtype=target,
        block_size=(1, cols // scale.shape[1]),
        dtype=torch.float32,
        activation_quantization=None,
    )


# --- comparison ------------------------------------------------------------------------------------------------------


def compare_weights(found, expected):
    """Equal tensors, all tensors, and the largest difference of the others in parts of the tensor's largest weight."""
    if set(found) != set(expected):
        raise RuntimeError(f"other tensors: {sorted(set(found) ^ set(expected))[:3]}")
    equal, worst = 0, 0.0
    for name, want in expected.items():
        have, want = found[name].float(), want.float()
        if have.shape != want.shape:
            raise RuntimeError(f"{name}: {tuple(have.shape)}, expected {tuple(want.shape)}")
        if torch.equal(have.view(torch.int32), want.view(torch.int32)):
            equal += 1
        else:
            worst = max(worst, ((have - want).abs().max() / want.abs().max()).item())
    return equal, len(expected), worst


def logits_of(model, ids):
    return model(input_ids=ids, use_cache=False).logits.float()


def line(what, verdict, text):
    print(f"{what:40} {verdict:8} {text}", flush=True)
    return verdict == "WRONG"


def saved(model, output, name, logprobs, expected):
    """Whether a model that transformers saves is, for our reader, the one that it was loaded from."""
    with tempfile.TemporaryDirectory() as scratch:
        theirs, result = pathlib.Path(scratch) / "theirs", pathlib.Path(scratch) / "result.safetensors"
        model.save_pretrained(theirs)
        ids = output / f"{name}.logits.safetensors"
        command = [logprobs, "--model", theirs, "--input", ids, "--output", result, "--activations", "f32"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return line(f"{name} saved by transformers", "WRONG", done.stderr.strip().splitlines()[-1])
        equal = torch.equal(load_file(result)["logits"], expected)
        return line(f"{name} saved by transformers", "ok" if equal else "WRONG", f"read by us, the same logits: {equal}")


def check(output, name, logprobs):
    directory, values = output / name, output / f"{name}.values"
    ours = load_file(output / f"{name}.logits.safetensors")
    ids, expected = ours["input_ids"].long(), ours["logits"]
    largest = expected.abs().max().item()
    reference = model_of(values) if values.is_dir() else None
    wrong = 0
    if reference is not None:
        far = (logits_of(reference, ids) - expected).abs().max().item() / largest
        wrong += line(f"{name} our values", "ok" if far <= LOGITS else "WRONG", f"logits differ by {far:.1e}")

    groups = quantization(directory).get("config_groups", {}).values()
    run = "logits_of_codes" if any(group["input_activations"] for group in groups) else "logits"
    for loader, wanted in ((transformers_dequantized, "logits"), (transformers_run, run)):
        what = f"{name} {loader.__name__.replace('_', ' ')}"
        try:
            model = loader(directory)
            if logprobs and loader is transformers_run:
                wrong += saved(model, output, name, logprobs, ours["logits_of_codes"])
            logits = logits_of(model, ids)
        except NoLoader as reason:
            line(what, "none", str(reason))
            continue
        except Exception as error:
            line(what, "refused", f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:150]}")
            continue
        far, parted = (logits - ours[wanted]).abs().amax(-1) / ours[wanted].abs().max(), False
        if wanted == "logits":
            text, good = f"logits differ by {far.max().item():.1e}", far.max().item() <= LOGITS
        else:
            # Where an activation lies on the midpoint of two codes, a sum that differs in its last bit moves the code,
            # and with it every later layer and position: two implementations part there, in a deep model everywhere.
            # So the first positions decide, and what is further away than activations that are not quantized at all.
            effect = (ours["logits"] - ours[wanted])[:, 0].norm(dim=-1)
            share = ((logits - ours[wanted])[:, 0].norm(dim=-1) / effect).max().item()
            near = (far <= LOGITS).sum().item()
            text = f"logits of {near} of {far.numel()} positions differ by less than {LOGITS:.0e}, those of the first by "
            text, good = text + f"{share:.1e} of what quantized activations change", share <= 1
            parted = good and far[:, 0].max().item() > LOGITS
        if reference is not None and loader is transformers_dequantized:
            equal, count, worst = compare_weights(model.state_dict(), reference.state_dict())
            text, good = f"{equal} of {count} weights equal; {text}", good and equal == count
        wrong += line(what, "WRONG" if not good else "parted" if parted else "ok", text)
        del model
        gc.collect()

    if reference is None:
        return wrong
    expected_weights = tensors_of(values)
    limit = TWO_SCALES if name == "nvfp4" else 0.0
    for loader in (compressed_tensors, torchao):
        what = f"{name} {loader.__name__.replace('_', '-')}"
        try:
            equal, count, worst = compare_weights(loader(directory), expected_weights)
        except NoLoader as reason:
            line(what, "none", str(reason))
            continue
        except Exception as error:
            line(what, "refused", f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:150]}")
            continue
        text = f"{equal} of {count} weights equal" + ("" if equal == count else f", the others within {worst:.1e}")
        wrong += line(what, "ok" if worst <= limit else "WRONG", text)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path, help="what the `layouts` example made")
    parser.add_argument("layouts", nargs="*", help="layouts by name; all of them when left out")
    parser.add_argument("--logprobs", help="the `logprobs` example, to read what transformers saves")
    options = parser.parse_args()
    names = options.layouts or sorted(
        path.name for path in options.output.iterdir() if path.is_dir() and not path.name.endswith(".values")
    )
    if not names:
        sys.exit(f"{options.output}: no layouts here")
    if any([check(options.output, name, options.logprobs) for name in names]):
        sys.exit("some loader read something else than what was stored")


if __name__ == "__main__":
    main()
