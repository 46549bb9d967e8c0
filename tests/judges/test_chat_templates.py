"""Chat templates against transformers' apply_chat_template: `tessera render` makes the same text, byte by byte, of 200
conversations for templates in ten styles, and refuses what transformers refuses; columns of messages have its ids."""
import json
import pathlib
import shutil
import struct
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_conversations import conversations
from conftest import PROGRAM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = pathlib.Path(__file__).parent / "chat_templates"
STYLES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
COUNT = 200
REFUSED = 5  # of those that transformers refuses, each is a run of the program


def tokenizer_with(template):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
                                   chat_template=template)


def rendered(tokenizer, row, prompt):
    """The text, or None if transformers refuses the conversation."""
    try:
        return tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=False,
                                             add_generation_prompt=prompt, **row.get("chat_template_kwargs", {}))
    except Exception:  # the template's or Python's own
        return None


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def test_there_are_ten_styles():
    assert len(STYLES) == 10


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_a_template_has_transformers_text(tessera, tmp_path, style, prompt):
    template = (FOLDER / f"{style}.jinja").read_text(encoding="utf-8")
    tokenizer = tokenizer_with(template)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = conversations(COUNT)
    texts = [rendered(tokenizer, row, prompt) for row in rows]
    good = [row for row, text in zip(rows, texts) if text is not None]
    assert len(good) >= 20
    write_rows(tmp_path / "rows.jsonl", good)
    options = ["--generation-prompt"] if prompt else []
    tessera.run("render", "rows.jsonl", "--tokenizer", "tokenizer", "--json", "out.jsonl", *options)
    made = [json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert made == [text for text in texts if text is not None]
    bad = [row for row, text in zip(rows, texts) if text is None]
    for row in bad[:REFUSED]:
        write_rows(tmp_path / "bad.jsonl", [row])
        done = subprocess.run([PROGRAM, "render", "bad.jsonl", "--tokenizer", "tokenizer", *options], cwd=tmp_path,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 4 and "chat template" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def byte_level(template):
    """Bytes as tokens, and the special tokens of ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", chat_template=template)


def has_texts(row):
    return all(message["content"] is None or isinstance(message["content"], str) for message in row["messages"])


@pytest.mark.parametrize("style", ["chatml", "deepseek", "zephyr"])
def test_message_columns_have_transformers_ids(tessera, tmp_path, monkeypatch, style):
    monkeypatch.setenv("TESSERA_PYTHON", sys.executable)
    tokenizer = byte_level((FOLDER / f"{style}.jinja").read_text(encoding="utf-8"))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    table = pa.Table.from_pylist([
        {"n": i, "messages": row["messages"], "tools": json.dumps(row["tools"]) if "tools" in row else None}
        for i, row in enumerate(conversations(60)) if has_texts(row)])
    pq.write_table(table, tmp_path / "chats.parquet", row_group_size=7)
    with pa.ipc.new_file(tmp_path / "chats.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=11)
    expected = []
    for row in table.to_pylist():
        tools = json.loads(row["tools"]) if row["tools"] else None
        expected += tokenizer.apply_chat_template(row["messages"], tools=tools, tokenize=True, return_dict=False)
    for name in ("chats.parquet", "chats.arrow"):
        tessera.run("tokenize", name, "--column", "messages", "--tokenizer", "tokenizer", "--out", "chats.tokens",
                    "--workers", 2)
        data = (tmp_path / "chats.tokens").read_bytes()
        count, = struct.unpack_from("<Q", data, 24)
        assert list(struct.unpack_from(f"<{count}H", data, 256)) == expected


def recipe(steps, out):
    return f"""
model: {{architecture: gpt2, n_layer: 1, n_head: 2, n_embd: 32, seq_len: 64}}
data: {{train: {{file: chats.jsonl, columns: [messages]}}, batch_size: 6, split_batches: true, tokenizer: tokenizer}}
train: {{steps: {steps}, lr: 1.0e-3, lr_schedule: constant}}
sharding: {{sharding_strategy: FULL_SHARD}}
checkpoint: {{dir: {out}, every: 5}}
log: {{jsonl: {out}.jsonl}}
"""


def test_a_run_on_conversations_resumes_on_three_ranks(tessera, tmp_path):
    byte_level((FOLDER / "chatml.jinja").read_text(encoding="utf-8")).save_pretrained(tmp_path / "tokenizer")
    write_rows(tmp_path / "chats.jsonl", conversations(100))
    tessera.train(recipe(10, "one"))
    tessera.train(recipe(5, "more"), ranks=2)
    tessera.train(recipe(10, "more"), ranks=3)
    one, more = ([json.loads(line)["loss"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
                 for name in ("one", "more"))
    assert len(more) == 10 and more == pytest.approx(one, rel=1e-5)
