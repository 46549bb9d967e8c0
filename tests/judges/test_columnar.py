"""Parquet and Arrow files that pyarrow writes, in every codec and encoding: the rows that Tessera trains on are those
that pyarrow reads, in its order, and a run on them resumes on another number of ranks."""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

WORDS = ("a", "the", "cat", "dog", "sees", "Straße", "日本", "and", "runs", "\n", "\t")


@pytest.fixture(autouse=True)
def this_python(monkeypatch):
    """The helper for Parquet is the Python that has pyarrow."""
    monkeypatch.setenv("TESSERA_PYTHON", sys.executable)


def table(rows, seed):
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(0, 40))) for _ in range(rows)]
    ids = [[draw.randrange(50000) for _ in range(draw.randint(0, 30))] for _ in range(rows)]
    return pa.table({
        "n": pa.array(range(rows), pa.int64()),
        "text": texts,
        "ids": pa.array(ids, pa.list_(pa.int32())),
        "meta": pa.array([{"text": text, "parts": [text, "x"]} for text in texts],
                         pa.struct([("text", pa.string()), ("parts", pa.list_(pa.string()))])),
        "kind": pa.array([WORDS[i % 5] for i in range(rows)]).dictionary_encode(),
        "second": texts[::-1],
        "score": [i % 7 / 2 for i in range(rows)],
    })


def stream_of(path):
    """The token ids of a stream of `tessera tokenize`."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack_from("<I", data, 20)
    count, = struct.unpack_from("<Q", data, 24)
    return list(struct.unpack_from(f"<{count}{'H' if size == 2 else 'I'}", data, 256))


def bytes_of(texts):
    return list("".join(text + "\n" for text in texts).encode())


def tokens(tessera, source, column):
    out = tessera.folder / "tokens.bin"
    tessera.run("tokenize", source, "--column", column, "--tokenizer", "bytes", "--out", out)
    return stream_of(out)


def same_columns(tessera, source, rows):
    """Texts, nested texts, dictionaries and ids of `source` are those of the table `rows`."""
    assert tokens(tessera, source, "text") == bytes_of(rows["text"].to_pylist())
    assert tokens(tessera, source, "meta.text") == bytes_of(one["text"] for one in rows["meta"].to_pylist())
    assert tokens(tessera, source, "kind") == bytes_of(rows["kind"].to_pylist())
    assert tokens(tessera, source, "ids") == [one for row in rows["ids"].to_pylist() for one in row]


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
@pytest.mark.parametrize("pages", ["1.0", "2.0"])
def test_parquet_of_every_codec_and_page(tessera, codec, pages):
    rows = table(2000, 1)
    path = tessera.folder / "a.parquet"
    pq.write_table(rows, path, compression=codec, data_page_version=pages, row_group_size=301, data_page_size=700)
    same_columns(tessera, path, rows)


@pytest.mark.parametrize("encoding", ["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_parquet_of_every_encoding(tessera, encoding):
    rows = table(1500, 2)
    path = tessera.folder / "a.parquet"
    if encoding == "dictionary":
        pq.write_table(rows, path, use_dictionary=True, row_group_size=400)
    else:
        ids = "DELTA_BINARY_PACKED" if encoding.startswith("DELTA") else "PLAIN"
        pq.write_table(rows, path, use_dictionary=False, row_group_size=400,
                       column_encoding={"text": encoding, "meta.text": encoding, "ids.list.element": ids})
    same_columns(tessera, path, rows)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files(tessera, codec, stream):
    rows = table(2000, 3)
    path = tessera.folder / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=333)
    same_columns(tessera, path, rows)


def folder_of_parts(folder):
    """A folder as Spark leaves it, with partitions."""
    rows = table(900, 4)
    for i, lang in enumerate(("de", "fr", "de-AT")):
        part = folder / f"lang={lang}"
        part.mkdir(parents=True)
        for k in range(2):
            first = (i * 2 + k) * 150
            pq.write_table(rows.slice(first, 150), part / f"part-0000{k}.snappy.parquet", row_group_size=40)
    (folder / "_SUCCESS").touch()
    return folder


def test_a_folder_is_in_the_order_of_pyarrows_dataset(tessera):
    folder = folder_of_parts(tessera.folder / "corpus")
    rows = pyarrow.dataset.dataset(folder, partitioning="hive").to_table()
    same_columns(tessera, folder, rows)


def test_a_second_run_on_the_same_pattern(tessera):
    """The first run keeps a file beside the data, which the pattern matches, too."""
    folder = tessera.folder / "corpus"
    folder.mkdir()
    pq.write_table(table(200, 8), folder / "a.parquet")
    tessera.train(recipe(folder / "*", 2, "one"))
    tessera.train(recipe(folder / "*", 2, "two"))
    assert losses(tessera, "one") == losses(tessera, "two")


def test_memory_does_not_grow_with_texts_that_a_dictionary_holds_once(tessera):
    """In 400 rows of the same MiB the metadata of Parquet counts it once. The null row ends the command early."""
    words = pa.DictionaryArray.from_arrays(pa.array([None] + [0] * 399, pa.int16()), ["x" * (1 << 20)])
    path = tessera.folder / "a.parquet"
    pq.write_table(pa.table({"text": words}), path, store_schema=False)
    # A process of its own measures: what it starts would count the memory of this one as well.
    measure = ("import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)")
    command = [os.environ.get("TESSERA_PROGRAM", "build/tessera"), "tokenize", str(path), "--column", "text",
               "--tokenizer", "bytes", "--out", "out.bin"]
    done = subprocess.run([sys.executable, "-c", measure, *command], cwd=tessera.folder, capture_output=True, text=True,
                          timeout=100, check=False)
    assert done.returncode == 4 and "row 1: column text is null" in done.stderr, done.stderr
    assert int(done.stdout) < 300 << 10  # KiB, of the program or of its helper, whichever is larger


def recipe(data, steps, out, more=""):
    return f"""
