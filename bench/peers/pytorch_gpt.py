#!/usr/bin/env python3
"""The PyTorch peer on the benchmark's GPT, from the command line: peers/pytorch.py without a recipe, on random tokens.

GPT-2 architecture, 6 layers, 384 wide, 6 heads, 256 tokens, batch 8 a rank, byte vocabulary, tied head
(10,844,160 parameters), fused AdamW, gradients clipped to 1.0, one pinned thread a rank. Prints one JSON
object for each (mode, dtype): median step, tokens/s of the world, peak resident memory of the largest
rank, in total and above that of importing torch.

    bench/peers/pytorch_gpt.py --mode fsdp2 --ranks 2 --dtype fp32 --dtype bf16

bf16: `none` and `ddp` run under torch.autocast with fp32 parameters; the sharded modes keep
fp32 shards and compute in bf16 by their own mixed-precision policy, with gradients reduced in
--reduce-dtype. On AMD, MKL uses AVX2 by default: --mkl-avx512 makes it use AVX-512,
and a comparison in fp32 claims only that figure.
"""
import argparse
import json
import sys

import common
from pytorch import SCRIPT, Pytorch

MODES = ("none", "ddp", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-keep", "fsdp2-compile")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, action="append", help="default: fsdp2")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), action="append", help="default: both")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15, help="timed steps; the median is reported")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the fastest is reported")
    parser.add_argument("--reduce-dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences a rank")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--mkl-avx512", action="store_true", help="AMD: have MKL use AVX-512")
    parser.add_argument("--json", metavar="FILE", help="write the results here as a JSON list too")
    arguments = parser.parse_args()
    arguments.mode = arguments.mode or ["fsdp2"]
    arguments.dtype = arguments.dtype or ["fp32", "bf16"]
    if arguments.ranks < 1 or arguments.steps < 1 or arguments.warmup < 0 or arguments.repeat < 1:
        parser.error("--ranks, --steps and --repeat must be at least 1, --warmup at least 0")
    if "none" in arguments.mode and arguments.ranks != 1:
        parser.error("mode none is one process: pass --ranks 1")
    if arguments.width % arguments.heads:
        parser.error("--heads must divide --width")
    return arguments


def job_of(arguments, mode, dtype):
    return {
        "model": {"architecture": "gpt2", "n_layer": arguments.layers, "n_head": arguments.heads, "n_embd": arguments.width,
                  "seq_len": arguments.tokens, "vocab_size": arguments.vocabulary},
        "data": {"batch_size": arguments.batch_size},
        "train": {"lr": 3e-4, "lr_schedule": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0, "seed": 1234,
                  "device": "cpu"},
        "sharding": {"reduce_dtype": arguments.reduce_dtype},
        "mode": mode.removesuffix("-compile"), "compile": mode.endswith("-compile"), "precision": dtype,
        "world_size": arguments.ranks, "steps": arguments.steps, "warmup": arguments.warmup, "rounds": arguments.repeat,
        "threads_per_rank": 1, "mkl_avx512": arguments.mkl_avx512}


def measure(arguments, mode, dtype):
    row = common.measure(Pytorch, SCRIPT, common.Job(job_of(arguments, mode, dtype)))
    if row["status"] != "measured":
        sys.exit(f"pytorch_gpt.py: mode {mode}, dtype {dtype}: {row['reason']}")
    precision = {"none": "autocast", "ddp": "autocast"}.get(
        mode, f"policy, reduce {arguments.reduce_dtype}") if dtype == "bf16" else "fp32"
    return {
        "peer": f"pytorch {row['peer']['torch']}", "mode": mode, "ranks": arguments.ranks,
        "dtype": dtype, "precision": precision, "mkl_avx512": arguments.mkl_avx512,
        "parameters": row["peer"]["parameters"], "step_ms": round(1e3 * row["step_s"]["low"], 1),
        "tokens_per_s": round(row["tokens_per_s"]["high"], 1),
        "peak_rss_mib": round(row["memory"]["measured"] / 2**20, 1),
        "above_import_mib": round(row["peer"]["above_import_bytes"] / 2**20, 1),
        "last_loss": round(row["losses"][-1], 4),
    }


def main():
    arguments = parse_arguments()
    results = []
    for mode in arguments.mode:
        for dtype in arguments.dtype:
            results.append(measure(arguments, mode, dtype))
            print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
