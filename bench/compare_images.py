#!/usr/bin/env python3
"""Training of a vision transformer here and with PyTorch FSDP2: 2 ranks of one thread, in turns in one run.

    PYTHON bench/compare_images.py [--rounds 3] [--json FILE]      # PYTHON has torch and transformers: see scripts/judges

ViT-S: 12 layers, 384 wide, 6 heads, 197 rows an image (patches of 16 x 16 of 224 x 224 pixels), 1,000 classes; random images,
AdamW, clipping, FULL_SHARD. build/bench/image_training_bench trains models/vit, bench/peers/images.py transformers' model.
Prints images/s (medians over steps, then over rounds), the largest rank's peak resident memory, and the ratios.
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
sys.path.append(str(ROOT / "bench/peers"))
from common import processor  # noqa: E402

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def run_peer(dtype, arguments):
    model = {"hidden_size": arguments.width, "num_hidden_layers": arguments.layers, "num_attention_heads": arguments.heads,
             "intermediate_size": 4 * arguments.width, "image_size": 224, "patch_size": 16, "num_labels": 1000}
    job = {"model": model, "data": {"batch_size": arguments.batch}, "mode": "fsdp2", "world_size": 2, "precision": dtype,
           "steps": arguments.steps, "warmup": 2, "threads_per_rank": 1,
           "train": {"lr": 1e-4, "lr_schedule": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0}}
    with tempfile.TemporaryDirectory() as folder:
        path, out = pathlib.Path(folder, "job.json"), pathlib.Path(folder, "out.json")
        path.write_text(json.dumps(job), encoding="utf-8")
        subprocess.run([sys.executable, str(ROOT / "bench/peers/images.py"), "--job", str(path), "--json", str(out)],
                       check=False, stdout=subprocess.DEVNULL)
        row = json.loads(out.read_text(encoding="utf-8"))["rows"][0]
    if row["status"] != "measured":
        sys.exit(f"compare_images.py: {row['name']}: {row['status']}: {row['reason']}")
    return {"images_per_s": row["samples_per_s"]["median"], "step_s": row["step_s"]["median"],
            "peak_mib": row["memory"]["measured"] / 2**20, "last_loss": row["losses"][-1]}


def run_tessera(dtype, arguments):
    bench = str(pathlib.Path(arguments.build) / "bench/image_training_bench")
    command = [str(pathlib.Path(arguments.build) / "tessera"), "launch", "--nproc-per-node", "2", "--", bench, "--dtype",
               DTYPES[dtype]]
    for size in ("layers", "width", "heads", "batch", "steps"):
        command += [f"--{size}", str(getattr(arguments, size))]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, TESSERA_NUM_THREADS="1", OMP_NUM_THREADS="1"))
    if done.returncode != 0:
        sys.exit(f"compare_images.py: {bench} ended with code {done.returncode}")
    row = json.loads(next(line[line.index("{"):] for line in done.stdout.splitlines() if '"images_per_s"' in line))
    return {key: row[key] for key in ("images_per_s", "step_s", "peak_mib")} | {"last_loss": row["losses"][-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4, help="images of a rank's step (4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="default: both")
    parser.add_argument("--build", default=str(ROOT / "build"), help="the build folder (default: build)")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results = {"machine": processor(), "command": " ".join(["bench/compare_images.py", *sys.argv[1:]]), "rows": []}
    for dtype in arguments.dtype or DTYPES:
        rounds = {"pytorch": [], "tessera": []}
        for _ in range(arguments.rounds):
            rounds["pytorch"].append(run_peer(dtype, arguments))
            rounds["tessera"].append(run_tessera(dtype, arguments))
        row = {"dtype": dtype, "batch": arguments.batch}
        for name, of in rounds.items():
            row |= {f"{name}_{key}": statistics.median(one[key] for one in of) for key in of[0]}
            row[f"{name}_rounds_images_per_s"] = [one["images_per_s"] for one in of]
        row["speed_ratio"] = row["tessera_images_per_s"] / row["pytorch_images_per_s"]
        row["memory_ratio"] = row["tessera_peak_mib"] / row["pytorch_peak_mib"]
        results["rows"].append(row)
        print(f"{dtype}: Tessera {row['tessera_images_per_s']:.2f} images/s, {row['tessera_peak_mib']:.0f} MiB; PyTorch FSDP2 "
              f"{row['pytorch_images_per_s']:.2f}, {row['pytorch_peak_mib']:.0f} MiB; speed {row['speed_ratio']:.2f}, memory "
              f"{row['memory_ratio']:.2f}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
