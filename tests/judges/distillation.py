"""Losses and gradients of distillation as torch computes them: the reference of tasks/losses/distillation.h.

    python distillation.py > ../tasks/fixtures/distillation.json

tests/tasks/losses/distillation_test.cpp compares distillation_loss() with the file; test_distillation.py compares the file with
the torch of today, and whole runs with torch.
"""
import json
import math
import sys

import torch
from torch.nn import functional

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
ROWS, VOCABULARY = 6, 11


def distillation_loss(logits, teacher, targets, temperature, weight):
    """logits and teacher [rows, vocabulary], targets [rows]; rows with the target -100 do not count."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    counted = targets != -100
    student, taught = logits.to(wide)[counted], teacher.to(wide)[counted]
    divergence = functional.kl_div(functional.log_softmax(student / temperature, -1),
                                   functional.softmax(taught / temperature, -1), reduction="batchmean")
    hard = functional.cross_entropy(logits.to(wide), targets, ignore_index=-100)
    return weight * temperature**2 * divergence + (1 - weight) * hard


def numbers(seed, scale, dtype):
    values = [scale * math.sin(12.9898 * (i + 1) + 78.233 * seed) for i in range(ROWS * VOCABULARY)]
    return torch.tensor(values, dtype=torch.float64).reshape(ROWS, VOCABULARY).to(dtype)


def case(dtype, temperature, weight, ignored, seed):
    logits = numbers(seed, 3, DTYPES[dtype]).requires_grad_()
    teacher = numbers(seed + 1, 4, DTYPES[dtype])
    targets = torch.tensor([-100 if row in ignored else (5 * row + seed) % VOCABULARY for row in range(ROWS)])
    loss = distillation_loss(logits, teacher, targets, temperature, weight)
    loss.backward()
    return {"dtype": dtype, "temperature": temperature, "weight": weight, "shape": [ROWS, VOCABULARY],
            "logits": logits.detach().double().flatten().tolist(), "teacher": teacher.double().flatten().tolist(),
            "targets": targets.tolist(), "loss": loss.double().item(),
            "gradient": logits.grad.double().flatten().tolist()}


def reference():
    settings = [(1.0, 0.5, ()), (2.0, 0.5, ()), (4.0, 1.0, ()), (0.5, 0.1, (0, 3)), (2.0, 0.9, (5,))]
    return [case(dtype, temperature, weight, ignored, seed) for dtype in DTYPES
            for seed, (temperature, weight, ignored) in enumerate(settings)]


if __name__ == "__main__":
    json.dump(reference(), sys.stdout, indent=0)
    sys.stdout.write("\n")
