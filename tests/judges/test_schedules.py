"""The learning rate of every step: the schedules of transformers and torch, and of a run that was stopped and resumed."""
import json

import pytest
import torch
import transformers

STEPS = 60
WARMUP = 6
STABLE = 20  # the stable phase's end
PEAK = 2.0e-3
LOW = 3.0e-4


def rates_of(scheduler):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    schedule = scheduler(optimizer)
    rates = []
    for _ in range(STEPS + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def of_transformers(name, **options):
    """Their warm-up begins at 0, Tessera's with its first step above it: theirs of the next step. After it both agree."""
    rates = rates_of(lambda optimizer: getattr(transformers, name)(optimizer, num_warmup_steps=WARMUP, **options))
    return rates[1:WARMUP + 1] + rates[WARMUP:STEPS]


def of_wsd(decay, low):
    rates = of_transformers("get_wsd_schedule", num_stable_steps=STABLE - WARMUP, num_decay_steps=STEPS - 5 - STABLE,
                            decay_type=decay, min_lr_ratio=low / PEAK)
    return [PEAK * (step + 1) / WARMUP for step in range(WARMUP)] + rates[WARMUP:]  # theirs rises from the minimum


def of_torch(make):
    """After a warm-up in torch's own words."""
    lr = torch.optim.lr_scheduler

    def schedule(optimizer):
        warmup = lr.LinearLR(optimizer, start_factor=1 / WARMUP, total_iters=WARMUP - 1)
        return lr.SequentialLR(optimizer, [warmup, make(lr, optimizer)], milestones=[WARMUP])

    return rates_of(schedule)[:STEPS]


END = STEPS - 5  # the rate stays at the minimum for the last steps
TOTAL = {"num_training_steps": END}
CASES = {
    "constant": ({}, lambda: of_transformers("get_constant_schedule_with_warmup")),
    "linear": ({}, lambda: of_transformers("get_linear_schedule_with_warmup", **TOTAL)),
    "cosine": ({"min_lr": LOW}, lambda: of_transformers("get_cosine_with_min_lr_schedule_with_warmup",
                                                        min_lr=LOW, **TOTAL)),
    "cosine_with_restarts": ({"lr_cycles": 3}, lambda: of_transformers(
        "get_cosine_with_hard_restarts_schedule_with_warmup", num_cycles=3, **TOTAL)),
    "polynomial": ({"lr_power": 2.5, "min_lr": LOW}, lambda: of_transformers(
        "get_polynomial_decay_schedule_with_warmup", power=2.5, lr_end=LOW, **TOTAL)),
    "wsd_linear": ({"lr_decay_start": STABLE, "min_lr": LOW}, lambda: of_wsd("linear", LOW)),
    "wsd_cosine": ({"lr_decay_start": STABLE}, lambda: of_wsd("cosine", 0.0)),
    "wsd_1_sqrt": ({"lr_decay_start": STABLE, "min_lr": LOW}, lambda: of_wsd("1-sqrt", LOW)),
}
OF_TORCH = {
    "polynomial": ({"lr_power": 3.0}, lambda lr, optimizer: lr.PolynomialLR(optimizer, END - WARMUP, 3.0)),
    "cosine_with_restarts": ({"lr_cycles": 7, "min_lr": LOW},
                             lambda lr, optimizer: lr.CosineAnnealingWarmRestarts(optimizer, (END - WARMUP) // 7, eta_min=LOW)),
}


def train(tessera, text, kind, options, steps=STEPS):
    """The rates that the run has logged."""
    metrics = tessera.folder / "metrics.jsonl"
    more = "".join(f", {key}: {value}" for key, value in options.items())
    tessera.train(f"""
model: {{architecture: gpt2, n_layer: 1, n_head: 1, n_embd: 8, seq_len: 8}}
data: {{train: {json.dumps(str(text))}, batch_size: 1}}
train: {{steps: {steps}, lr: {PEAK}, lr_schedule: {kind}, warmup_steps: {WARMUP}, lr_decay_steps: {END}{more}}}
checkpoint: {{dir: {json.dumps(str(tessera.folder / "out"))}, every: 1000}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""")
    return [json.loads(line)["lr"] for line in metrics.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", CASES)
def test_every_step_has_the_rate_of_transformers(tessera, text, kind):
    options, theirs = CASES[kind]
    begun = train(tessera, text, kind, options, steps=27)
    assert len(begun) == 27
    rates = train(tessera, text, kind, options)  # goes on from step 27
    assert len(rates) == STEPS and rates[:27] == begun
    last = END + 1 if kind == "cosine" else STEPS  # transformers' cosine rises again
    assert rates[:last] == pytest.approx(theirs()[:last], rel=1e-8, abs=1e-18)  # the log has nine digits


@pytest.mark.parametrize("kind", OF_TORCH)
def test_every_step_has_the_rate_of_torch(tessera, text, kind):
    options, make = OF_TORCH[kind]
    rates = train(tessera, text, kind, options)
    last = END if kind == "cosine_with_restarts" else STEPS  # torch's restarts do not end
    assert rates[:last] == pytest.approx(of_torch(make)[:last], rel=1e-8, abs=1e-18)
