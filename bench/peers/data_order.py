"""The samples of a run in Tessera's order, so that a peer trains on the same batches: tasks/batch_order.cpp,
engine/data/samples.cpp and engine/data/permutation.cpp, in Python's whole numbers."""
import csv
import glob
import io
import itertools
import json
import pathlib
import struct
import subprocess

from common import Refused

BITS64 = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
LENGTH_GROUP = 1024  # samples that data.group_by_length sorts together


def scramble(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & BITS64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & BITS64
    return x ^ (x >> 31)


def mix(a, b):
    return scramble(scramble((a + GOLDEN_GAMMA) & BITS64) ^ ((b * GOLDEN_GAMMA + 1) & BITS64))


class Permutation:
    """A random order of 0..n-1: a Feistel network over the next power of four, walking in cycles back into the range."""

    def __init__(self, n, seed, epoch):
        self.n, self.half_bits, self.keys = n, 4, []
        while self.half_bits < 32 and (1 << (2 * self.half_bits)) < n:
            self.half_bits += 1
        state = mix(seed, epoch)
        for _ in range(8):
            state = (state + GOLDEN_GAMMA) & BITS64
            self.keys.append(scramble(state))

    def __call__(self, value):
        mask = (1 << self.half_bits) - 1
        while True:
            left, right = value >> self.half_bits, value & mask
            for key in self.keys:
                left, right = right, left ^ (scramble((right + key) & BITS64) & mask)
            value = (left << self.half_bits) | right
            if value < self.n:
                return value


class BatchOrder:
    """The data set of each global batch, and the numbers of its samples."""

    def __init__(self, sizes, data, seed):
        self.sizes, self.seed = sizes, seed
        self.by_size = data.get("mix", "by_size") == "by_size"
        self.even, self.drop_last = bool(data.get("even_batches")), bool(data.get("drop_last"))
        self.taken, self.next = 0, [0] * len(sizes)

    def data_set_of(self, batch):
        if not self.by_size or len(self.sizes) == 1:
            return batch % len(self.sizes)
        draw = mix(mix(self.seed, 0x6D6978), batch) % sum(self.sizes)
        for number, size in enumerate(self.sizes):
            if draw < size:
                return number
            draw -= size
        raise AssertionError("a draw beyond all data sets")

    def take(self, size):
        """(data set, numbers of the samples) of the next batch of all ranks together."""
        data_set = self.data_set_of(self.taken)
        samples, first = self.sizes[data_set], self.next[data_set]
        if self.drop_last and first % samples + size > samples:
            if size > samples:
                raise Refused(f"an epoch of {samples} samples has no whole batch of {size}, and data.drop_last is set")
            first = (first // samples + 1) * samples
        numbers = list(range(first, first + size))
        end = first + size
        if self.even:
            epoch = first // samples * samples
            numbers = [epoch + (number - epoch) % samples for number in numbers]
            end = min(end, epoch + samples)
        self.taken += 1
        self.next[data_set] = end
        return data_set, numbers


def files_of(train):
    """The paths of data.train: a path, a pattern, a list of them, or of data sets."""
    entries = train if isinstance(train, list) else [train]
    paths = []
    for entry in entries:
        names = entry["file"] if isinstance(entry, dict) else entry
        for name in names if isinstance(names, list) else [names]:
            found = [name] if pathlib.Path(name).exists() else sorted(glob.glob(name))
            if not found:
                raise Refused(f"data file {name}: no such file")
            paths += found
    return paths


class TokenFile:
    """A file's tokens: bytes, a stream of `tessera tokenize`, or nanoGPT's .bin."""

    def __init__(self, path, tokenizer, program, folder):
        begin = self.beginning(path)
        if not begin.startswith(b"TESSERA\nTOKENS\n") and not path.endswith(".bin") and tokenizer not in (None, "bytes"):
            path = self.tokenized(path, tokenizer, program, folder)
            begin = self.beginning(path)
        self.data, self.offset, self.size = None, 0, 1
        if begin.startswith(b"TESSERA\nTOKENS\n"):
            self.offset, (self.size,) = 256, struct.unpack_from("<I", begin, 20)
        elif path.endswith(".bin"):
            self.size = 2
        self.path = path
        self.tokens = (pathlib.Path(path).stat().st_size - self.offset) // self.size

    @staticmethod
    def beginning(path):
        try:
            with open(path, "rb") as file:
                return file.read(256)
        except OSError as error:
            raise Refused(f"data file {path} cannot be read: {error.strerror}") from error

    @staticmethod
    def tokenized(path, tokenizer, program, folder):
        if not program:
            raise Refused(f"data.tokenizer {tokenizer}: the job names no `program` to tokenize {path} with")
        out = str(pathlib.Path(folder) / (pathlib.Path(path).name + ".tokens"))
        if not pathlib.Path(out).exists():
            subprocess.run([program, "tokenize", path, "--tokenizer", tokenizer, "--out", out], check=True,
                           capture_output=True)
        return out

    def read(self, first, count):
        with open(self.path, "rb") as file:
            file.seek(self.offset + first * self.size)
            data = file.read(count * self.size)
        return list(data) if self.size == 1 else list(struct.unpack(f"<{count}{'H' if self.size == 2 else 'I'}", data))


class TokenWindows:
    """Sequences of a text by their number, as engine/data/samples.cpp cuts them: seq_len inputs and the next token."""

    def __init__(self, file, seq_len, shuffle, seed):
        self.file, self.seq_len, self.shuffle, self.seed = file, seq_len, shuffle, seed
        self.samples = (file.tokens - 1) // seq_len
        if self.samples < 1:
            raise Refused(f"{file.path} has {file.tokens} tokens, less than a sequence of {seq_len} and its last target")

    def window(self, sample):
        epoch, index = divmod(sample, self.samples)
        first = index * self.seq_len
        if self.shuffle:
            slack = self.file.tokens - 1 - self.samples * self.seq_len
            offset = mix(mix(self.seed, 0x6F6666736574), epoch) % (slack + 1)
            first = offset + Permutation(self.samples, self.seed, epoch)(index) * self.seq_len
        return self.file.read(first, self.seq_len + 1)


def number_or_none(name):
    return int(name) if str(name).isdecimal() else None


class Table:
    """Rows of CSV, TSV, JSON lines or text (tasks/table.cpp): the wanted columns of each, and its length in bytes."""

    def __init__(self, data_set, count):
        columns = [str(name) for name in data_set.get("columns") or range(1, count + 1)]
        self.rows, self.bytes = [], []
        for path in files_of([data_set]):
            text = pathlib.Path(path).read_bytes().decode("utf-8-sig")
            self.read(path, text, data_set, columns)
        if not self.rows:
            raise Refused(f"{data_set['file']}: no row")

    @staticmethod
    def format_of(path, text):
        if path.endswith((".jsonl", ".ndjson", ".json")):
            return "jsonl"
        if path.endswith(".tsv") or path.endswith(".txt"):
            return "tsv" if path.endswith(".tsv") else "text"
        return "tsv" if "\t" in text.split("\n", 1)[0] else "csv"

    def read(self, path, text, data_set, columns):
        kind = data_set.get("format") or "auto"
        kind = self.format_of(path, text) if kind in ("auto", "automatic") else kind
        if kind == "jsonl":
            for line in text.splitlines(keepends=True):
                row = json.loads(line)
                self.rows.append([row[key] if isinstance(row[key], str) else json.dumps(row[key]) for key in columns])
                self.bytes.append(len(line.encode()))
            return
        lines = self.split(text, kind)
        header = data_set.get("header")
        if header is None:
            header = kind != "text" and any(number_or_none(name) is None for name in columns)
        names = lines.pop(0)[0] if header else []
        places = [names.index(name) if name in names else int(name) - 1 for name in columns]
        for fields, size in lines:
            self.rows.append([fields[place] for place in places])
            self.bytes.append(size)

    @staticmethod
    def split(text, kind):
        """(fields, bytes) of every row."""
        if kind != "csv":
            stripped = ((line.rstrip("\r\n"), len(line.encode())) for line in io.StringIO(text, newline=""))
            return [([line] if kind == "text" else line.split("\t"), size) for line, size in stripped]
        sizes = []
        lines = io.StringIO(text, newline="")

        def counted():
            for line in lines:
                sizes.append(len(line.encode()))
                yield line

        rows, before = [], 0
        for fields in csv.reader(counted(), strict=True):
            rows.append((fields, sum(sizes[before:])))
            before = len(sizes)
        return rows


class SentenceRows:
    """A data set of sentences in the order of its epochs (tasks/sentence_table.cpp): texts and a label."""

    TEXTS = {"cosine_similarity": 2, "softmax": 2, "multiple_negatives_ranking": 2, "mse": 1}

    def __init__(self, data_set, data, seed):
        self.loss = data_set.get("loss")
        if self.loss not in self.TEXTS:
            raise Refused(f"the loss {self.loss} of {data_set.get('file')} is not one of {', '.join(self.TEXTS)}")
        self.texts = self.TEXTS[self.loss]
        self.labelled = self.loss != "multiple_negatives_ranking"
        self.scale, self.labels = data_set.get("label_scale") or 1.0, data_set.get("labels") or []
        self.classes = data_set.get("num_labels") or len(self.labels)
        self.ranking_scale = data_set.get("scale") or 20.0
        self.table = Table(data_set, self.texts + self.labelled)
        self.samples = len(self.table.rows)
        self.shuffle, self.grouped = data.get("shuffle", True), data.get("group_by_length", False)
        self.seed, self.group = seed, (None, [])

    def row_of(self, sample):
        epoch, index = divmod(sample, self.samples)
        order = Permutation(self.samples, self.seed, epoch) if self.shuffle else lambda at: at
        if not self.grouped:
            return order(index)
        begin = index // LENGTH_GROUP * LENGTH_GROUP
        if self.group[0] != (epoch, begin):
            rows = [order(at) for at in range(begin, min(begin + LENGTH_GROUP, self.samples))]
            self.group = ((epoch, begin), sorted(rows, key=lambda row: -self.table.bytes[row]))
        return self.group[1][index - begin]

    def read(self, sample):
        """(texts, label): a number, a class, or an embedding."""
        columns = self.table.rows[self.row_of(sample)]
        texts, label = columns[:self.texts], columns[-1] if self.labelled else None
        if self.loss == "cosine_similarity":
            return texts, float(label) / self.scale
        if self.loss == "softmax":
            return texts, self.labels.index(label) if self.labels else int(label)
        return texts, json.loads(label) if self.loss == "mse" else 0.0


def seeds_of(seed):
    """The seed of each data set of sentences."""
    for number in itertools.count(1):
        yield seed
        seed = mix(seed, number)