model: {{architecture: gpt2, n_layer: 1, n_head: 2, n_embd: 32, seq_len: 64, vocab_size: 256}}
data: {{train: {{file: {json.dumps(str(data))}, columns: [text]}}, batch_size: 6, split_batches: true, tokenizer: bytes}}
train: {{steps: {steps}, lr: 1.0e-3, lr_schedule: constant}}
sharding: {{sharding_strategy: FULL_SHARD}}
checkpoint: {{dir: {out}, every: 5{more}}}
log: {{jsonl: {out}.jsonl}}
"""


def losses(tessera, name):
    lines = (tessera.folder / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_run_on_two_ranks_resumes_on_three(tessera):
    """The samples of a step are the same on any world: the losses are those of the run on one rank."""
    folder = folder_of_parts(tessera.folder / "corpus")
    tessera.train(recipe(folder, 20, "one"))
    tessera.train(recipe(folder, 10, "more"), ranks=2)
    tessera.train(recipe(folder, 20, "more"), ranks=3)
    assert len(losses(tessera, "more")) == 20
    assert losses(tessera, "more") == pytest.approx(losses(tessera, "one"), rel=1e-5)
    # The text of the run is pyarrow's, each row once; the run found it in the stream that it made.
    made, = folder.rglob("_*.tokens")
    texts = pyarrow.dataset.dataset(folder, partitioning="hive").to_table()["text"].to_pylist()
    assert stream_of(made) == bytes_of(texts)


FIXTURES = pathlib.Path(__file__).parents[1] / "tasks/columnar/fixtures"
FOREIGN = ("spark/snappy", "spark/zstd", "spark/gzip", "datasets/rows.parquet", "datasets/saved")


def foreign(tessera, name):
    """Files that pyspark or `datasets` wrote (make_spark_fixtures.py), and the rows that pyarrow reads in them."""
    copy = tessera.folder / name
    if name.endswith(".parquet"):
        copy.parent.mkdir()
        shutil.copy(FIXTURES / name, copy)
        return copy, pq.read_table(copy)
    shutil.copytree(FIXTURES / name, copy)
    if name.endswith("saved"):
        files = [one["filename"] for one in json.loads((copy / "state.json").read_text())["_data_files"]]
        return copy, pa.concat_tables(pa.ipc.open_stream(str(copy / file)).read_all() for file in files)
    return copy, pyarrow.dataset.dataset(copy, partitioning="hive").to_table()


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_spark_and_datasets(tessera, name):
    path, rows = foreign(tessera, name)
    assert rows.num_rows == 150
    assert sorted(row["n"] for row in rows["meta"].to_pylist()) == list(range(150))
    assert tokens(tessera, path, "text") == bytes_of(rows["text"].to_pylist())
    assert tokens(tessera, path, "meta.text") == bytes_of(one["text"] for one in rows["meta"].to_pylist())
    assert tokens(tessera, path, "ids") == [one for row in rows["ids"].to_pylist() for one in row]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_run_on_files_of_spark_and_datasets_resumes_on_three_ranks(tessera, name):
    path, rows = foreign(tessera, name)
    tessera.train(recipe(path, 10, "one"))
    tessera.train(recipe(path, 5, "more"), ranks=2)
    tessera.train(recipe(path, 10, "more"), ranks=3)
    assert losses(tessera, "more") == pytest.approx(losses(tessera, "one"), rel=1e-5)
    made, = (path.parent if path.is_file() else path).rglob("_*.tokens")
    assert stream_of(made) == bytes_of(rows["text"].to_pylist())


def test_pairs(tessera):
    """Rows of sentence pairs from Parquet train as the same rows from CSV do."""
    rows = table(60, 5)
    # CSV has no row whose text is empty and no newline in it here.
    clean = [text.replace("\n", " ").replace("\t", " ").strip() or "empty" for text in rows["text"].to_pylist()]
    pairs = pa.table({"deep": pa.array([{"first": text} for text in clean]), "second": clean[::-1],
                      "score": rows["score"]})
    pq.write_table(pairs, tessera.folder / "pairs.parquet", row_group_size=13)
    with open(tessera.folder / "pairs.tsv", "w", encoding="utf-8") as out:
        for first, second, score in zip(clean, clean[::-1], rows["score"].to_pylist()):
            out.write(f"{first}\t{second}\t{score}\n")
    model = """
