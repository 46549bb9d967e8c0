"""Pruning by magnitude times the norm of the input: the zeros are those of the formula in torch, on the same batches."""
import json

import pytest
import torch
from models import MAKERS
from safetensors.torch import load_file
from transformers.pytorch_utils import Conv1D

TOKENS, BATCH, BATCHES = 64, 4, 3


def input_norms(model, text):
    """The norm of each input column of each linear layer over the batches after the first, in fp64."""
    sums, hooks = {}, []
    for name, layer in model.named_modules():
        if not isinstance(layer, (torch.nn.Linear, Conv1D)) or name == "lm_head":
            continue

        def add(_, inputs, name=name):
            sums[name] = sums.get(name, 0) + inputs[0].flatten(0, -2).square().sum(0)
        hooks.append(layer.register_forward_pre_hook(add))
    ids = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    with torch.no_grad():
        for row in range(BATCH, (1 + BATCHES) * BATCH):
            model(ids[row * TOKENS:(row + 1) * TOKENS][None])
    for hook in hooks:
        hook.remove()
    return {name: total.sqrt() for name, total in sums.items()}


def chosen(scores, method):
    """True for the elements of [out, in] that are zero: half of each row, or two of each four."""
    groups = scores.reshape(-1, 4) if method == "wanda_2:4" else scores
    order = torch.argsort(groups, dim=1, stable=True)[:, :groups.shape[1] // 2]
    return torch.zeros_like(groups, dtype=torch.bool).scatter(1, order, True).reshape(scores.shape)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("method", ["wanda", "wanda_2:4"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_zeros_are_those_of_the_formula(tessera, tmp_path, text, name, method, ranks):
    model = MAKERS[name](vocabulary=256)
    model.save_pretrained(tmp_path / "model")
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(tmp_path / "model"))}, seq_len: {TOKENS}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: 1, lr: 0, weight_decay: 0, prune: {{method: "{method}", calibration_batches: {BATCHES}}}}}
checkpoint: {{export: {json.dumps(str(tmp_path / "pruned"))}}}
""", ranks=ranks)
    pruned = load_file(tmp_path / "pruned" / "model.safetensors")
    model = model.double().eval()
    compared = 0
    for layer, norms in input_norms(model, text).items():
        module = model.get_submodule(layer)
        ours = pruned[layer + ".weight"] == 0
        weight = module.weight.detach()
        if isinstance(module, Conv1D):
            ours, weight = ours.T, weight.T
        assert torch.equal(ours, chosen(weight.abs() * norms, method)), layer
        compared += ours.numel()
    assert compared == sum(p.numel() for n, p in model.named_parameters()
                           if p.dim() == 2 and "wte" not in n and "wpe" not in n and "embed" not in n and "lm_head" not in n)
