"""The examples of docs/data.md for Spark and GNU parallel, as they stand there: the shards that they write have every row
once, and a run on them resumes on another number of ranks. Spark is not among the judges' packages, because it has 490 MB:
pip install pyspark into a Python of your own, with a Java 17, and name it in TESSERA_JUDGES_PYTHON."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs/data.md"
needs_spark = pytest.mark.skipif(importlib.util.find_spec("pyspark") is None or shutil.which("java") is None,
                                 reason="pyspark or java is not installed")


def example(language, word):
    """The block of the page in a language that contains the word."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    found, = [block for block in blocks if word in block]
    return found


def environment(folder):
    """Finds the program as `tessera`, and this Python as Spark's."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin/tessera"
    if not program.exists():
        program.symlink_to(os.path.abspath(os.environ.get("TESSERA_PROGRAM", "build/tessera")))
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def texts_in(folder):
    """The texts of all shards, in their order, and the file of each."""
    files = sorted(folder.iterdir())
    texts = []
    for number, path in enumerate(files, start=1):
        data = path.read_bytes()
        assert struct.unpack_from("<II", data, 240) == (number, len(files))
        count, = struct.unpack_from("<Q", data, 24)
        ids = struct.unpack_from(f"<{count}H", data, 256)
        texts += bytes(ids).decode().splitlines()
    return texts


def run_spark(tessera, source):
    script = tessera.folder / "write_tokens.py"
    script.write_text(example("python", "mapPartitions"), encoding="utf-8")
    return subprocess.run([sys.executable, str(script), str(source), "bytes", str(tessera.folder / "tokens")],
                          cwd=tessera.folder, env=environment(tessera.folder), capture_output=True, text=True,
                          timeout=280, check=False)


def recipe(steps):
    return f"""
model: {{architecture: gpt2, n_layer: 1, n_head: 2, n_embd: 32, seq_len: 64, vocab_size: 256}}
data: {{train: tokens, batch_size: 6, split_batches: true, tokenizer: bytes}}
train: {{steps: {steps}, lr: 1.0e-3, lr_schedule: constant}}
checkpoint: {{dir: out, every: 5}}
log: {{jsonl: out.jsonl}}
"""


@needs_spark
def test_spark_writes_shards_that_train(tessera):
    source = tessera.folder / "corpus"
    source.mkdir()
    rows = [f"row {n} of é日本 " + "x" * (n % 60) for n in range(900)]
    for part in range(3):
        pq.write_table(pa.table({"text": rows[part * 300:][:300]}), source / f"part-{part}.parquet")
    done = run_spark(tessera, source)
    assert done.returncode == 0, done.stderr
    tokens = tessera.folder / "tokens"
    assert sorted(texts_in(tokens)) == sorted(rows)
    tessera.train(recipe(10), ranks=2)
    # The same job again gives the same bytes, so the run goes on.
    before = {path.name: path.read_bytes() for path in tokens.iterdir()}
    assert run_spark(tessera, source).returncode == 0
    assert {path.name: path.read_bytes() for path in tokens.iterdir()} == before
    tessera.train(recipe(20), ranks=3)
    steps = [json.loads(line)["step"] for line in (tessera.folder / "out.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 21))


@needs_spark
def test_spark_reports_the_row_that_a_worker_refuses(tessera):
    pq.write_table(pa.table({"text": ["good", None, "good"]}), tessera.folder / "one.parquet")
    done = run_spark(tessera, tessera.folder / "one.parquet")
    assert done.returncode != 0
    assert "standard input, line 2: column text is null" in done.stderr
    assert not list((tessera.folder / "tokens").iterdir())


@pytest.mark.skipif(shutil.which("parallel") is None, reason="GNU parallel is not installed")
def test_gnu_parallel(tessera):
    parts = tessera.folder / "parts"
    parts.mkdir()
    rows = [f"row {n}" for n in range(500)]
    for part in range(5):
        lines = [json.dumps({"text": row}) + "\n" for row in rows[part * 100:][:100]]
        (parts / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    command = example("sh", "parallel").replace("path/to/gpt2", "bytes")
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=tessera.folder, env=environment(tessera.folder),
                   stdin=subprocess.DEVNULL, timeout=100, check=True)
    assert texts_in(tessera.folder / "tokens") == rows
