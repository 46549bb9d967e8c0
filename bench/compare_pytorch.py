#!/usr/bin/env python3
"""Tessera and PyTorch FSDP2 side by side: the same GPT, 2 ranks of one thread, in turns in one run.

    PYTHON bench/compare_pytorch.py [--rounds 3] [--json FILE]      # PYTHON has torch: see scripts/judges

Each round times PyTorch (bench/peers/pytorch_gpt.py) and `tessera train` on the same model: 6 layers, 384 wide, 6 heads,
256 tokens, batch 8 a rank, byte vocabulary, tied head, AdamW, clipping, FULL_SHARD; with --model gpt2-124m 12 layers, 768
wide, 12 heads, 512 tokens, batch 2 a rank, a vocabulary of 50,304. Prints tokens/s (medians over steps, then over rounds),
the largest rank's peak resident memory, and the ratios. On AMD, pass --mkl-avx512. --before PROGRAM times another build
of `tessera` in the same turns; --no-peer leaves PyTorch out and works with any Python.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench/peers"))
from common import processor  # noqa: E402

MODELS = {
    "gpt-10m": {"layers": 6, "heads": 6, "width": 384, "tokens": 256, "vocabulary": 256, "batch-size": 8},
    "gpt2-124m": {"layers": 12, "heads": 12, "width": 768, "tokens": 512, "vocabulary": 50304, "batch-size": 2},
}


def recipe_of(model):
    sizes = MODELS[model]
    return {
        "model": {"architecture": "gpt2", "n_layer": sizes["layers"], "n_head": sizes["heads"], "n_embd": sizes["width"],
                  "seq_len": sizes["tokens"], "vocab_size": sizes["vocabulary"]},
        "data": {"batch_size": sizes["batch-size"]},
        "train": {"lr": 3.0e-4, "lr_schedule": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0},
        "sharding": {"sharding_strategy": "FULL_SHARD"},
    }


def run_peer(dtype, arguments):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, str(ROOT / "bench/peers/pytorch_gpt.py"), "--mode", "fsdp2", "--ranks", "2", "--dtype",
                   dtype, "--steps", str(arguments.steps), "--json", out.name]
        for size, value in MODELS[arguments.model].items():
            command += [f"--{size}", str(value)]
        if arguments.mkl_avx512:
            command.append("--mkl-avx512")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        row = json.loads(pathlib.Path(out.name).read_text(encoding="utf-8"))[0]
    return {"tokens_per_s": row["tokens_per_s"], "peak_mib": row["peak_rss_mib"]}


def run_tessera(program, dtype, arguments, folder):
    text = folder / "text"
    if not text.exists():
        text.write_bytes(bytes((i * 131 + i // 7) % 256 for i in range(1 << 20)))
    recipe = folder / "recipe.json"  # JSON is YAML
    recipe.write_text(json.dumps(recipe_of(arguments.model)), encoding="utf-8")
    metrics = folder / f"{dtype}.jsonl"
    metrics.unlink(missing_ok=True)
    steps = arguments.steps + 3
    subprocess.run([program, "launch", "--nproc-per-node", "2", "--", program, "train", str(recipe),
                    "--set", f"data.train={text}", "--set", f"train.steps={steps}",
                    "--set", f"sharding.mixed_precision={'bf16' if dtype == 'bf16' else 'no'}",
                    "--set", f"log.jsonl={metrics}"], check=True, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return {"tokens_per_s": statistics.median(row["tokens_per_s"] for row in rows[3:]),
            "step_s": statistics.median(row["step_s"] for row in rows[3:]), "peak_mib": rows[-1]["peak_bytes"] / 2**20,
            "exposed_share": statistics.median(row["exposed_comm_s"] / row["step_s"] for row in rows[3:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", choices=MODELS, default="gpt-10m")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), action="append", help="default: both")
    parser.add_argument("--mkl-avx512", action="store_true")
    parser.add_argument("--tessera", default=str(ROOT / "build/tessera"), help="the program (default: build/tessera)")
    parser.add_argument("--before", metavar="PROGRAM", help="another build of the program, timed in the same turns")
    parser.add_argument("--no-peer", action="store_true", help="without PyTorch")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results = {"machine": processor(), "command": " ".join(["bench/compare_pytorch.py", *sys.argv[1:]]),
               "model": arguments.model, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in arguments.dtype or ("fp32", "bf16"):
            runs = {"pytorch": lambda: run_peer(dtype, arguments),
                    "before": lambda: run_tessera(arguments.before, dtype, arguments, pathlib.Path(folder)),
                    "tessera": lambda: run_tessera(arguments.tessera, dtype, arguments, pathlib.Path(folder))}
            if arguments.no_peer:
                del runs["pytorch"]
            if not arguments.before:
                del runs["before"]
            of = {name: [] for name in runs}
            for _ in range(arguments.rounds):
                for name, run in runs.items():
                    of[name].append(run())
            row = {"dtype": dtype}
            for name, rounds in of.items():
                for key in rounds[0]:
                    row[f"{name}_{key}"] = statistics.median(one[key] for one in rounds)
            line = f"{dtype}: Tessera {row['tessera_tokens_per_s']:.0f} tokens/s, {row['tessera_peak_mib']:.0f} MiB"
            for name, label in (("pytorch", "PyTorch FSDP2"), ("before", "before")):
                if name in of:
                    row[f"speed_ratio_to_{name}"] = row["tessera_tokens_per_s"] / row[f"{name}_tokens_per_s"]
                    row[f"memory_ratio_to_{name}"] = row["tessera_peak_mib"] / row[f"{name}_peak_mib"]
                    line += (f"; {label} {row[f'{name}_tokens_per_s']:.0f} tokens/s, {row[f'{name}_peak_mib']:.0f} MiB; "
                             f"speed {row[f'speed_ratio_to_{name}']:.2f}, memory {row[f'memory_ratio_to_{name}']:.2f}")
            results["rows"].append(row)
            print(line, flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
