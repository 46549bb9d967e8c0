"""`tokenize`, `encode`, `evaluate`, `generate`: texts with line breaks, lists, and arrays."""

import pytest
from module_testing import TEXT, TOKENIZER, folder, recipe, tessera  # noqa: F401  (a fixture)


def test_tokenize(folder):  # noqa: F811
    assert tessera.tokenize("a\nb", tokenizer="bytes") == [97, 10, 98]
    assert tessera.tokenize(["a", "", "\u00e9"], tokenizer="bytes") == [[97], [], [195, 169]]
    assert tessera.tokenize([], tokenizer="bytes") == []
    plain = tessera.tokenize("a rank", tokenizer=TOKENIZER)
    around = tessera.tokenize("a rank", tokenizer=TOKENIZER, special_tokens=True)
    assert around[1:-1] == plain
    with pytest.raises(TypeError, match="text 1 is int, not str"):
        tessera.tokenize(["a", 1], tokenizer="bytes")
    with pytest.raises(tessera.Error, match="nothing"):
        tessera.tokenize("a", tokenizer="nothing")


def test_generate_and_perplexity(folder):  # noqa: F811
    tessera.train(recipe(checkpoint={"dir": "out"}))
    one = tessera.generate("out", "The\nfile", max_new_tokens=4)
    assert one["prompt"] == "The\nfile" and len(one["tokens"]) == 4
    assert tessera.generate("out", ["The\nfile", "A"], max_new_tokens=4)[0] == one
    assert tessera.generate("out", []) == []
    with pytest.raises(tessera.DataError, match="^prompts: line 1 is empty"):
        tessera.generate("out", "")
    score = tessera.evaluate("out", "text.txt", task="perplexity")
    assert score["task"] == "perplexity" and score["numbers"]["perplexity"] > 1


def test_sentences(folder):  # noqa: F811
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    sentences = TEXT.splitlines()
    rows = [{"a": first, "b": second, "score": score} for first, second, score in
            zip(sentences, sentences[::-1], (1.0, 4.5, 4.0, 0.5))]
    (folder / "sts.tsv").write_text("".join(f"{row['a']}\t{row['b']}\t{row['score']}\n" for row in rows), encoding="utf-8")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    tessera.train({
        "model": {"architecture": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                  "intermediate_size": 64, "hidden_act": "gelu", "max_position_embeddings": 64, "layer_norm_eps": 1e-12,
                  "seq_len": 64},
        "data": {"tokenizer": folder / "tokenizer", "batch_size": 2,
                 "train": [{"file": "sts.tsv", "columns": [1, 2, 3], "loss": "cosine_similarity", "label_scale": 5}]},
        "train": {"task": "sentence_pairs", "steps": 1, "lr": 2e-5}, "checkpoint": {"dir": "encoder"}})
    found = tessera.encode("encoder", [*sentences, "two\nlines"], normalize=True)
    assert found.shape == (5, 32) and found.dtype == numpy.float32
    assert numpy.allclose(numpy.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert numpy.array_equal(tessera.encode("encoder", sentences[0], normalize=True, ranks=2), found[0])
    by_rows = tessera.evaluate("encoder", rows, columns=["a", "b", "score"], label_scale=5)
    assert by_rows == tessera.evaluate("encoder", "sts.tsv", columns=[1, 2, 3], label_scale=5)
    assert by_rows["samples"] == 4 and -1 <= by_rows["numbers"]["spearman_cosine"] <= 1
    assert tessera.encode("encoder", []).shape == (0, 0)
    with pytest.raises(tessera.DataError, match=r"sentences:2: an empty line"):
        tessera.encode("encoder", ["a", ""])