model: {architecture: bert, num_hidden_layers: 1, hidden_size: 32, num_attention_heads: 2, intermediate_size: 64,
        seq_len: 32, vocab_size: 256}
train: {task: sentence_pairs, steps: 6, lr: 1.0e-3}
"""
    for name, columns in (("pairs.parquet", "[deep.first, second, score]"), ("pairs.tsv", "[1, 2, 3]")):
        tessera.train(model + f"""
data: {{train: {{file: {name}, columns: {columns}, loss: cosine_similarity}}, batch_size: 8, tokenizer: bytes}}
log: {{jsonl: {name}.jsonl}}
""")
    assert losses(tessera, "pairs.parquet") == losses(tessera, "pairs.tsv")


def refusal(tessera, *arguments):
    """The one line and the exit code of a command that must fail."""
    done = subprocess.run([os.environ.get("TESSERA_PROGRAM", "build/tessera"), *map(str, arguments)],
                          cwd=tessera.folder, capture_output=True, text=True, timeout=100, check=False)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.returncode, done.stderr


def test_bad_files(tessera):
    path = tessera.folder / "a.parquet"
    pq.write_table(table(3000, 6), path, row_group_size=500)
    tokenize = ("tokenize", path, "--tokenizer", "bytes", "--out", "out.bin", "--column")
    assert refusal(tessera, *tokenize, "txt")[0] == 4
    assert "has no column txt; it has n, text, ids" in refusal(tessera, *tokenize, "txt")[1]
    assert "column score is of the type float64" in refusal(tessera, *tokenize, "score")[1]
    whole = path.read_bytes()
    for length in (9, 4000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        code, line = refusal(tessera, *tokenize, "text")
        assert code == 4 and "a.parquet" in line
    # Damage in the middle, which pyarrow finds while it reads, or which gives other texts.
    draw = random.Random(7)
    for _ in range(10):
        changed = bytearray(whole)
        for at in draw.sample(range(len(whole)), 50):
            changed[at] = draw.randrange(256)
        path.write_bytes(changed)
        done = subprocess.run([os.environ.get("TESSERA_PROGRAM", "build/tessera"), *map(str, tokenize), "text"],
                              cwd=tessera.folder, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode in (0, 4), done.stderr
        assert len(done.stderr.splitlines()) == (done.returncode == 4)
    assert not [name for name in os.listdir(tessera.folder) if "partial" in name]


def test_a_flipped_bit_is_found_by_the_checksum_of_its_page(tessera):
    path = tessera.folder / "a.parquet"
    texts = [f"plain text number {n}" for n in range(2000)]
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False, write_page_checksum=True)
    tokenize = ("tokenize", path, "--tokenizer", "bytes", "--out", "out.bin", "--column", "text")
    assert tokens(tessera, path, "text") == bytes_of(texts)
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"number 1234")] ^= 1
    path.write_bytes(whole)
    code, line = refusal(tessera, *tokenize)
    assert code == 4 and "a.parquet" in line and "verification" in line
