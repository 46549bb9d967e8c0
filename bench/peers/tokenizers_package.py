#!/usr/bin/env python3
"""The `tokenizers` package next to bench/tokenizers_bench: the same text, the same tokenizers, one thread, in turns.

    PYTHON bench/peers/tokenizers_package.py MAKE FOLDER                    makes texts and tokenizers to measure with
    PYTHON bench/peers/tokenizers_package.py BENCH TEXT TOKENIZER ... [--json FILE]

BENCH is the program tokenizers_bench. Each line is a separate text; the package gets all of them in one call
without offsets (encode_batch_fast), which is its fastest way, on one thread (RAYON_NUM_THREADS=1).
"""
import argparse
import importlib.util
import itertools
import json
import os
import random
import statistics
import subprocess
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROUNDS = 3


def make(folder):
    path = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "tokenizers", "make_fixtures.py")
    spec = importlib.util.spec_from_file_location("make_fixtures", path)
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    os.makedirs(folder, exist_ok=True)
    # 20,000 words of one to four syllables, with frequencies as in a language.
    draw = random.Random(3)
    syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "s")]
    words = ["".join(draw.choice(syllables) for _ in range(draw.choice([1, 2, 2, 3, 4]))) for _ in range(20_000)]
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(words))))
    lines = []
    for i in range(40_000):
        sentence = draw.choices(words, cum_weights=weights, k=draw.randrange(5, 25))
        line = " ".join(sentence).capitalize() + draw.choice([".", "!", "?", ", it's so.", f" ({draw.randrange(3000)})."])
        lines.append(line if i % 10 else draw.choice(fixtures.LANGUAGES) + " " + line)
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    for kind in ("bert", "gpt2", "llama3", "qwen2", "unigram"):
        tokenizer = fixtures.KINDS[kind](8000, lines[:20_000])
        os.makedirs(os.path.join(folder, kind), exist_ok=True)
        tokenizer.save(os.path.join(folder, kind, "tokenizer.json"))


def package(path, lines, size):
    from tokenizers import Tokenizer  # reads the environment

    begin = time.perf_counter()
    tokenizer = Tokenizer.from_file(path)
    load = time.perf_counter() - begin
    tokenizer.no_padding()
    tokenizer.no_truncation()
    times, tokens = [], 0
    for _ in range(3):
        begin = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        times.append(time.perf_counter() - begin)
        tokens = sum(len(encoding.ids) for encoding in encodings)
    return {"tokens": tokens, "load_s": load, "first_mb_per_s": size / 1e6 / times[0],
            "mb_per_s": size / 1e6 / min(times[1:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", metavar="BENCH", help="the program tokenizers_bench, or MAKE")
    parser.add_argument("text", metavar="TEXT", help="a text, or the folder to make")
    parser.add_argument("tokenizers", metavar="TOKENIZER", nargs="*", help="a tokenizer.json or its folder")
    parser.add_argument("--json", metavar="FILE", help="write the result here too")
    arguments = parser.parse_args()
    bench, text, tokenizers, out = arguments.bench, arguments.text, arguments.tokenizers, arguments.json
    if bench == "MAKE":
        make(text)
        return
    if not tokenizers:
        parser.error("name a TOKENIZER to measure")
    from tokenizers import __version__

    with open(text, "rb") as file:
        data = file.read()
    lines = data.decode().split("\n")
    rows = []
    for path in tokenizers:
        file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        ours, theirs = [], []
        for _ in range(ROUNDS):
            with tempfile.NamedTemporaryFile() as report:
                subprocess.run([bench, text, file, "--repeats", "2", "--json", report.name], check=True,
                               stdout=subprocess.DEVNULL)
                ours.append(json.load(open(report.name, encoding="utf-8"))["rows"][0])
            theirs.append(package(file, lines, len(data)))
        assert ours[0]["tokens"] == theirs[0]["tokens"], (file, ours[0], theirs[0])
        row = {"tokenizer": os.path.basename(os.path.dirname(file)), "tokens": ours[0]["tokens"]}
        for key in ("load_s", "first_mb_per_s", "mb_per_s"):
            row[key] = statistics.median(one[key] for one in ours)
            row[f"package_{key}"] = statistics.median(one[key] for one in theirs)
        row["first_ratio"] = statistics.median(a["first_mb_per_s"] / b["first_mb_per_s"] for a, b in zip(ours, theirs))
        row["ratio"] = statistics.median(a["mb_per_s"] / b["mb_per_s"] for a, b in zip(ours, theirs))
        rows.append(row)
        print(f"{row['tokenizer']}: {row['first_mb_per_s']:.1f} MB/s in the first pass, {row['mb_per_s']:.1f} then; "
              f"package {row['package_first_mb_per_s']:.1f} and {row['package_mb_per_s']:.1f}; "
              f"ratios {row['first_ratio']:.1f} and {row['ratio']:.1f}")
    if out:
        with open(out, "w", encoding="ascii") as file:
            json.dump({"tokenizers": __version__, "text_bytes": len(data), "rounds": ROUNDS, "threads": 1, "rows": rows},
                      file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
