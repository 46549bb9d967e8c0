"""Vocabularies without a tokenizer.json: tiktoken's files against `tiktoken` and Mistral's tekken.json against
`mistral-common` (where these packages are installed), vocab.json with merges.txt against transformers. All are trained
here."""
import base64
import json

import pytest
from test_tokenizers import FIXTURES, lines  # noqa: F401 (a fixture)
from tokenizers import pre_tokenizers

ALPHABET = None
# As in published files of RoBERTa, and Tessera's default. transformers 5 takes a mask without blanks if only its text is
# given.
MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False,
        "single_word": False}


def bytes_of(token):
    """The bytes that a token in GPT-2's alphabet spells."""
    global ALPHABET
    if ALPHABET is None:
        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in visible]
        ALPHABET = {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
    return bytes(ALPHABET[character] for character in token)


@pytest.fixture(scope="module")
def ranks():
    """Tokens by rank: the bytes, then what training merged, one after the other."""
    tokenizer = FIXTURES.byte_bpe(3000, list(FIXTURES.texts()), pattern=FIXTURES.LLAMA3)
    vocabulary = {token: id for token, id in tokenizer.get_vocab().items() if "<|" not in token}
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= vocabulary.keys()
    ordered = sorted(vocabulary, key=vocabulary.get)
    merged = [bytes_of(token) for token in ordered if len(bytes_of(token)) > 1]
    return {token: rank for rank, token in enumerate([bytes([byte]) for byte in range(256)] + merged)}


@pytest.fixture(scope="module")
def known_lines(lines):  # noqa: F811
    known = set("".join(FIXTURES.LINES)) | {chr(code) for code in range(32, 127)}
    return [line for line in lines[:30_000] if known.issuperset(line)][:6000] + ["", " ", "a  b", "x\u00a0\u00a0y"]


def write_ranks(path, ranks):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))


def ids(tessera, tokenizer, lines, *options):  # noqa: F811
    text, out = tessera.folder / "lines.txt", tessera.folder / "ids.json"
    text.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="")
    tessera.run("tokenize", text, "--tokenizer", tokenizer, "--lines", "--json", out, *options)
    return json.loads(out.read_text(encoding="ascii"))


def assert_equal_ids(ours, theirs, lines):  # noqa: F811
    assert len(ours) == len(theirs) == len(lines)
    for mine, other, line in zip(ours, theirs, lines):
        assert mine == list(other), ascii(line)


def with_fillers(ranks, number):
    """As many tokens as a vocabulary of that size has, so that the ids of its special tokens fit; no text has them."""
    filled = dict(ranks)
    for i in range(number - len(filled)):
        filled[b"\xff\xfe" + i.to_bytes(4, "big")] = len(filled)
    return filled


@pytest.mark.parametrize("name", ["r50k_base", "p50k_base", "cl100k_base", "o200k_base"])
def test_known_vocabularies_of_tiktoken(tessera, ranks, known_lines, monkeypatch, name):
    tiktoken = pytest.importorskip("tiktoken")
    openai = pytest.importorskip("tiktoken_ext.openai_public")
    few = with_fillers(ranks, 30_000)
    monkeypatch.setattr(openai, "load_tiktoken_bpe", lambda *_, **__: few)
    monkeypatch.setattr(openai, "data_gym_to_mergeable_bpe_ranks", lambda *_, **__: few)
    settings = getattr(openai, name)()
    settings.pop("explicit_n_vocab", None)
    theirs = tiktoken.Encoding(**settings)
    write_ranks(tessera.folder / f"{name}.tiktoken", few)
    some = known_lines + [f"a{token}b {token}" for token in settings["special_tokens"]]
    assert_equal_ids(ids(tessera, f"{name}.tiktoken", some), theirs.encode_batch(some, allowed_special="all"), some)


