"""AdamW with 8-bit moments: its curve over 200 steps beside its formula in NumPy, bitsandbytes' AdamW8bit
(where it is installed and runs on the CPU) and torch's AdamW; its state beside that of the formula."""
import copy
import json
import math

import numpy
import pytest
import torch
from models import gpt2
from text_batches import batches

TOKENS = 64
BATCH = 4  # of the world
STEPS = 200
MIDDLE = 100
RATE = 1.0e-3
BETAS = (0.9, 0.98)
EPS = 1.0e-8
WEIGHT_DECAY = 0.1
CLIP = 1.0
BLOCK = 256
LEAST = 4096  # elements of a parameter with 8-bit moments


def dynamic_map(signed):
    """The values of the codes, ascending (arXiv:2110.02861): 0, 1, and in each of 7 decades the middles of equal
    parts, twice as many in each decade as in the one below."""
    values = [0.0, 1.0]
    for decade in range(7):
        parts = 2 ** decade * (1 if signed else 2)
        middles = [10.0 ** (decade - 6) * (0.1 + 0.9 * (part + 0.5) / parts) for part in range(parts)]
        values += middles + ([-middle for middle in middles] if signed else [])
    return numpy.sort(numpy.array(values)).astype(numpy.float32)


SIGNED, UNSIGNED = dynamic_map(True), dynamic_map(False)


def decode(codes, scales, values, count):
    numbers = values[codes] * numpy.repeat(scales, BLOCK)
    return numbers[:count]


def encode(numbers, values):
    padded = numpy.zeros(-(-len(numbers) // BLOCK) * BLOCK, numpy.float32)
    padded[:len(numbers)] = numbers
    blocks = padded.reshape(-1, BLOCK)
    scales = numpy.abs(blocks).max(1)
    parts = (blocks / numpy.where(scales == 0, 1, scales)[:, None]).reshape(-1)
    codes = numpy.searchsorted((values[1:] + values[:-1]) / 2, parts)
    if values[0] == 0:
        codes = numpy.where(parts > 0, numpy.maximum(codes, 1), codes)  # a divisor does not become 0
    return codes, scales


class Formula(torch.optim.Optimizer):
    """AdamW on the numbers of the codes, which become codes again after the parameter's step."""

    def __init__(self, groups):
        super().__init__(groups, {"weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                gradient = parameter.grad.numpy().reshape(-1)
                count = gradient.size
                narrow = count >= LEAST
                if not state:
                    zeros = numpy.zeros(count, numpy.float32)
                    state["step"] = 0
                    state["m"] = encode(zeros, SIGNED) if narrow else zeros
                    state["v"] = encode(zeros, UNSIGNED) if narrow else zeros
                state["step"] += 1
                m = decode(*state["m"], SIGNED, count) if narrow else state["m"]
                v = decode(*state["v"], UNSIGNED, count) if narrow else state["v"]
                m = numpy.float32(BETAS[0]) * m + numpy.float32(1 - BETAS[0]) * gradient
                v = numpy.float32(BETAS[1]) * v + numpy.float32(1 - BETAS[1]) * gradient * gradient
                root = numpy.sqrt(v) / math.sqrt(1 - BETAS[1] ** state["step"]) + EPS
                parameter *= 1 - RATE * group["weight_decay"]
                change = RATE / (1 - BETAS[0] ** state["step"]) * m / root
                parameter -= torch.from_numpy(change.astype(numpy.float32)).reshape(parameter.shape)
                state["m"] = encode(m, SIGNED) if narrow else m
                state["v"] = encode(v, UNSIGNED) if narrow else v


def groups_of(model):
    return [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]


def train_in_torch(model, text, make):
    model.train()
    optimizer = make(groups_of(model))
    losses = []
    for inputs, targets in batches(text, STEPS, BATCH, TOKENS):
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) == MIDDLE:
            optimizer.middle = {p: copy.deepcopy(state) for p, state in optimizer.state.items()}
    return losses, optimizer


def train_in_tessera(tessera, folder, text, ranks, optimizer="adamw8bit"):
    metrics = tessera.folder / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(folder))}, seq_len: {TOKENS}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {STEPS}, optimizer: {optimizer}, lr: {RATE}, lr_schedule: constant, weight_decay: {WEIGHT_DECAY},
         betas: [{BETAS[0]}, {BETAS[1]}], max_grad_norm: {CLIP}}}
