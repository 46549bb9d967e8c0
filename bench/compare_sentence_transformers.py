#!/usr/bin/env python3
"""A sentence encoder here and in sentence-transformers, in turns in one run: encoding, and training's
forward and backward, on the same batches of ready tokens, one thread, fp32.

Sentences are words of the model's own vocabulary, from a seed; their lengths are those of STS (about 14
tokens with the special ones, some far longer), or all sentences of --sentences FILE. Rates are sentences a
second of processor time, the best of the rounds on both sides; encoding is in order of length (as
SentenceTransformer.encode does it), training in the order drawn. sentence-transformers' training is timed
without its trainer: model, loss and backward alone.

    bench/compare_sentence_transformers.py --model FOLDER [--json FILE]
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench/peers"))
import common  # noqa: E402

common.leave_script_folder()  # it has a sentence_transformers.py of its own


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Sentence Transformers folder")
    parser.add_argument("--bench", default=str(ROOT / "build/bench/sentence_encoder_bench"))
    parser.add_argument("--sentences", help="a text file, a sentence a line; default: generated ones")
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32, help="sentences a batch (16 pairs)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write the result here too")
    return parser.parse_args()


def generated_sentences(count, seed=1):
    words = ("a the of man woman dog plane river guitar playing cutting running over under quickly large "
             "small white potato market president said that europe percent shares video street children "
             "slicing riding horse blue car two three with without and is are was not in on").split()
    generator = random.Random(seed)
    sentences = []
    for _ in range(count):
        # Half of STS's sentences have 6 to 12 words, a tenth more than 25.
        length = min(60, max(3, int(generator.lognormvariate(2.3, 0.55))))
        sentences.append(" ".join(generator.choice(words) for _ in range(length)) + " .")
    return sentences


def main():
    arguments = parse_arguments()
    os.environ.update(common.one_thread_environment())
    import torch
    from safetensors.torch import save_file
    from sentence_transformers import SentenceTransformer, __version__

    torch.set_num_threads(1)
    model = SentenceTransformer(arguments.model, device="cpu")
    if arguments.sentences:
        sentences = pathlib.Path(arguments.sentences).read_text(encoding="utf-8").splitlines()
        sentences = [line for line in sentences if line.strip()][:arguments.count]
    else:
        sentences = generated_sentences(arguments.count)

    def batches_of(texts):
        size = arguments.batch_size
        return [model.tokenize(texts[i:i + size]) for i in range(0, len(texts), size)]

    def save(texts, path):
        features = model.tokenize(texts)
        save_file({"ids": features["input_ids"].int(),
                   "lengths": features["attention_mask"].sum(1).int()}, path)
        return int(features["attention_mask"].sum())

    by_length = sorted(sentences, key=len)
    encode_batches, train_batches = batches_of(by_length), batches_of(sentences)

    def seconds(body):
        start = time.process_time()
        body()
        return time.process_time() - start

    def encode():
        model.eval()
        with torch.no_grad():
            for features in encode_batches:
                model(dict(features))

    def train():
        model.train()
        for features in train_batches:
            loss = (model(dict(features))["sentence_embedding"] + 0.5).square().mean()
            loss.backward()
            model.zero_grad(set_to_none=True)

    def ours(path):
        done = subprocess.run([arguments.bench, arguments.model, path, "--batch", str(arguments.batch_size),
                               "--rounds", "1"], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    with tempfile.TemporaryDirectory() as folder:
        tokens = save(by_length, f"{folder}/sorted.safetensors")
        save(sentences, f"{folder}/drawn.safetensors")
        best = {"theirs": {}, "ours": {}}

        def note(side, name, rate):
            best[side][name] = max(best[side].get(name, 0), rate)

        encode(), train()
        for _ in range(arguments.rounds):
            note("theirs", "encoded_per_second", len(sentences) / seconds(encode))
            note("ours", "encoded_per_second", ours(f"{folder}/sorted.safetensors")["encoded_per_second"])
            note("theirs", "trained_per_second", len(sentences) / seconds(train))
            mine = ours(f"{folder}/drawn.safetensors")
            note("ours", "trained_per_second", mine["trained_per_second"])

    result = {"machine": common.processor(), "sentence_transformers": __version__, "torch": torch.__version__,
              "sentences": len(sentences), "tokens_a_sentence": round(tokens / len(sentences), 1),
              "batch_size": arguments.batch_size, "threads": 1, "dtype": "fp32",
              "sentence_transformers_rates": best["theirs"], "tessera_rates": best["ours"],
              "ratios": {name: round(best["ours"][name] / rate, 2) for name, rate in best["theirs"].items()}}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
