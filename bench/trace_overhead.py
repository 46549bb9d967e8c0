#!/usr/bin/env python3
"""The cost of recording for a step: the same run with and without log.trace and log.summary, in turns, on an idle machine.
The ratio is that of the medians of all steps after the first ten; the losses must be the same.

    bench/trace_overhead.py build/tessera [--ranks 2] [--rounds 5] [--steps 60] [RECIPE] [--set KEY=VALUE ...]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

WARMUP = 10


def run(given, folder, recorded):
    metrics = folder / "metrics.jsonl"
    settings = [*given.set, f"train.steps={given.steps}", f"log.jsonl={metrics}"]
    if recorded:
        settings += [f"log.trace={folder / 'trace.json'}", f"log.trace_steps=[1, {given.steps}]",
                     f"log.summary={folder / 'summary.json'}"]
    command = [given.tessera, "launch", "--nproc-per-node", str(given.ranks), "--", given.tessera, "train", given.recipe]
    for setting in settings:
        command += ["--set", setting]
    ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        raise SystemExit(ended.stderr.strip())
    steps = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    metrics.unlink()
    steps = [step for step in steps if "loss" in step]
    return [step["step_s"] for step in steps[WARMUP:]], [step["loss"] for step in steps]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("recipe", nargs="?", default="examples/gpt2-bytes.yaml")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    if given.steps <= WARMUP or given.rounds < 1:
        parser.error(f"the first {WARMUP} steps do not count: --steps from {WARMUP + 1} on, and --rounds from 1 on")
    given.tessera = os.path.abspath(given.tessera)
    times, losses = {False: [], True: []}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for recorded in (False, True) if number % 2 == 0 else (True, False):
                seconds, losses[recorded] = run(given, pathlib.Path(folder), recorded)
                times[recorded] += seconds
            if losses[False] != losses[True]:
                raise SystemExit("the losses differ")
    off, on = (statistics.median(times[recorded]) for recorded in (False, True))
    print(json.dumps({"step_s": off, "recorded_step_s": on, "ratio": on / off, "steps": len(times[True]),
                      "ranks": given.ranks}))


if __name__ == "__main__":
    main()
