#!/usr/bin/env python3
"""Makes tests/tokenizers/fixtures anew: small tokenizers of every kind, trained here by the `tokenizers` package, and in
cases.json what that package makes of lines that are hard to get right.

    PYTHON tests/tokenizers/make_fixtures.py [FOLDER]

PYTHON is that of scripts/judges. tests/judges/test_tokenizers.py takes the same kinds from here, in other sizes.
"""
import base64
import json
import os
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LANGUAGES = [
    "Größe und Straßenbahn im Café – naïve Fiancée", "Привет, как дела? Всё хорошо!", "你好，世界！今天天气很好。",
    "日本語のテキストです。カタカナとひらがな", "안녕하세요 세계, 한국어 문장입니다", "مرحبا بالعالم كيف حالك",
    "שלום עולם מה שלומך", "नमस्ते दुनिया, आप कैसे हैं?", "สวัสดีชาวโลก", "Ελληνικά γράμματα ΆΈΉ ς σ Σ",
    "Tiếng Việt có dấu: ở đâu đó", "İstanbul ıssız IĞDIR", "ქართული ენა Ა", "ཀ་ཁ་ག བོད་ཡིག",
]
TRAPS = [
    "", " ", "   ", "\t", "a", " a", "a ", "  a  b   c ", "👩‍👩‍👧‍👦 family 🇩🇪🇫🇷 👍🏽 emoji 😀",
    "e\u0301 e\u0316\u0301 a\u030a\u0323 combining \u0301", "don't won't I'll WE'VE it'S 'tis \u017fo it'\u017f",
    "x=1234567890 3.14159 1,000,000 ٣٤٥ ½ ² Ⅷ 12 123 1234", "tabs\tand  double   spaces \u00a0nbsp\u2003em\u3000ideo",
    "ﬁ ﬂ ﬃ Å Ω ℌ ① ㍿ ｆｕｌｌ", "\u200b\u200d\ufeff\u00ad zero", "a\rb\r\nc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i\x00j\x7fk",
    "lines\n\nand\n lines\n  \n", "<|endoftext|>[CLS] [SEP][MASK] <unk> </s><s>", "NEW xNEW NEW, new  NEW  Éa É",
    "http://a.b/c?d=e&f=%20#g user@host.com", "ſtraße K Kelvin ǅ ß ẞ", "\u180e mongolian sep ᠠᠡᠢ", "אָ שּׁ ﬡ",
    "각 각 ᄀᄁ", "𝐀𝐁𝐂 𝒳 𐐀𐐨 𠀀𠀁 𪜀 \U0010fffd \ue000", "\u166d \U000111c9 \u1734 \u1885 \ua9bd \u09fe\u0316", "A" * 300,
    "ab" * 200 + "é" * 150, "中" * 120, "-" * 130 + "!?" * 70, " " * 90, "<0x41>", "▁ ▁▁a b▁c", "it is the time of the best",
    "\u0301new \u0301", "\u00a0a\u00a0", "\u0301\u0301",
]
LINES = LANGUAGES + TRAPS
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def texts():
    """Something to learn from: the languages, and sentences over few words."""
    people, deeds = "cat dog king queen soldier citizen".split(), "sees hears loves follows answers".split()
    for i in range(600):
        yield (f"The {people[i % 6]} {deeds[i % 5]} the {people[(i // 5) % 6]}, and it's the {i}th time; "
               f"who'll answer? {LANGUAGES[i % len(LANGUAGES)]}")


def bpe(size, **options):
    return trainers.BpeTrainer(vocab_size=size, show_progress=False, **options)


