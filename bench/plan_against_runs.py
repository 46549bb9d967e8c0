#!/usr/bin/env python3
"""The predicted time of a step against the measured one, on this machine's CPUs.

    python3 bench/plan_against_runs.py [--program build/tessera] [--cluster FILE] [--json FILE]

Calibrates (or takes a given cluster file), then plans and runs each recipe below with one rank and with two,
in turns, and prints predicted and measured step times, their medians over the steps after the first three, and the error.
Exit code 1: an error is larger than --within. Nothing else should run meanwhile: it takes about three minutes on two cores.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = "/usr/share/common-licenses/GPL-3"
GPT = {"model.architecture": "gpt2", "model.n_head": 6, "model.n_embd": 384, "model.seq_len": 256, "data.batch_size": 8}
# name, recipe, settings, ranks, strategies
ROWS = [
    ("gpt2-bytes", "examples/gpt2-bytes.yaml", {}, 1, ["NO_SHARD"]),
    ("gpt2-bytes", "examples/gpt2-bytes.yaml", {}, 2, ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"]),
    ("gpt2-bytes, bf16", "examples/gpt2-bytes.yaml", {"sharding.mixed_precision": "bf16"}, 2, ["FULL_SHARD"]),
    ("gpt2-bytes, recomputed", "examples/gpt2-bytes.yaml", {"sharding.activation_checkpointing": "true"}, 2, ["FULL_SHARD"]),
    ("gpt 6 x 384", "examples/gpt2-bytes.yaml", GPT, 2, ["FULL_SHARD"]),
    ("llama-bytes", "examples/llama-bytes.yaml", {"sharding.group_size": "null"}, 1, ["NO_SHARD"]),
    ("llama-bytes", "examples/llama-bytes.yaml", {"sharding.group_size": "null"}, 2, ["SHARD_OPTIMIZER", "FULL_SHARD"]),
]
SKIPPED = 3  # steps that create the lasting state


def settings_of(row_settings, strategy):
    settings = {"data.train": TEXT, "train.device": "cpu", "sharding.sharding_strategy": strategy, **row_settings}
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def predicted(program, cluster, recipe, settings, ranks, folder):
    file = folder / "plan.json"
    subprocess.run([program, "plan", recipe, "--cluster", str(cluster), "--world-size", str(ranks), "--json", str(file),
                    *settings], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    row = json.loads(file.read_text(encoding="utf-8"))["rows"][0]
    if row["predicted"] is None:
        sys.exit(f"{recipe}: no time is predicted: {row.get('untimed') or row.get('refused')}")
    return row["predicted"]["step_s"]


def measured(program, recipe, settings, ranks, steps, folder):
    file = folder / "metrics.jsonl"
    file.unlink(missing_ok=True)
    train = [program, "train", recipe, *settings, "--set", f"train.steps={steps + SKIPPED}", "--set", f"log.jsonl={file}",
             "--set", "train.warmup_steps=0"]
    command = train if ranks == 1 else [program, "launch", "--nproc-per-node", str(ranks), "--", *train]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    times = [json.loads(line)["step_s"] for line in file.read_text(encoding="utf-8").splitlines()]
    return statistics.median(times[SKIPPED:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/tessera"))
    parser.add_argument("--cluster", help="a cluster file that --calibrate has written here before")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--within", type=float, default=10, help="percent")
    parser.add_argument("--json")
    options = parser.parse_args()
    program = os.path.abspath(options.program)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cluster = pathlib.Path(options.cluster) if options.cluster else folder / "cluster.yaml"
        if not options.cluster:
            subprocess.run([program, "plan", "--calibrate", str(cluster)], check=True, stdout=subprocess.DEVNULL)
        print(f"{'recipe':<26}{'ranks':>6}  {'strategy':<16}{'predicted':>12}{'measured':>12}{'error':>9}")
        for title, recipe, own, ranks, strategies in ROWS:
            for strategy in strategies:
                settings = settings_of(own, strategy)
                plan = predicted(program, cluster.resolve(), recipe, settings, ranks, folder)
                run = measured(program, recipe, settings, ranks, options.steps, folder)
                error = 100 * (plan / run - 1)
                rows.append({"recipe": title, "ranks": ranks, "strategy": strategy, "predicted_s": plan, "measured_s": run,
                             "error_percent": error})
                print(f"{title:<26}{ranks:>6}  {strategy:<16}{1e3 * plan:>9.1f} ms{1e3 * run:>9.1f} ms{error:>+8.1f}%",
                flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(abs(row["error_percent"]) <= options.within for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
