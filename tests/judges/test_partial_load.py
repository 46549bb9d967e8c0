"""Compares examples/partial_load with torch: a new head on a trunk with its moments, and a freeze that keeps the head's."""
import math
import os
import re
import subprocess

import pytest
import torch
from conftest import PROGRAM
from safetensors.torch import load_file

EXAMPLE = os.environ.get("TESSERA_PARTIAL_LOAD", os.path.join(os.path.dirname(PROGRAM), "examples", "partial_load"))
BATCH = 32


class Net(torch.nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.trunk = torch.nn.ModuleDict({"in": torch.nn.Linear(8, 32), "out": torch.nn.Linear(32, 16)})
        self.head = torch.nn.Linear(16, outputs)

    def forward(self, x):
        gelu = torch.nn.functional.gelu
        return self.head(gelu(self.trunk["out"](gelu(self.trunk["in"](x)))))


def points(first, outputs):
    inputs = torch.tensor([[math.sin(37 * number + 11 * j) for j in range(8)]
                           for number in range(first, first + BATCH)], dtype=torch.float64).float()
    sums = inputs.double().sum(1, keepdim=True)
    return inputs, torch.sin(sums + torch.arange(outputs, dtype=torch.float64)).float()


def with_state_of(step, net, optimizer, steps, prefix):
    """The moments in a step's folder of the parameters whose names begin with `prefix`."""
    moments = load_file(step / "optimizer.safetensors")
    for name, parameter in net.named_parameters():
        if name.startswith(prefix):
            optimizer.state[parameter] = {"step": torch.tensor(float(steps)),
                                          "exp_avg": moments[f"{name}.exp_avg"].clone(),
                                          "exp_avg_sq": moments[f"{name}.exp_avg_sq"].clone()}


def train(net, optimizer, begin, end):
    losses = []
    for step in range(begin, end):
        inputs, targets = points(step * BATCH, targets_of(net))
        loss = (net(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def targets_of(net):
    return net.head.out_features


def printed(output, what):
    return [float(loss) for loss in re.findall(rf"^{what}: step \d+, loss (\S+)$", output, re.MULTILINE)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_continues_as_torch_does(tmp_path, ranks):
    ended = subprocess.run([PROGRAM, "launch", "--nproc-per-node", str(ranks), "--", EXAMPLE, str(tmp_path / "out")],
                           capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sorted(re.findall(r"^new: (\S+)$", ended.stdout, re.MULTILINE)) == ["head.bias", "head.weight"]
    pretrained, begun, ended_head = (tmp_path / "out" / path
                                     for path in ("pretrained/step-60", "new_head/step-0", "new_head/step-20"))

    # The trunk by torch's own partial load, the new head with its initial values.
    net = Net(3)
    trunk = {name: tensor for name, tensor in load_file(pretrained / "model.safetensors").items()
             if name.startswith("trunk.")}
    loaded = net.load_state_dict(trunk, strict=False)
    assert sorted(loaded.missing_keys) == ["head.bias", "head.weight"]
    start = load_file(begun / "model.safetensors")
    for name, tensor in trunk.items():
        assert torch.equal(start[name], tensor), name
    net.head.load_state_dict({"weight": start["head.weight"], "bias": start["head.bias"]})
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    with_state_of(pretrained, net, optimizer, 60, "trunk.")
    assert printed(ended.stdout, "new head") == pytest.approx(train(net, optimizer, 0, 20), rel=2e-4)

    # The trunk frozen; the head with its moments.
    net.load_state_dict(load_file(ended_head / "model.safetensors"))
    net.trunk.requires_grad_(False)
    optimizer = torch.optim.AdamW(net.head.parameters(), lr=3e-3, weight_decay=1e-2)
    with_state_of(ended_head, net, optimizer, 20, "head.")
    assert printed(ended.stdout, "frozen trunk") == pytest.approx(train(net, optimizer, 20, 40), rel=2e-4)
