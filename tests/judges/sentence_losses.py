"""The results of Sentence Transformers' own losses for fixed embeddings: values and gradients.

    python sentence_losses.py > ../tasks/fixtures/sentence_losses.json

The C++ test of the losses reads the file; test_evaluators.py compares it with the current packages.
"""
import json
import math
import sys
import warnings

import torch
from sentence_transformers.sentence_transformer.losses import (
    CosineSimilarityLoss,
    MarginMSELoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    SoftmaxLoss,
)

BATCH, DIMENSION, CLASSES = 8, 6, 3


def numbers(count, seed):
    """Numbers in [-1, 1] that any language can compute."""
    return [math.sin(12.9898 * (i + 1) + 78.233 * seed) for i in range(count)]


def tensor(seed, *shape):
    return torch.tensor(numbers(math.prod(shape), seed), dtype=torch.float64).reshape(shape).requires_grad_()


class Encoder(torch.nn.Module):
    """Replaces a model: a batch's features are its embeddings."""

    device = torch.device("cpu")

    def forward(self, features):
        return features


def features(x):
    return {"sentence_embedding": x}


def measured(loss, leaves):
    loss.backward()
    gradients = {name: leaf.grad.flatten().tolist() for name, leaf in leaves.items()}
    return {"loss": loss.item(), "gradients": gradients}


def cosine():
    u, v, labels = tensor(1, BATCH, DIMENSION), tensor(2, BATCH, DIMENSION), tensor(3, BATCH)
    loss = CosineSimilarityLoss(Encoder()).compute_loss_from_embeddings([u, v], labels.detach())
    return measured(loss, {"u": u, "v": v})


def softmax():
    u, v = tensor(1, BATCH, DIMENSION), tensor(2, BATCH, DIMENSION)
    loss = SoftmaxLoss(Encoder(), DIMENSION, CLASSES)
    head = loss.classifier.double()
    with torch.no_grad():
        head.weight.copy_(tensor(4, CLASSES, 3 * DIMENSION))
        head.bias.copy_(tensor(5, CLASSES))
    labels = torch.tensor([i * i % CLASSES for i in range(BATCH)])
    return measured(loss([features(u), features(v)], labels), {"u": u, "v": v, "weight": head.weight, "bias": head.bias})


def ranking():
    u, v = tensor(1, BATCH, DIMENSION), tensor(2, BATCH, DIMENSION)
    loss = MultipleNegativesRankingLoss(Encoder()).compute_loss_from_embeddings([u, v], None)
    return measured(loss, {"u": u, "v": v})


def mse():
    u, target = tensor(1, BATCH, DIMENSION), tensor(2, BATCH, DIMENSION)
    loss = MSELoss(Encoder()).compute_loss_from_embeddings([u], [target.detach()])
    return measured(loss, {"u": u})


def margin_mse():
    query, positive, negative = (tensor(seed, BATCH, DIMENSION) for seed in (1, 2, 4))
    margins = tensor(3, BATCH)
    loss = MarginMSELoss(Encoder()).compute_loss_from_embeddings([query, positive, negative], margins.detach())
    return measured(loss, {"query": query, "positive": positive, "negative": negative})


def reference():
    warnings.filterwarnings("ignore")
    return {"cosine_similarity": cosine(), "softmax": softmax(), "multiple_negatives_ranking": ranking(), "mse": mse(),
            "margin_mse": margin_mse()}


if __name__ == "__main__":
    json.dump(reference(), sys.stdout, indent=1)
    print()
