#!/usr/bin/env python3
"""Text generation, compared with transformers: GPT-2 of 12 x 768, random weights, one thread, greedy.

Makes the model with transformers, then lets both continue the same prompt, in turns: `tessera generate` in
fp32 and bf16 (whose own --stats line is read) and transformers in fp32, all with their caches. Prints
tokens/s of new tokens with the prompt's time in them, the best of --rounds, and compares the texts in fp32.

    bench/peers/generate.py --json bench/results/epyc-avx512/generate.json
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

RATE = re.compile(r"([0-9]+) new ones in ([0-9.]+) s")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/tessera")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--json", metavar="FILE", help="write the result here too")
    return parser.parse_args()


def ours(arguments, folder, ids, dtype):
    """(tokens/s, the new tokens)"""
    done = subprocess.run(
        [arguments.program, "generate", folder, "--prompt-ids", ",".join(map(str, ids)), "--max-new-tokens",
         str(arguments.new_tokens), "--ignore-eos", "--dtype", dtype, "--device", "cpu", "--stats"],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    count, seconds = RATE.search(done.stderr).groups()
    return int(count) / float(seconds), [int(token) for token in done.stdout.split(",")][len(ids):]


def theirs(arguments, model, ids):
    import torch

    begin = time.perf_counter()
    out = model.generate(torch.tensor([ids]), max_new_tokens=arguments.new_tokens,
                         min_new_tokens=arguments.new_tokens, do_sample=False, pad_token_id=0)
    return arguments.new_tokens / (time.perf_counter() - begin), out[0].tolist()[len(ids):]


def main():
    arguments = parse_arguments()
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = transformers.GPT2Config(n_layer=arguments.layers, n_embd=arguments.width, n_head=arguments.heads)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, config.vocab_size, (arguments.prompt_tokens,)).tolist()
    rates = {"tessera_fp32": [], "tessera_bf16": [], "transformers_fp32": []}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for _ in range(arguments.rounds):
            rate, text = theirs(arguments, model, ids)
            rates["transformers_fp32"].append(rate)
            for dtype in ("fp32", "bf16"):
                rate, written = ours(arguments, folder, ids, dtype)
                rates[f"tessera_{dtype}"].append(rate)
                if dtype == "fp32" and written != text:
                    sys.exit("the texts differ")
    best = {name: round(max(values), 1) for name, values in rates.items()}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")
    result = {"command": " ".join(["bench/peers/generate.py", *sys.argv[1:]]), "processor": processor,
              "torch": torch.__version__, "transformers": transformers.__version__, "threads": 1,
              "prompt_tokens": arguments.prompt_tokens, "new_tokens": arguments.new_tokens,
              "tokens_per_s": best,
              "rounds": {name: [round(value, 1) for value in values] for name, values in rates.items()},
              "fp32_over_transformers": round(best["tessera_fp32"] / best["transformers_fp32"], 2)}
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