def test_a_pattern_of_the_configuration(tessera, ranks, known_lines):
    tiktoken = pytest.importorskip("tiktoken")
    pattern, special = FIXTURES.QWEN2, {"<|end|>": len(ranks) + 1, "[X Y]": len(ranks)}
    theirs = tiktoken.Encoding(name="own", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    write_ranks(tessera.folder / "own/tiktoken.model", ranks)
    (tessera.folder / "own/tokenizer_config.json").write_text(json.dumps({
        "pattern": pattern, "eos_token": "<|end|>",
        "added_tokens_decoder": {str(id): {"content": token, "special": True} for token, id in special.items()}}),
        encoding="utf-8")
    some = known_lines + ["a<|end|>", "[X Y][X Y] <|end|>"]
    assert_equal_ids(ids(tessera, "own", some), theirs.encode_batch(some, allowed_special="all"), some)


def test_an_empty_token(tessera, ranks, known_lines, monkeypatch):
    """openai-whisper's multilingual.tiktoken has the line `= 50256`."""
    load = pytest.importorskip("tiktoken.load")
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    pattern, empty = FIXTURES.QWEN2, len(ranks)
    path = tessera.folder / "own/multilingual.tiktoken"
    write_ranks(path, ranks)
    path.write_bytes(path.read_bytes() + b"= %d\n" % empty)
    theirs = tiktoken.Encoding(name="own", pat_str=pattern, mergeable_ranks=load.load_tiktoken_bpe(str(path)),
                               special_tokens={"<|end|>": empty + 1})
    (tessera.folder / "own/tokenizer_config.json").write_text(json.dumps({
        "pattern": pattern, "added_tokens_decoder": {str(empty + 1): {"content": "<|end|>", "special": True}}}),
        encoding="utf-8")
    some = known_lines[:2000] + ["", "=", "a<|end|>"]
    assert theirs.decode_single_token_bytes(empty) == b""
    assert_equal_ids(ids(tessera, "own", some), theirs.encode_batch(some, allowed_special="all"), some)


@pytest.mark.parametrize("listed", [True, False])
def test_tekken(tessera, ranks, known_lines, listed):
    tekken = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    special, pattern = 1000, FIXTURES.QWEN2
    file = {"config": {"pattern": pattern, "num_vocab_tokens": len(ranks), "default_vocab_size": special + len(ranks) - 7,
                       "default_num_special_tokens": special, "version": "v3" if not listed else "v7"},
            "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode("ascii"),
                       "token_str": token.decode("utf-8", "replace")} for token, rank in ranks.items()]}
    if listed:
        names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
        file["special_tokens"] = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    path = tessera.folder / "tekken.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    theirs = tekken.Tekkenizer.from_file(path)
    # mistral-common reads no special token in a text.
    some = [line for line in known_lines if not any(mark in line for mark in ("<s>", "</s>", "<unk>", "<pad>", "["))]
    assert_equal_ids(ids(tessera, ".", some), [theirs.encode(line, bos=False, eos=False) for line in some], some)
    assert_equal_ids(ids(tessera, ".", some[:200], "--special-tokens"),
                     [theirs.encode(line, bos=True, eos=False) for line in some[:200]], some[:200])
    names = ["<s>", "</s>", "[INST]", "[/INST]"]
    assert ids(tessera, ".", names) == [[theirs.get_special_token(name)] for name in names]


def write_merges(folder, ranks, special, merges, **settings):
    folder.mkdir()
    spelled = {byte: character for character, byte in ALPHABET.items()}
    vocabulary = {"".join(spelled[byte] for byte in token): rank for token, rank in ranks.items()}
    vocabulary |= {token: len(vocabulary) + i for i, token in enumerate(special)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize("name, special, settings", [
    ("GPT2Tokenizer", ["<|endoftext|>"], {}),
    ("GPT2Tokenizer", ["<|endoftext|>", "<pad>"], {"add_prefix_space": True, "pad_token": "<pad>"}),
    ("RobertaTokenizer", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], {"mask_token": MASK}),
    ("Qwen2Tokenizer", ["<|endoftext|>", "<|im_start|>"], {"eos_token": "<|endoftext|>"}),
])
def test_vocab_json_with_merges(tessera, ranks, known_lines, name, special, settings):
    from transformers import AutoTokenizer

    pattern = FIXTURES.QWEN2 if name == "Qwen2Tokenizer" else None
    trained = FIXTURES.byte_bpe(1500, list(FIXTURES.texts()), pattern=pattern)
    model = json.loads(trained.to_str())["model"]
    ordered = sorted((token for token in model["vocab"] if "<|" not in token), key=model["vocab"].get)
    numbered = {bytes_of(token): i for i, token in enumerate(ordered)}
    write_merges(tessera.folder / "folder", numbered, special, model["merges"], tokenizer_class=name, **settings)
    theirs = AutoTokenizer.from_pretrained(tessera.folder / "folder")
    some = known_lines + [f"a {token}b" for token in special]
    assert_equal_ids(ids(tessera, "folder", some), theirs(some, add_special_tokens=False)["input_ids"], some)
    assert_equal_ids(ids(tessera, "folder", some, "--special-tokens"), theirs(some)["input_ids"], some)
