"""Sentences through RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ModernBERT and T5 with the tokenizers of their kinds: embeddings equal
those of Sentence Transformers, for bare folders, and for folders that a run of Tessera trained and saved."""
import json

import numpy
import pytest
from test_encoders import camembert, distilbert, modernbert, roberta, t5, xlm_roberta
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

pytest.importorskip("sentence_transformers")
from sentence_transformers import SentenceTransformer  # noqa: E402

TEXTS = [" ".join(["Ein", "the", "cat", "über", "plays", "東京", "naïve", "1234.5", "it's", "  two", "😀", "rain,"][i % 12]
                  for i in range(seed, seed * 7 % 90 + 2 * seed + 1)) for seed in range(1, 40)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                                             special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                        show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


KINDS = {"roberta": (roberta, byte_level), "xlm-roberta": (xlm_roberta, unigram), "camembert": (camembert, unigram),
         "distilbert": (distilbert, word_piece), "modernbert": (modernbert, byte_level), "t5": (t5, unigram)}


@pytest.fixture(params=KINDS.items(), ids=KINDS.keys())
def folder(request, tmp_path):
    """A bare folder of transformers, with its tokenizer."""
    name, (make, tokenizer) = request.param
    made = tokenizer()
    model = make(vocab_size=made.get_vocab_size())
    path = tmp_path / name
    model.save_pretrained(path)
    words = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    if name != "distilbert":
        words = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
                 "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **words).save_pretrained(path)
    return path


def encode(tessera, path, name):
    source = tessera.folder / "texts.txt"
    source.write_text("".join(text + "\n" for text in TEXTS), encoding="utf-8")
    tessera.run("encode", path, "--input", source, "--out", name)
    return numpy.load(tessera.folder / name)


def assert_theirs(tessera, path, name):
    ours = encode(tessera, path, name)
    model = SentenceTransformer(str(path), device="cpu")
    theirs = model.encode(TEXTS)
    assert max(len(ids) for ids in model.tokenize(TEXTS)["input_ids"]) == 64, "some texts are cut"
    assert theirs.std() > 0.02
    assert numpy.abs(ours - theirs).max() < 1e-5
    return ours


def test_embeddings_before_and_after_training(tessera, folder):
    before = assert_theirs(tessera, folder, "before.npy")
    rows = [{"first": TEXTS[i], "second": TEXTS[i + 1], "score": (i % 5) / 4} for i in range(16)]
    pairs = tessera.folder / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    steps = tessera.folder / "steps"
    tessera.train(json.dumps({
        "model": {"pretrained": str(folder)},
        "data": {"train": [{"file": str(pairs), "columns": ["first", "second", "score"], "loss": "cosine_similarity"}],
                 "batch_size": 4},
        "train": {"task": "sentence_pairs", "steps": 3, "lr": 0.01},
        "sharding": {"sharding_strategy": "FULL_SHARD"},
        "checkpoint": {"dir": str(steps)}}), ranks=2)
    after = assert_theirs(tessera, steps / "step-3", "after.npy")
    assert numpy.abs(after - before).max() > 0.01