checkpoint: {{dir: {json.dumps(str(tessera.folder / "out"))}, every: {MIDDLE}, state_dict_type: SHARDED_STATE_DICT}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    return [json.loads(line)["loss"] for line in metrics.read_text(encoding="utf-8").splitlines()]


def largest_difference(ours, theirs):
    return max(abs(a - b) / b for a, b in zip(ours, theirs))


@pytest.mark.parametrize("ranks", [1, 2])
def test_follows_its_formula(tessera, tmp_path, text, ranks):
    model = gpt2(vocabulary=256)
    model.save_pretrained(tmp_path / "start")
    ours = train_in_tessera(tessera, tmp_path / "start", text, ranks)
    theirs, optimizer = train_in_torch(model, text, Formula)
    assert len(ours) == STEPS
    assert theirs[-1] < 0.8 * theirs[0], "the loss should have fallen"
    # A number near the middle of two values has either code, so the curves part slowly; where the
    # loss jumps, single steps differ by 1e-2 on some processors, and the mean does not.
    assert ours[:20] == pytest.approx(theirs[:20], rel=1e-5)  # 1.7e-5 if the decay came after the step
    assert ours[:MIDDLE] == pytest.approx(theirs[:MIDDLE], rel=1e-3)
    assert sum(ours[MIDDLE:]) == pytest.approx(sum(theirs[MIDDLE:]), rel=2e-3)

    tessera.run("convert", tmp_path / f"out/step-{MIDDLE}", tmp_path / "torch.pt", "--to", "torch")
    state = torch.load(tmp_path / "torch.pt", weights_only=True)["optimizer"]["state"]
    narrow = 0
    for name, parameter in model.named_parameters():
        count = parameter.numel()
        if count < LEAST:
            assert {"exp_avg", "exp_avg_sq"} <= set(state[name]), name
            continue
        narrow += 1
        saved = state[name]
        assert saved["exp_avg_8bit"].dtype == torch.uint8 and saved["exp_avg_8bit"].shape == parameter.shape
        assert saved["exp_avg_scale"].shape == (-(-count // BLOCK),)
        for mine, key, values in (("exp_avg", "m", SIGNED), ("exp_avg_sq", "v", UNSIGNED)):
            codes = numpy.zeros(-(-count // BLOCK) * BLOCK, numpy.int64)
            codes[:count] = saved[f"{mine}_8bit"].numpy().reshape(-1)
            got = decode(codes, saved[f"{mine}_scale"].numpy(), values, count)
            wanted = decode(*optimizer.middle[parameter][key], values, count)
            assert numpy.linalg.norm(got - wanted) < 0.05 * numpy.linalg.norm(wanted), (name, mine)
    assert narrow > 0


def test_is_near_torch_s_adamw(tessera, tmp_path, text):
    model = gpt2(vocabulary=256)
    model.save_pretrained(tmp_path / "start")
    ours = train_in_tessera(tessera, tmp_path / "start", text, 2)
    theirs, _ = train_in_torch(model, text, lambda groups: torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS))
    # Single losses: measured 0.023.
    assert largest_difference(ours, theirs) < 0.05


def test_is_near_bitsandbytes(tessera, tmp_path, text):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    functional = pytest.importorskip("bitsandbytes.functional")
    for signed, values in ((True, SIGNED), (False, UNSIGNED)):
        theirs = functional.create_dynamic_map(signed).cpu().numpy()
        numpy.testing.assert_allclose(values, theirs, rtol=1e-5)
    model = gpt2(vocabulary=256)
    model.save_pretrained(tmp_path / "start")
    try:
        theirs, _ = train_in_torch(
            model, text, lambda groups: bitsandbytes.optim.AdamW8bit(groups, lr=RATE, betas=BETAS, eps=EPS))
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"bitsandbytes' 8-bit optimizer does not run on this CPU: {error}")
    ours = train_in_tessera(tessera, tmp_path / "start", text, 2)
    # It decays after the step, and rounds small second moments to 0.
    assert ours[:MIDDLE] == pytest.approx(theirs[:MIDDLE], rel=1e-3)
    assert sum(ours[MIDDLE:]) == pytest.approx(sum(theirs[MIDDLE:]), rel=2e-3)
