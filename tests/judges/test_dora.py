"""DoRA is PEFT's: the first magnitudes, the logits, the losses in training, the merged weights and the files."""
import json

import pytest
import torch
from models import assert_close_relatively, logits_of, prompt
from safetensors import safe_open
from safetensors.torch import load_file
from test_peft import (SAVED, SAVED_TARGETS, STEPS, TARGETS, adapted_by_peft, base, kind,  # noqa: F401 (fixtures)
                       lora_of, recipe, saved_kinds)
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

peft = pytest.importorskip("peft")

MAGNITUDE = "lora_magnitude_vector"
BATCH, TOKENS = 4, 48
SHORT = 5  # steps


def scaled(kind, base, **settings):
    """PEFT's model with DoRA. The magnitudes are not the norms of the rows."""
    model = adapted_by_peft(kind, base, use_dora=True, **settings)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if MAGNITUDE in name:
                layer = model.get_submodule(name.partition(f".{MAGNITUDE}")[0])
                weight = layer.get_base_layer().weight
                norms = (weight.T if kind == "gpt2" else weight).norm(dim=1)
                parameter.copy_(norms * (0.7 + 0.6 * torch.rand(parameter.shape, generator=generator)))
    return model.eval()


def test_the_first_magnitudes_are_pefts(tessera, tmp_path, text, kind, base):
    """A step that is too small to change them."""
    tessera.train(recipe(base, text, tmp_path / "out", lora_of(kind, use_dora=True), ranks=2, steps=1)
                  .replace("lr: 2.0e-2", "lr: 1.0e-30").replace(f"every: {STEPS}", "every: 1"), ranks=2)
    ours = load_file(tmp_path / "out" / "step-1" / "adapter_model.safetensors")
    theirs = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules=TARGETS[kind],
                        fan_in_fan_out=kind == "gpt2", use_dora=True))
    state = peft.get_peft_model_state_dict(theirs)
    names = [name for name in state if MAGNITUDE in name]
    assert names == [name for name in state if name.endswith(f".{MAGNITUDE}")]
    assert sorted(ours) == sorted(state)
    for name in names:
        assert ours[name].shape == state[name].shape
        assert torch.allclose(ours[name], state[name], rtol=1e-6, atol=0), name


@pytest.mark.parametrize("ranks", [1, 2])
def test_peft_loads_a_run_and_agrees(tessera, tmp_path, text, kind, base, ranks):
    lora = lora_of(kind, use_dora=True, dropout=0.1)
    tessera.train(recipe(base, text, tmp_path / "out", lora, ranks), ranks=ranks)
    step = tmp_path / "out" / f"step-{STEPS}"
    plain = AutoModelForCausalLM.from_pretrained(base)
    ids = prompt(40, 256)
    without = logits_of(plain.eval(), ids)
    model = peft.PeftModel.from_pretrained(plain, step).eval()
    assert model.peft_config["default"].use_dora
    theirs = logits_of(model, ids)
    assert (theirs - without).abs().max() > 0.1, "the adapter should have learnt something"
    assert_close_relatively(tessera.logits(step, ids), theirs)
    model.save_pretrained(tmp_path / "theirs")
    with safe_open(tmp_path / "theirs" / "adapter_model.safetensors", "pt") as a, \
            safe_open(step / "adapter_model.safetensors", "pt") as b:
        assert sorted(a.keys()) == sorted(b.keys())


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"rank_pattern": True}])
def test_an_adapter_of_pefts_is_read(tessera, tmp_path, kind, base, settings):
    if "rank_pattern" in settings:
        settings = {"rank_pattern": {TARGETS[kind][0]: 2}, "alpha_pattern": {TARGETS[kind][-1]: 5}}
    model = scaled(kind, base, **settings)
    model.save_pretrained(tmp_path / "adapter")
    ids = prompt(40, 256)
    theirs = logits_of(model, ids)
    with model.disable_adapter():
        assert (theirs - logits_of(model, ids)).abs().max() > 0.1
    assert_close_relatively(tessera.logits(tmp_path / "adapter", ids), theirs)


@saved_kinds
def test_modules_to_save_go_to_peft(tessera, tmp_path, text, kind, base):
    lora = lora_of(kind, use_dora=True, target_modules=SAVED_TARGETS[kind], modules_to_save=SAVED[kind])
    tessera.train(recipe(base, text, tmp_path / "out", lora, ranks=2), ranks=2)
    step = tmp_path / "out" / f"step-{STEPS}"
    theirs = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), step).eval()
    ids = prompt(40, 256)
    assert_close_relatively(tessera.logits(step, ids), logits_of(theirs, ids))
    assert set(load_file(step / "adapter_model.safetensors")) == set(peft.get_peft_model_state_dict(theirs))


def test_merged_weights_are_pefts(tessera, tmp_path, kind, base):
    model = scaled(kind, base)
    model.save_pretrained(tmp_path / "adapter")
    tessera.run("convert", tmp_path / "adapter", tmp_path / "merged", "--to", "hf", "--merge", "--verify")
    ids = prompt(40, 256)
    adapted = logits_of(model, ids)
    theirs = model.merge_and_unload()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for (name, mine), (_, wanted) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-5, atol=1e-6), name
    assert_close_relatively(tessera.logits(tmp_path / "merged", ids), adapted)


def by_rows(weight):
    """LLM.int8's integers, a scale for each row of the stored weight."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return torch.round(weight / scale) * scale


def over_int8(model):
    """The frozen linear layers but the head get the numbers of 8-bit integers."""
    with torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, (torch.nn.Linear, Conv1D)) and "lora_" not in name and "lm_head" not in name:
                layer.weight.copy_(by_rows(layer.weight))
    return model


@pytest.mark.parametrize("quantized", ["none", "int8"])
def test_training_goes_as_pefts(tessera, tmp_path, text, kind, base, quantized):
    """Two ranks from PEFT's adapter have the losses of PEFT's training in one process."""
    model = scaled(kind, base, lora_dropout=0.0)
    model.save_pretrained(tmp_path / "adapter")
    if quantized == "int8":
        over_int8(model)
    adapter = f"adapter: {json.dumps(str(tmp_path / 'adapter'))}, quantize_base: {quantized}"
    tessera.train(recipe(base, text, tmp_path / "out", adapter, ranks=2, steps=SHORT)
                  .replace(f"every: {STEPS}", f"every: {SHORT}"), ranks=2)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == SHORT
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-2, weight_decay=0.0)
    ids = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    for step, line in enumerate(lines):
        starts = [(step * BATCH + row) * TOKENS for row in range(BATCH)]
        inputs = torch.stack([ids[start:start + TOKENS] for start in starts])
        targets = torch.stack([ids[start + 1:start + TOKENS + 1] for start in starts])
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert line["loss"] == pytest.approx(loss.item(), abs=1e-4), line["step"]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.05
    ours = load_file(tmp_path / "out" / f"step-{SHORT}" / "adapter_model.safetensors")
    for name, value in peft.get_peft_model_state_dict(model).items():
        if MAGNITUDE in name:
            assert torch.allclose(ours[name], value, rtol=1e-3, atol=1e-3), name
