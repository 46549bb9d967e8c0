"""Schedule-free AdamW: its curve and its averages over 200 steps beside its formula in torch and beside the authors'
AdamWScheduleFree, which also goes on from Tessera's checkpoint."""
import json

import pytest
import schedulefree
import torch
from models import gpt2
from text_batches import batches

TOKENS = 64
BATCH = 4  # of the world
STEPS = 200
RATE = 2.5e-3
BETAS = (0.9, 0.98)
EPS = 1.0e-8
WARMUP = 20
WEIGHT_DECAY = 0.1
CLIP = 1.0


class Formula(torch.optim.Optimizer):
    """The three sequences of arXiv:2405.15682, each kept: y is the parameter."""

    def __init__(self, groups):
        super().__init__(groups, {"weight_decay": 0.0})
        self.steps, self.weight_sum = 0, 0.0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        rate = RATE * min(1.0, self.steps / WARMUP)
        self.weight_sum += rate ** 2
        part = rate ** 2 / self.weight_sum
        for group in self.param_groups:
            for y in group["params"]:
                state = self.state[y]
                if not state:
                    state.update(z=y.clone(), x=y.clone(), exp_avg_sq=torch.zeros_like(y))
                state["exp_avg_sq"].mul_(BETAS[1]).addcmul_(y.grad, y.grad, value=1 - BETAS[1])
                root = (state["exp_avg_sq"] / (1 - BETAS[1] ** self.steps)).sqrt() + EPS
                state["z"] -= rate * (y.grad / root + group["weight_decay"] * y)
                state["x"] += part * (state["z"] - state["x"])
                y.copy_(state["x"] + (1 - BETAS[0]) * (state["z"] - state["x"]))

    def train(self):
        pass

    @torch.no_grad()
    def eval(self):
        for y, state in self.state.items():
            y.copy_(state["x"])


def of_package(groups):
    return schedulefree.AdamWScheduleFree(groups, lr=RATE, betas=BETAS, eps=EPS, warmup_steps=WARMUP)


def groups_of(model):
    return [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]


def train_in_torch(model, text, optimizer, first=0, last=STEPS):
    model.train()
    optimizer.train()
    losses = []
    for inputs, targets in list(batches(text, last, BATCH, TOKENS))[first:]:
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    optimizer.eval()
    return losses


def train_in_tessera(tessera, folder, text, ranks, steps=STEPS, resume="auto"):
    metrics = tessera.folder / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(folder))}, seq_len: {TOKENS}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {steps}, optimizer: schedule_free_adamw, lr: {RATE}, lr_schedule: constant, warmup_steps: {WARMUP},
         weight_decay: {WEIGHT_DECAY}, betas: [{BETAS[0]}, {BETAS[1]}], max_grad_norm: {CLIP}}}
checkpoint: {{dir: {json.dumps(str(tessera.folder / "out"))}, every: 1000, state_dict_type: SHARDED_STATE_DICT,
              resume: {json.dumps(str(resume))}}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    tessera.run("convert", tessera.folder / "out", tessera.folder / "torch.pt", "--to", "torch")
    losses = [json.loads(line)["loss"] for line in metrics.read_text(encoding="utf-8").splitlines()]
    return losses, torch.load(tessera.folder / "torch.pt", weights_only=True)


def difference(ours, theirs):
    """Of all tensors together, relative. The keys' bias has a gradient of 0 but for rounding: it is noise."""
    apart = sum((ours[name] - tensor.detach()).square().sum() for name, tensor in theirs.items())
    return (apart / sum(tensor.detach().square().sum() for tensor in theirs.values())).sqrt().item()


@pytest.mark.parametrize("make", [Formula, of_package], ids=["formula", "schedulefree"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_follows(tessera, tmp_path, text, ranks, make):
    model = gpt2(vocabulary=256)
    model.save_pretrained(tmp_path / "start")
    optimizer = make(groups_of(model))
    theirs = train_in_torch(model, text, optimizer)
    ours, saved = train_in_tessera(tessera, tmp_path / "start", text, ranks)
    assert len(ours) == STEPS
    assert theirs[-1] < 0.8 * theirs[0], "the loss should have fallen"
    assert ours == pytest.approx(theirs, rel=2e-6)  # measured: 4e-7
    # The averages, which are the checkpoint's weights, and the sequence of steps. Measured: 3e-4 and 6e-4, as much as
    # between the formula and the package.
    state = saved["optimizer"]["state"]
    assert all(set(of_parameter) == {"z", "exp_avg_sq"} for of_parameter in state.values())
    parameters = dict(model.named_parameters())
    assert difference(saved["model"], parameters) < 1e-3
    assert difference({name: of_parameter["z"] for name, of_parameter in state.items()},
                      {name: optimizer.state[p]["z"] for name, p in parameters.items()}) < 2e-3


def test_the_package_goes_on_from_a_checkpoint(tessera, tmp_path, text):
    straight = gpt2(vocabulary=256)
    straight.save_pretrained(tmp_path / "start")
    expected = train_in_torch(straight, text, of_package(groups_of(straight)))
    _, saved = train_in_tessera(tessera, tmp_path / "start", text, 2, steps=STEPS // 2)
    model = gpt2(vocabulary=256, seed=9)
    model.load_state_dict(saved["model"], strict=False)
    optimizer = of_package(groups_of(model))
    (group,) = saved["optimizer"]["param_groups"]
    assert group["k"] == STEPS // 2 and group["train_mode"] is False
    assert set(optimizer.param_groups[0]) == set(group)
    for own in optimizer.param_groups:
        own.update({key: group[key] for key in ("k", "weight_sum", "lr_max", "train_mode")})
    for name, parameter in model.named_parameters():
        optimizer.state[parameter].update(saved["optimizer"]["state"][name])
    assert train_in_torch(model, text, optimizer, STEPS // 2) == pytest.approx(expected[STEPS // 2:], rel=2e-6)


def test_goes_on_from_a_checkpoint_of_the_package(tessera, tmp_path, text):
    epoch = (40000 - 1) // TOKENS // BATCH  # a run from another program's checkpoint begins with the first batch
    assert epoch < STEPS
    model = gpt2(vocabulary=256)
    model.save_pretrained(tmp_path / "start")
    optimizer = of_package(groups_of(model))
    train_in_torch(model, text, optimizer, last=epoch)
    names = {p: name for name, p in model.named_parameters()}
    groups = [{**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups]
    state = {name: dict(optimizer.state[p]) for p, name in names.items()}
    saved = {"model": model.state_dict(), "optimizer": {"state": state, "param_groups": groups}}
    torch.save(saved, tmp_path / "package.pt")
    tessera.run("convert", tmp_path / "package.pt", tmp_path / "step", "--to", "full")
    expected = train_in_torch(model, text, optimizer, epoch)
    ours, _ = train_in_tessera(tessera, tmp_path / "start", text, 2, resume=tmp_path / "step")
    assert ours == pytest.approx(expected, rel=2e-6)