def byte_bpe(size, text, *, pattern=None, normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = byte_level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(text, bpe(size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                            special_tokens=["<|endoftext|>"]))
    return tokenizer


def gpt2(size, text):
    tokenizer = byte_bpe(size, text)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3(size, text):
    tokenizer = byte_bpe(size, text, pattern=LLAMA3, ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def qwen2(size, text):
    return byte_bpe(size, text, pattern=QWEN2, normalizer=normalizers.NFC())


def roberta(size, text):
    tokenizer = byte_bpe(size, text)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")),
                                                            ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def unigram(size, text):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                                 normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(text, trainers.UnigramTrainer(
        vocab_size=size, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def precompiled(size, text):
    """Unigram behind SentencePiece's table, as T5 and XLM-R have it; bytes for what is unknown."""
    tokenizer = unigram(size, text)
    file = json.loads(tokenizer.to_str())
    file["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap()).decode()},
        {"type": "Strip", "strip_left": False, "strip_right": True}]}
    file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    file["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    file["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(file))


def charsmap():
    """A table that makes A to a, é (in one and in two characters) to E, ﬁ to fi, drops U+0301 and turns tabs into
    spaces: a double-array trie, laid out unit by unit, and the replacements."""
    table = {"A": "a", "é": "E", "e\u0301": "E2", "ﬁ": "fi", "\u0301": "", "\t": " ", "\r\n": "|"}
    keys = {key.encode(): value for key, value in table.items()}
    blob, values = b"", {}
    for key in sorted(keys):
        values[key], blob = len(blob), blob + keys[key].encode() + b"\0"
    units = {}

    def place(prefix, at):
        labels = sorted({key[len(prefix)] for key in keys if key.startswith(prefix) and len(key) > len(prefix)})
        leaf = prefix in keys
        wanted = labels + ([0] if leaf else [])
        base = next(base for base in range(256, 1 << 16) if all(base ^ label not in units for label in wanted))
        for label in wanted:
            units[base ^ label] = label
        offset = base ^ at
        units[at] = units.get(at, 0) | (offset << 10) | (int(leaf) << 8)
        if leaf:
            units[base] = (1 << 31) | values[prefix]
        for label in labels:
            place(prefix + bytes([label]), base ^ label)

    units[0] = 0
    place(b"", 0)
    array = [units.get(i, 0) for i in range((max(units) | 255) + 1)]  # whole blocks, as readers expect
    return struct.pack("<I", 4 * len(array)) + struct.pack(f"<{len(array)}I", *array) + blob


def bert(size, text):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special,
                                                                  show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def cased(size, text):
    tokenizer = bert(size, text)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def llama2(size, text):
    """One word from the first to the last character, and bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator([line[:40] for line in text], bpe(size, special_tokens=special))
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(file))


def openai(size, text):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix="@@"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(),
                                                 normalizers.StripAccents(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("contiguous")])
    tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.train_from_iterator(text, bpe(size, special_tokens=["<unk>"], end_of_word_suffix="</w>",
                                            continuing_subword_prefix="@@"))
    return tokenizer


def words(size, text):
    """Whole words, cut by the pre-tokenizers that no other kind has."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Replace("the", "THE")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.CharDelimiterSplit("-"), pre_tokenizers.Digits(),
        pre_tokenizers.Split(Regex("[,;?!]"), "merged_with_previous"),
        pre_tokenizers.Split("'", "merged_with_next"), pre_tokenizers.Split(Regex("[a-z]{3}"), "removed", invert=True),
        pre_tokenizers.FixedLength(2)])
    tokenizer.train_from_iterator(text, trainers.WordLevelTrainer(vocab_size=size, special_tokens=["<unk>"],
                                                                  show_progress=False))
    return tokenizer


def scripts(size, text):
    """Cut where the writing system changes; the ids tell where."""
    tokenizer = pattern_tokenizer("")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.UnicodeScripts(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def added(size, text):
    """Added tokens with every flag."""
    tokenizer = bert(size, text)
    tokenizer.add_tokens([AddedToken("NEW", single_word=True), AddedToken("Éa", normalized=True),
                          AddedToken("É", normalized=False, lstrip=True, rstrip=True), AddedToken("12", lstrip=True),
                          AddedToken("123", rstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("</s>", rstrip=True), AddedToken("<s>", lstrip=True)])
    return tokenizer


# Patterns of published tokenizers, and one for each construct that Oniguruma reads in its own way.
PUBLISHED = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-3": LLAMA3, "qwen2": QWEN2,
    "kimi-k2": "|".join([
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]),
    "bloom": " ?[^(\\s|[.,!?…。，、।۔،])]+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
              r"\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": "|".join([
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]),
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| "
                r"?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
CONSTRUCTS = [
    r"[\p{L}&&[^\p{Han}]]+", r"[a-z&&[aeiou]]+|[a-z&&[^aeiou]]+", r"[a-z[0-9]]+", r"[^a-z[0-9]]+", r"[^\s&&[^a-m]]+",
    r"\h+", r"\H+", r"\p{L}{,3}", r"\p{N}{1,3}+", r"\p{N}{2}+", r"[a-z]{,2}?e", r"[[:punct:]]+", r"[^[:punct:]\s]+|[a[:^punct:]]", r"[[:^space:]]{3}",
    r"[[:alpha:]]+|[[:digit:]]+", r"[[:word:][:cntrl:]]+", r"\b", r"\B\w", r"(?<x>..\g<x>?)", r"(?<x>\((?:[^()]|\g<x>)*\))",
    r"\p{Alnum}+", r"[\u4e00-\u9fff]+", r"(?~and)", r"\w+|\W+", r"\d+", r"(?m).+", r".+", r"(?i)THE|ss|ﬁ", r"(?i:ß)",
    r"\X", r"\R", r"e\K\w", r"^\w|\w$", r"\A\w+|\w+\z", r"(?<=e)\w+", r"(?<!e)\s", r"(?>a+)b", r"\p{^L}+",
    r"\x{4e00}|\x41|\141", r"(\w)\1", r"(?<c>\w)\k<c>", "(?x) \\w+ # words\n | \\s", r"\w++\s", r"(?:a|b)*?c",
    r"\p{Emoji}+", r"\O{4}", r"\N+", r"(?W:\w+)", r"\G\w", r"(a|b|ab)*+c", r"[\p{Greek}\p{Cyrillic}]+", r"x*", r"(?=[A-Z])",
    r"\p{L}+(?i:'s)?", r"[\w'-]+", r"[]a]+", r"[a-c-e]+", r"\y", r"(?<n>\d)(?(<n>)\.|x)",
]
PATTERN_LINES = [LANGUAGES[i] for i in (0, 1, 3, 5, 7)] + TRAPS[10:13] + [
    "  a  b   c ", "Hello world, it is 中文 text 12345678 and 0xdeadbeef.", "foo (bar (baz) qux) baz। हिन्दी में۔ عربى، كلمة",
    "stroße STRASSE aab aabab abababc [x]- a-c-e ---", "👩‍👩‍👧‍👦 family 🇩🇪🇫🇷 1.x 22.x", "xx\nAxBxx\n\nThe the THE\n",
]


def pattern_tokenizer(pattern, behavior="isolated", invert=False, replacement=None):
    """Tells by the ids where the pattern cut: a byte at the beginning of a word has another id than one inside."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(alphabet + ["##" + byte for byte in alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], continuing_subword_prefix="##"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if replacement is None:
        split = pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        tokenizer.normalizer = normalizers.Replace(Regex(pattern), replacement)
        tokenizer.pre_tokenizer = byte_level
    return tokenizer


def pattern_cases():
    """(pattern, keywords of pattern_tokenizer) of every pattern, and of some in other roles."""
    for pattern in list(PUBLISHED.values()) + CONSTRUCTS:
        yield pattern, {}
    for pattern in (r"x*", r"\b", r"(?=[A-Z])", r"\h+", r"[a-z&&[aeiou]]+"):
        for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
            yield pattern, {"behavior": behavior}
        yield pattern, {"invert": True}
    for pattern in (r"\h+", r"[a-z&&[aeiou]]+", r"\p{N}{1,3}+"):
        yield pattern, {"replacement": "_"}


def patterns(folder):
    """patterns.json: tokenizers that differ in a pattern, and their ids."""
    cases = []
    for pattern, options in pattern_cases():
        tokenizer = pattern_tokenizer(pattern, **options)
        file = json.loads(tokenizer.to_str())
        ids = [" ".join(map(str, tokenizer.encode(line).ids)) for line in PATTERN_LINES]
        cases.append({"pre_tokenizer": file["pre_tokenizer"], "normalizer": file["normalizer"], "ids": ids})
    with open(os.path.join(folder, "patterns.json"), "w", encoding="ascii") as out:
        json.dump({"tokenizer": json.loads(pattern_tokenizer("a").to_str()), "lines": PATTERN_LINES, "cases": cases}, out)
        out.write("\n")


KINDS = {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "roberta": roberta, "unigram": unigram,
         "precompiled": precompiled, "bert": bert, "cased": cased, "llama2": llama2, "openai": openai, "words": words,
         "scripts": scripts, "added": added}


def sentencepiece_model(vocabulary):
    """A SentencePiece model file of a Unigram vocabulary, without any normalisation."""
    def field(number, wire, payload):
        return varint(number << 3 | wire) + (varint(len(payload)) if wire == 2 else b"") + payload

    def varint(value):
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    out = b""
    for index, (piece, score) in enumerate(vocabulary):
        kind = 2 if index == 0 else 3 if index < 3 else 1  # unknown, control, normal
        out += field(1, 2, field(1, 2, piece.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, varint(kind)))
    out += field(2, 2, field(3, 0, varint(1)))  # a Unigram model
    return out + field(3, 2, field(1, 2, b"identity"))


def cases(tokenizer, lines):
    return {"ids": [tokenizer.encode(line, add_special_tokens=False).ids for line in lines],
            "sequence": [tokenizer.encode(line).ids for line in lines],
            "text": [tokenizer.decode(tokenizer.encode(line, add_special_tokens=False).ids) for line in lines]}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "fixtures")
    os.makedirs(folder, exist_ok=True)
    text = list(texts())
    expected = {}
    for name, make in KINDS.items():
        tokenizer = make(400 if name in ("bert", "added", "cased") else 560, text)
        tokenizer.save(os.path.join(folder, f"{name}.json"), pretty=False)
        expected[name] = cases(tokenizer, LINES)
    patterns(folder)
    vocabulary(folder, expected, text)
    pieces(folder, expected, text)
    with open(os.path.join(folder, "cases.json"), "w", encoding="ascii") as file:
        json.dump({"lines": LINES, "expected": expected}, file)
        file.write("\n")


def vocabulary(folder, expected, text):
    """A folder as BERT's authors published it: vocab.txt and a little configuration."""
    tokenizer = cased(400, text)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False)
    place = os.path.join(folder, "vocab_txt")
    os.makedirs(place, exist_ok=True)
    listed = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    with open(os.path.join(place, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("".join(token + "\n" for token in listed))
    with open(os.path.join(place, "tokenizer_config.json"), "w", encoding="ascii") as file:
        json.dump({"do_lower_case": False, "tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizer"}, file)
    expected["vocab_txt/vocab.txt"] = cases(tokenizer, LINES)


def pieces(folder, expected, text):
    """A SentencePiece model, and the same vocabulary as the package reads it, on lines that both normalise alike."""
    tokenizer = unigram(300, text)
    file = json.loads(tokenizer.to_str())
    with open(os.path.join(folder, "pieces.model"), "wb") as model:
        model.write(sentencepiece_model(file["model"]["vocab"]))
    # SentencePiece joins spaces and keeps none at the ends; its scores are 32 bits wide.
    file["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True}]}
    for entry in file["model"]["vocab"]:
        entry[1] = struct.unpack("<f", struct.pack("<f", entry[1]))[0]
    file["added_tokens"], file["post_processor"] = [], None
    tokenizer = Tokenizer.from_str(json.dumps(file))
    plain = [line for line in LINES if not set(line) & set("\t\n\r\x00\x0b\x0c\x1c\x85\u2028\u2029\u00a0\u2003\u3000<▁")]
    found = cases(tokenizer, plain)
    found["text"] = [line.replace("<unk>", " \u2047 ") for line in found["text"]]  # the library's word for it
    expected["pieces.model"] = {"lines": plain, **found}


if __name__ == "__main__":
    main()
