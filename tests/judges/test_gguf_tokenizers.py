"""The tokenizer in a GGUF file: llama.cpp gives texts the ids that the `tokenizers` package gives them, or the report
has a note that says why it does not."""
import json
import urllib.request

import llama_server
import pytest
from models import gpt2, llama
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = ["the thin thread that thaws the other 12 345 years café naïve don't stop"] * 9
TEXTS = ["the thin thread", " the other", "  two  spaces ", "thaws<tool>the other", "<tool> the", "the <tool>", "12345 years",
         "cafe\u0301 nai\u0308ve", "café naïve", "Don't STOP", "xyz!? \n\n\tz", "the", "thaws thaws", "\u4e2d\u6587 \U0001f600"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def over_bytes(pre_tokenizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern_of(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def pattern_of(pattern):
    from tokenizers import Regex

    return Regex(pattern)


def pieces(normalizer=None, pre_tokenizer=None, every_pair=True):
    """BPE as SentencePiece has it: all pairs that make a token are merges."""
    spaced = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = spaced
    trained.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=90, show_progress=False))
    found = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += sorted(found["vocab"], key=found["vocab"].get)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in found["merges"]]
    if every_pair:
        merges = [(token[:i], token[i:]) for token in tokens[259:] for i in range(1, len(token))
                  if token[:i] in vocabulary and token[i:] in vocabulary]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


LEGACY = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]


def with_parts(tokenizer, **parts):
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def with_model(tokenizer, change):
    whole = json.loads(tokenizer.to_str())
    change(whole["model"])
    return Tokenizer.from_str(json.dumps(whole))


def forget_merges_of(token):
    def change(model):
        model["merges"] = [merge for merge in model["merges"] if "".join(merge) != token]

    return change


def ignoring(tokenizer, *tokens):
    """Tokens that no merge makes, which ignore_merges finds."""
    def change(model):
        for token in tokens:
            forget_merges_of(token)(model)
        model["ignore_merges"] = True

    return with_model(tokenizer, change)


BEGINS = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
BOTH = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
TWICE = processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", 0)])
THE = "Ġthe"

# The maker, and a part of the note that is to be there; without one the ids must be equal.
CASES = {
    "gpt-2": (over_bytes, None),
    "smollm": (lambda: over_bytes(pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])), None),
    "llama3": (lambda: over_bytes(split(LLAMA3)), None),
    "qwen2": (lambda: over_bytes(split(QWEN2)), None),
    "nfc": (lambda: with_parts(over_bytes(split(QWEN2)), normalizer=normalizers.NFC()), "NFC"),
    "lowercase": (lambda: with_parts(over_bytes(), normalizer=normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Strip()])), "Lowercase, Strip"),
    "prefix space": (lambda: over_bytes(pre_tokenizers.ByteLevel(add_prefix_space=True)), "add_prefix_space"),
    "merges of llama3": (lambda: with_model(over_bytes(split(LLAMA3)), forget_merges_of(THE)), None),
    "no merges of llama3": (lambda: ignoring(over_bytes(split(LLAMA3)), THE), None),
    "no merges of qwen2": (lambda: ignoring(over_bytes(split(QWEN2)), THE), "ignore_merges"),
    "no merges, and none needed": (lambda: ignoring(over_bytes(split(QWEN2))), None),
    "begins": (lambda: with_parts(over_bytes(), post_processor=BEGINS), None),
    "begins and ends": (lambda: with_parts(over_bytes(), post_processor=BOTH), None),
    "begins twice": (lambda: with_parts(over_bytes(), post_processor=TWICE), "one token before a text"),
    "roberta": (lambda: with_parts(over_bytes(), post_processor=processors.RobertaProcessing(
        ("</s>", 1), ("<s>", 0), add_prefix_space=False)), None),
    "pieces": (lambda: pieces(normalizers.Sequence(LEGACY)), None),
    "pieces without a space": (lambda: pieces(LEGACY[1]), None),
    "metaspace never": (lambda: pieces(None, pre_tokenizers.Metaspace(prepend_scheme="never", split=False)), None),
    "metaspace first": (lambda: pieces(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
                        "or follows a special token"),
    "metaspace always": (lambda: pieces(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=False)),
                         "where the text begins with one"),
    "pieces of digits": (lambda: pieces(normalizers.Sequence(LEGACY), pre_tokenizers.Digits(True)), "Digits"),
    "pieces of nfkc": (lambda: pieces(normalizers.Sequence([normalizers.NFKC(), *LEGACY])), "NFKC"),
    "stripping": (lambda: (lambda t: (t.add_tokens([AddedToken("<tool>", lstrip=True, rstrip=True)]), t)[1])(over_bytes()),
                  "lstrip, rstrip"),
}


def ids_in_llama_cpp(path, texts):
    server = llama_server.start(path)
    found = []
    for text in texts:
        body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
        request = urllib.request.Request(f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found.append(json.load(answer)["tokens"])
    return found


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_the_tokenizer_or_a_note_says_so(tessera, case):
    make, note = CASES[case]
    tokenizer = make()
    size = tokenizer.get_vocab_size()
    of_bytes = "tool" not in case and tokenizer.token_to_id("<0x00>") is None
    model = gpt2(size, n_embd=32, n_layer=1) if of_bytes else llama(size, hidden_size=32, num_hidden_layers=1)
    model.config.eos_token_id = tokenizer.token_to_id("</s>")
    model.config.bos_token_id = tokenizer.token_to_id("<s>")
    folder = tessera.folder / "hf"
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    report = tessera.run("convert", "hf", "m.gguf", "--to", "gguf")
    notes = [line for line in report.splitlines() if line.startswith("note: llama.cpp")]
    theirs = ids_in_llama_cpp(tessera.folder / "m.gguf", TEXTS)
    different = [text for text, found in zip(TEXTS, theirs) if found != tokenizer.encode(text).ids]
    if note is None:
        assert not different, (different, notes)
        assert not notes
    else:
        assert len(notes) == 1 and note in notes[0], notes
        assert different
