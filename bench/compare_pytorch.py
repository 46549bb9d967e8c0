#!/usr/bin/env python3
"""Tessera and PyTorch FSDP2 side by side: the same GPT, 2 ranks of one thread, in turns in one run.

    PYTHON bench/compare_pytorch.py [--rounds 3] [--json FILE]      # PYTHON has torch: see scripts/judges

Each round times PyTorch (bench/peers/pytorch_gpt.py) and `tessera train` on the same model: 6 layers, 384 wide, 6 heads,
256 tokens, batch 8 a rank, byte vocabulary, tied head, AdamW, clipping, FULL_SHARD. Prints tokens/s (medians over steps,
then over rounds), the largest rank's peak resident memory, and the ratios. On AMD, pass --mkl-avx512.
"""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = {
    "model": {"architecture": "gpt2", "n_layer": 6, "n_head": 6, "n_embd": 384, "seq_len": 256},
    "data": {"batch_size": 8},
    "train": {"lr": 3.0e-4, "lr_schedule": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0},
    "sharding": {"sharding_strategy": "FULL_SHARD"},
}


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("model name", "flags")):
            key, value = line.split(":", 1)
            if key.strip() == "model name":
                name = value.strip()
            else:
                wanted = ("avx512f", "avx512_bf16", "amx_bf16")
                return f"{name} ({', '.join(flag for flag in wanted if flag in value.split())})"
    return platform.processor()


def run_peer(dtype, arguments):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, str(ROOT / "bench/peers/pytorch_gpt.py"), "--mode", "fsdp2", "--ranks", "2", "--dtype",
                   dtype, "--steps", str(arguments.steps), "--json", out.name]
        if arguments.mkl_avx512:
            command.append("--mkl-avx512")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        row = json.loads(pathlib.Path(out.name).read_text(encoding="utf-8"))[0]
    return {"tokens_per_s": row["tokens_per_s"], "peak_mib": row["peak_rss_mib"]}


def run_tessera(dtype, arguments, folder):
    program = str(ROOT / "build/tessera") if not arguments.tessera else arguments.tessera
    text = folder / "text"
    if not text.exists():
        text.write_bytes(bytes((i * 131 + i // 7) % 256 for i in range(1 << 20)))
    recipe = folder / "recipe.json"  # JSON is YAML
    recipe.write_text(json.dumps(RECIPE), encoding="utf-8")
    metrics = folder / f"{dtype}.jsonl"
    metrics.unlink(missing_ok=True)
    steps = arguments.steps + 3
    subprocess.run([program, "launch", "--nproc-per-node", "2", "--", program, "train", str(recipe),
                    "--set", f"data.train={text}", "--set", f"train.steps={steps}",
                    "--set", f"sharding.mixed_precision={'bf16' if dtype == 'bf16' else 'no'}",
                    "--set", f"log.jsonl={metrics}"], check=True, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return {"tokens_per_s": statistics.median(row["tokens_per_s"] for row in rows[3:]),
            "peak_mib": rows[-1]["peak_bytes"] / 2**20,
            "exposed_share": statistics.median(row["exposed_comm_s"] / row["step_s"] for row in rows[3:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--mkl-avx512", action="store_true")
    parser.add_argument("--tessera", help="the program (default: build/tessera)")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results = {"machine": processor(), "command": " ".join(["bench/compare_pytorch.py", *sys.argv[1:]]), "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("fp32", "bf16"):
            ours, peer = [], []
            for _ in range(arguments.rounds):
                peer.append(run_peer(dtype, arguments))
                ours.append(run_tessera(dtype, arguments, pathlib.Path(folder)))
            middle = lambda rows, key: statistics.median(row[key] for row in rows)
            row = {"dtype": dtype, "tessera_tokens_per_s": middle(ours, "tokens_per_s"),
                   "pytorch_tokens_per_s": middle(peer, "tokens_per_s"), "tessera_peak_mib": middle(ours, "peak_mib"),
                   "pytorch_peak_mib": middle(peer, "peak_mib"), "tessera_exposed_share": middle(ours, "exposed_share")}
            row["speed_ratio"] = row["tessera_tokens_per_s"] / row["pytorch_tokens_per_s"]
            row["memory_ratio"] = row["tessera_peak_mib"] / row["pytorch_peak_mib"]
            results["rows"].append(row)
            print(f"{dtype}: Tessera {row['tessera_tokens_per_s']:.0f} tokens/s, {row['tessera_peak_mib']:.0f} MiB; PyTorch "
                  f"FSDP2 {row['pytorch_tokens_per_s']:.0f} tokens/s, {row['pytorch_peak_mib']:.0f} MiB; speed "
                  f"{row['speed_ratio']:.2f}, memory {row['memory_ratio']:.2f}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
