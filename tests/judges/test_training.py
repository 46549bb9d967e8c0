"""The same weights, data and AdamW in torch and in Tessera: the same losses and gradient norms, step by step."""
import json

import pytest
import torch
from models import MAKERS
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

TOKENS = 64
BATCH = 4  # of the world
STEPS = 12
WEIGHT_DECAY = 0.1
CLIP = 1.0


def batches(text):
    """The file's windows in order, as with `data.shuffle: false`."""
    ids = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    for step in range(STEPS):
        starts = [(step * BATCH + row) * TOKENS for row in range(BATCH)]
        yield (torch.stack([ids[start:start + TOKENS] for start in starts]),
               torch.stack([ids[start + 1:start + TOKENS + 1] for start in starts]))


def balance_loss(router_logits, config, ranks):
    """Each rank has transformers' loss of its own rows of the batch; the ranks' mean counts."""
    losses = [load_balancing_loss_func(logits, config.num_local_experts, config.num_experts_per_tok)
              for logits in zip(*(layer.chunk(ranks) for layer in router_logits), strict=True)]
    return sum(losses) / ranks


def train_in_torch(model, text, rates, ranks):
    """(loss, gradient norm before clipping) of every step."""
    model.train()
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    curve = []
    for (inputs, targets), rate in zip(batches(text), rates, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        output = model(inputs)
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())
        if getattr(model.config, "output_router_logits", False):
            loss = loss + model.config.router_aux_loss_coef * balance_loss(output.router_logits, model.config, ranks)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        curve.append((loss.item(), norm.item()))
    return curve


def train_in_tessera(tessera, folder, text, ranks):
    metrics = tessera.folder / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(folder))}, seq_len: {TOKENS}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {STEPS}, lr: 1.0e-3, lr_schedule: cosine, warmup_steps: 3, min_lr: 1.0e-4,
         weight_decay: {WEIGHT_DECAY}, betas: [0.9, 0.95], max_grad_norm: {CLIP}}}
sharding: {{sharding_strategy: FULL_SHARD}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    steps = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    return steps


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_losses_and_gradient_norms_agree(tessera, tmp_path, text, make, ranks):
    model = make(vocabulary=256)
    model.save_pretrained(tmp_path / "start")
    ours = train_in_tessera(tessera, tmp_path / "start", text, ranks)
    rates = [step["lr"] for step in ours]
    assert max(rates) > 5 * min(rates), "the schedule should have moved the rate"
    theirs = train_in_torch(model, text, rates, ranks)
    assert theirs[-1][0] < 0.9 * theirs[0][0], "the loss should have fallen"
    for step, (loss, norm) in zip(ours, theirs, strict=True):
        assert step["loss"] == pytest.approx(loss, rel=1e-4), step["step"]
        assert step["grad_norm"] == pytest.approx(norm, rel=5e-4), step["step"]
