"""examples/adversarial against torch: a critic that is frozen, thawed and clamped while a generator trains against it."""
import json
import math
import os
import re
import subprocess

import pytest
import torch
from conftest import PROGRAM
from safetensors.torch import load_file

EXAMPLE = os.environ.get("TESSERA_ADVERSARIAL", os.path.join(os.path.dirname(PROGRAM), "examples", "adversarial"))
BATCH = 64
STEPS = 120  # of the 600 that the example takes: see below
FIELDS = ("critic", "generator", "gradient norm", "of weights")


class Layers(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first = torch.nn.Linear(inputs, 32)
        self.second = torch.nn.Linear(32, 32)
        self.third = torch.nn.Linear(32, outputs)

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def circle(first, rows, dtype):
    angles = [2.399963 * number for number in range(first, first + rows)]
    return torch.tensor([[2 * math.cos(a), 2 * math.sin(a)] for a in angles], dtype=torch.float64).float().to(dtype)


def noise(first, rows, width, dtype):
    waves = [math.sin(12.9898 * number) * 43758.5453 for number in range(first * width, (first + rows) * width)]
    values = torch.tensor([2 * (wave - math.floor(wave)) - 1 for wave in waves], dtype=torch.float64)
    return values.float().to(dtype).view(rows, width)


def norm_of(parameters):
    return math.sqrt(sum(parameter.grad.double().square().sum().item() for parameter in parameters))


def train(begin, ranks, dtype):
    """The same training on all ranks' rows at once; what the example prints, by step."""
    generator, critic = Layers(4, 2).to(dtype), Layers(2, 1).to(dtype)
    generator.load_state_dict(begin["generator"])
    critic.load_state_dict(begin["critic"])
    settings = {"lr": 2e-3, "betas": (0.5, 0.999), "weight_decay": 0}
    generator_steps = torch.optim.AdamW(generator.parameters(), **settings)
    critic_steps = torch.optim.AdamW(critic.parameters(), **settings)
    rows, row, printed = BATCH * ranks, 0, {}
    for step in range(STEPS):
        fake = generator(noise(row, rows, 4, dtype)).detach()
        apart = critic(fake).mean() - critic(circle(row, rows, dtype)).mean()
        apart.backward()
        critic_steps.step()
        critic_steps.zero_grad()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.2, 0.2)
        row += rows
        if step % 3 != 2:
            continue
        critic.requires_grad_(False)
        mistaken = -critic(generator(noise(row, rows, 4, dtype))).mean()
        mistaken.backward()
        weights = norm_of(parameter for parameter in generator.parameters() if parameter.dim() == 2)
        whole = norm_of(generator.parameters())
        torch.nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        generator_steps.step()
        generator_steps.zero_grad()
        critic.requires_grad_(True)
        if step % 30 == 29:
            printed[step + 1] = (apart.item(), mistaken.item(), whole, weights)
    return printed


def saved(folder, step):
    return {name: load_file(folder / name / f"step-{step}" / "model.safetensors") for name in ("generator", "critic")}


@pytest.mark.parametrize("ranks", [1, 2])
def test_trains_as_torch_does(tmp_path, ranks):
    ended = subprocess.run([PROGRAM, "launch", "--nproc-per-node", str(ranks), "--", EXAMPLE, str(tmp_path)],
                           capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    number = r"(-?[\d.]+)"
    line = rf"^step (\d+): critic {number}, generator {number}, gradient norm {number}, of weights {number}$"
    printed = {int(step): tuple(map(float, numbers))
               for step, *numbers in re.findall(line, ended.stdout, re.MULTILINE)}
    assert len(printed) == 20

    begin = saved(tmp_path, 0)
    expected = train(begin, ranks, torch.float64)
    plain = train(begin, ranks, torch.float32)
    assert len(expected) == STEPS // 30
    # Training amplifies rounding, so that no fixed tolerance is fair late and strict early. What torch's own float32 has lost
    # against float64 until a step says how much that is: below 2e-6 here. Other orders of sums may lose a few times as much, and
    # six digits are printed. A wrong update, clamp or clipping shows by 1e-3 and more. After some 120 steps a unit that is close
    # to relu's kink falls on one side in one run and on the other in the next (1e-4 at once, in torch's two runs too): there is
    # nothing to compare from there on.
    lost = 0.0
    for step, exact in expected.items():
        lost = max([lost, *(abs(a - b) for a, b in zip(plain[step], exact, strict=True))])
        assert lost < 1e-3, "torch's own runs are too far apart to compare anything with"
        for field, ours, theirs in zip(FIELDS, printed[step], exact, strict=True):
            assert abs(ours - theirs) <= 10 * lost + 5e-6, f"step {step}, {field}: {ours}, in torch {theirs}"

    # The critic trained in each step, the generator in each third one, and the last write clamped.
    for name, steps in (("critic", 600), ("generator", 200)):
        manifest = json.loads((tmp_path / name / "step-600" / "manifest.json").read_text(encoding="utf-8"))
        assert set(manifest["manifest"]["scalars"]["optimizer_step_counts"].values()) == {steps}, name
    assert all(tensor.abs().max() <= 0.2 for tensor in saved(tmp_path, 600)["critic"].values())
