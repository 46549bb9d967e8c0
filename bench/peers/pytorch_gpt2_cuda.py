#!/usr/bin/env python3
"""The PyTorch peer on a GPU: the GPT-2 that bench/cuda_training_bench times, trained by PyTorch on one GPU.

Tied head, learned positions, tanh GELU, scaled_dot_product_attention, bf16 parameters of the forward by autocast over
fp32 masters, fused AdamW, gradients clipped to 1.0. Prints one JSON object and appends it to --json FILE: median step,
tokens/s, peak memory, and both conventions of MFU (cuda_training_bench.cpp has them).

    bench/peers/pytorch_gpt2_cuda.py --model 124M --batch 32 [--compile]
"""
import argparse
import json
import statistics
import time

import language_models
import torch

SIZES = {"124M": (12, 768, 12), "350M": (24, 1024, 16), "774M": (36, 1280, 20), "1.5B": (48, 1600, 25)}
VOCABULARY = 50304  # padded to a multiple of 64, as trainers do
WARM_UP = 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=SIZES, default="124M")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=8, help="the median leaves out the first two")
    parser.add_argument("--peak-tflops", type=float, default=989)
    parser.add_argument("--compile", action="store_true", help="torch.compile: faster, after a minute or more")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    if min(arguments.batch, arguments.seq_len) < 1 or arguments.steps <= WARM_UP:
        parser.error(f"--batch and --seq-len must be positive, --steps more than {WARM_UP}")
    return arguments


def train(arguments, model):
    """Seconds of every step, and the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    forward = torch.compile(model) if arguments.compile else model
    seconds, loss = [], None
    for step in range(arguments.steps):
        ids = torch.randint(0, VOCABULARY, (arguments.batch, arguments.seq_len), device="cuda",
                            generator=torch.Generator("cuda").manual_seed(step))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(ids, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()  # waits
        seconds.append(time.perf_counter() - begin)
    return seconds, loss


def main():
    arguments = parse_arguments()
    layers, width, heads = SIZES[arguments.model]
    torch.manual_seed(1)
    with torch.device("cuda"):
        model, _ = language_models.make({"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads,
                                         "vocab_size": VOCABULARY, "n_positions": arguments.seq_len})
    seconds, loss = train(arguments, model)
    step = statistics.median(seconds[WARM_UP:])
    tokens = arguments.batch * arguments.seq_len / step
    parameters = sum(parameter.numel() for parameter in model.parameters())

    def mfu(attention):
        flops = 6 * parameters + attention * layers * width * arguments.seq_len
        return tokens * flops / (arguments.peak_tflops * 1e12)

    row = {"peer": f"PyTorch {torch.__version__}", "model": arguments.model, "device": torch.cuda.get_device_name(),
           "batch": arguments.batch, "seq_len": arguments.seq_len, "dtype": "bfloat16 by autocast",
           "compiled": arguments.compile, "step_s": step, "tokens_per_s": tokens, "mfu_12lct": mfu(12),
           "mfu_causal_6lct": mfu(6), "peak_bytes": torch.cuda.max_memory_allocated(), "loss": loss}
    line = json.dumps(row)
    print(line)
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
