"""Losses and gradients of hidden states as torch computes them: the reference of tasks/losses/teacher_states.h.

    python teacher_states.py > ../tasks/fixtures/teacher_states.json

tests/tasks/losses/teacher_states_test.cpp compares teacher_state_loss() with the file; test_distillation.py compares the file
with the torch of today, and whole runs with torch.
"""
import json
import math
import sys

import torch
from torch.nn import functional

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
ROWS, WIDTH = 6, 12


def state_loss(student, teacher, targets, loss):
    """student and teacher [rows, width], targets [rows]; rows with the target -100 do not count. DistilBERT's losses."""
    wide = torch.float64 if student.dtype == torch.float64 else torch.float32
    counted = targets != -100
    student, teacher = student.to(wide)[counted], teacher.to(wide)[counted]
    if loss == "mse":
        return functional.mse_loss(student, teacher)
    return functional.cosine_embedding_loss(student, teacher, torch.ones(len(student)), reduction="mean")


def numbers(seed, dtype):
    values = [2 * math.sin(12.9898 * (i + 1) + 78.233 * seed) for i in range(ROWS * WIDTH)]
    return torch.tensor(values, dtype=torch.float64).reshape(ROWS, WIDTH).to(dtype)


def case(dtype, loss, ignored, seed):
    student = numbers(seed, DTYPES[dtype]).requires_grad_()
    teacher = numbers(seed + 1, DTYPES[dtype])
    targets = torch.tensor([-100 if row in ignored else row for row in range(ROWS)])
    value = state_loss(student, teacher, targets, loss)
    value.backward()
    return {"dtype": dtype, "loss": loss, "shape": [ROWS, WIDTH], "student": student.detach().double().flatten().tolist(),
            "teacher": teacher.double().flatten().tolist(), "targets": targets.tolist(), "value": value.double().item(),
            "gradient": student.grad.double().flatten().tolist()}


def reference():
    return [case(dtype, loss, ignored, seed) for dtype in DTYPES
            for seed, (loss, ignored) in enumerate([("mse", ()), ("mse", (0, 3)), ("cosine", ()), ("cosine", (5,))])]


if __name__ == "__main__":
    json.dump(reference(), sys.stdout, indent=0)
    sys.stdout.write("\n")
