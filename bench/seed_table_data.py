#!/usr/bin/env python3
"""Makes the data of bench/seed-table.yaml: pairs of sentences in the form of natural-language inference and of the STS
benchmark, and a tokenizer of their words. The same bytes on every machine and in every version of Python.

    python3 bench/seed_table_data.py [FOLDER]        # default: build/seed-table, as the recipes name it

Sentences are random words; their lengths are like those of the real ones (premises 14 words on the average, hypotheses 8,
sentences of STS 10). To use the real files, name them with --set data.train or in another recipe, as in
examples/sentence-mixed.yaml. FOLDER gets nli.jsonl (sentence1, sentence2, gold_label), sts.csv (genre, file, year, number,
score from 0 to 5, two sentences) and tokenizer/, a WordPiece tokenizer.json with MPNet's special tokens.
"""
import argparse
import csv
import json
import math
import pathlib
import sys

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr")
VOWELS, CODAS = "aeiou", ("", "n", "r", "s", "t")
LABELS = ("entailment", "neutral", "contradiction")


class Draw:
    """SplitMix64: a generator whose numbers do not depend on the version of a library."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    def below(self, n):
        return self.bits() % n

    def choice(self, items):
        return items[self.below(len(items))]

    def length(self, mean, longest):
        """The length of a sentence in words: near the mean, sometimes far longer."""
        share = -math.log((self.below(1 << 20) + 1) / (1 << 20))
        return max(3, min(longest, round(mean * (0.55 + 0.45 * share))))


def make_words(draw):
    """(words in the vocabulary, words that fall into two pieces), all different."""
    syllables = [onset + vowel + coda for onset in ONSETS for vowel in VOWELS for coda in CODAS]
    words = sorted({draw.choice(syllables) + draw.choice(syllables) for _ in range(2400)})
    whole, cut = [], []
    for word in words:
        (cut if draw.below(8) == 0 else whole).append(word)
    return whole, cut


def tokenizer(whole, cut):
    pieces = [word[:3] for word in cut] + ["##" + word[3:] for word in cut]
    entries = [*SPECIAL, ".", ",", "?", *LETTERS, *("##" + letter for letter in LETTERS), *whole, *pieces]
    vocabulary = {}
    for entry in entries:
        vocabulary.setdefault(entry, len(vocabulary))
    added = [{"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for token in SPECIAL]
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    pair = [*single, {"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {
            token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in ("<s>", "</s>")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocabulary},
    }


def sentence(draw, words, count, like=(), common=0):
    """A sentence; `common` of its words are from `like`."""
    chosen = [draw.choice(like) if like and i < common else draw.choice(words) for i in range(count)]
    return " ".join(chosen).capitalize() + draw.choice(".?.")


def words_of(text):
    return text[:-1].lower().split()


def nli_rows(draw, words, count):
    for _ in range(count):
        label = draw.below(len(LABELS))
        premise = sentence(draw, words, draw.length(14, 70))
        size = draw.length(8, 40)
        hypothesis = sentence(draw, words, size, words_of(premise), (size, size // 2, size // 6)[label])
        yield {"sentence1": premise, "sentence2": hypothesis, "gold_label": LABELS[label]}


def sts_rows(draw, words, count):
    for number in range(count):
        first = sentence(draw, words, draw.length(10, 50))
        size = draw.length(10, 50)
        score = draw.below(501) / 100
        second = sentence(draw, words, size, words_of(first), round(size * score / 5))
        yield ("made", "words", "2026", f"{number:04}", f"{score:.2f}", first, second)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, metavar="FOLDER",
                        default=pathlib.Path("build/seed-table"))
    parser.add_argument("--nli", type=int, default=8192, metavar="N", help="pairs of inference (default: 8192)")
    parser.add_argument("--sts", type=int, default=1024, metavar="N", help="pairs of similarity (default: 1024)")
    arguments = parser.parse_args()
    if min(arguments.nli, arguments.sts) < 1:
        parser.error("--nli and --sts must be at least 1")
    draw = Draw(1)
    whole, cut = make_words(draw)
    folder = arguments.folder
    try:
        (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer/tokenizer.json").write_text(json.dumps(tokenizer(whole, cut), indent=1) + "\n", encoding="utf-8")
        special = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
                   "unk_token": "<unk>", "mask_token": "<mask>", "tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(special, indent=1) + "\n", encoding="utf-8")
        with (folder / "nli.jsonl").open("w", encoding="utf-8") as file:
            for row in nli_rows(draw, whole + cut, arguments.nli):
                file.write(json.dumps(row) + "\n")
        with (folder / "sts.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(sts_rows(draw, whole + cut, arguments.sts))
    except OSError as error:
        sys.exit(f"seed_table_data.py: {error.filename}: {error.strerror}")
    print(f"{folder}: {arguments.nli} pairs in nli.jsonl, {arguments.sts} in sts.csv, a tokenizer of "
          f"{len(json.loads((folder / 'tokenizer/tokenizer.json').read_text(encoding='utf-8'))['model']['vocab'])} tokens")


if __name__ == "__main__":
    main()
