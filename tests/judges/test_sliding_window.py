"""Mistral past its sliding window: transformers and Tessera compute, train and generate the same."""
import json

import pytest
import torch
from models import assert_close, logits_of, mistral, prompt

WINDOW = 8
TOKENS = 32
STEPS = 5
BATCH = 4


@pytest.fixture
def model():
    return mistral(vocabulary=256, positions=64, sliding_window=WINDOW, attn_implementation="eager")


def test_logits(tessera, tmp_path, model):
    model.save_pretrained(tmp_path / "mistral")
    ids = prompt(TOKENS, 256)
    ours, theirs = tessera.logits(tmp_path / "mistral", ids), logits_of(model, ids)
    assert_close(ours, theirs, tolerance=1e-5 * theirs.abs().max().item())
    model.config.sliding_window = None
    assert (logits_of(model, ids) - theirs).abs().max() > 0.01, "the window should change the logits"


def test_greedy_continuation(tessera, tmp_path, model):
    model.save_pretrained(tmp_path / "mistral")
    ids = prompt(5, 256)
    written = tessera.run("generate", tmp_path / "mistral", "--prompt-ids", ",".join(map(str, ids)),
                          "--max-new-tokens", TOKENS - 5, "--temperature", 0)
    for _ in range(TOKENS - 5):
        ids.append(logits_of(model, ids)[-1].argmax().item())
    assert [int(token) for token in written.split(",")] == ids


@pytest.mark.parametrize("ranks", [1, 2])
def test_training(tessera, tmp_path, text, model, ranks):
    model.save_pretrained(tmp_path / "start")
    metrics = tmp_path / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(tmp_path / "start"))}, seq_len: {TOKENS}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {STEPS}, lr: 1.0e-3, lr_schedule: constant, weight_decay: 0.0, betas: [0.9, 0.95], max_grad_norm: 1.0}}
sharding: {{sharding_strategy: FULL_SHARD}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    ours = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    ids = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    assert len(ours) == STEPS
    for step in range(STEPS):
        rows = ids[step * BATCH * TOKENS:(step + 1) * BATCH * TOKENS + 1]
        logits = model(rows[:-1].view(BATCH, TOKENS)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert ours[step]["loss"] == pytest.approx(loss.item(), rel=1e-5), step
        assert ours[step]["grad_norm"] == pytest.approx(norm.item(), rel=5e-5), step
