"""Adapters over a base of codes: bitsandbytes has the same codes, products and losses, and PEFT reads the adapters."""
import json

import pytest
import torch
from models import MAKERS, assert_close, logits_of, prompt
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

peft = pytest.importorskip("peft")
functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")

TARGETS = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "v_proj", "down_proj"], "qwen3": ["q_proj", "up_proj"]}
TOKENS = 48
BATCH = 4
STEPS = 8
KINDS = sorted(TARGETS)


def recipe(base, text, out, kind, ranks=1, more="", quantized="nf4"):
    lora = json.dumps({"r": 4, "alpha": 12, "target_modules": TARGETS[kind]})
    return f"""
model: {{pretrained: {json.dumps(str(base))}, seq_len: {TOKENS}, lora: {lora}, quantize_base: {quantized}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {STEPS}, lr: 2.0e-2, lr_schedule: constant, weight_decay: 0.0, max_grad_norm: 0.0}}
sharding: {{sharding_strategy: FULL_SHARD{more}}}
checkpoint: {{dir: {json.dumps(str(out))}, every: {STEPS}}}
log: {{jsonl: {json.dumps(str(out) + ".jsonl")}}}
"""


def by_bitsandbytes(weight):
    """As one row: on CPUs dequantize_4bit begins a block at each row, unlike quantize_4bit and its CUDA kernel."""
    flat = weight.reshape(1, -1)
    codes, state = functional.quantize_4bit(flat, quant_type="nf4", compress_statistics=True)
    return functional.dequantize_4bit(codes, state).reshape(weight.shape)


def by_rows(weight):
    """LLM.int8's integers, a scale for each row of the stored weight."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return torch.round(weight.float() / scale) * scale


def quantised(base, numbers=by_bitsandbytes):
    """transformers' model whose linear layers but the head have the numbers of codes."""
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, (torch.nn.Linear, Conv1D)) and not name.endswith("lm_head"):
                layer.weight.copy_(numbers(layer.weight))
    return model.eval()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def base(kind, tmp_path):
    folder = tmp_path / "base"
    MAKERS[kind](vocabulary=256).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_over_nf4_is_that_of_bitsandbytes_and_peft(tessera, tmp_path, text, kind, base, ranks):
    tessera.train(recipe(base, text, tmp_path / "out", kind, ranks), ranks=ranks)
    step = tmp_path / "out" / f"step-{STEPS}"
    plain = quantised(base)
    ids = prompt(40, 256)
    without = logits_of(plain, ids)
    theirs = logits_of(peft.PeftModel.from_pretrained(plain, step).eval(), ids)
    assert (theirs - without).abs().max() > 0.1, "the adapter should have learnt something"
    ours = tessera.logits(step, ids)
    assert (ours - theirs).abs().max() <= 1e-3 * theirs.abs().max()
    # The base in floating numbers is another model.
    whole = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), step)
    assert (ours - logits_of(whole.eval(), ids)).abs().max() > 1e-2


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("quantized", ["nf4", "int8"])
def test_training_goes_as_torchs_over_the_same_numbers(tessera, tmp_path, text, kind, base, quantized, dora):
    start = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules=TARGETS[kind], fan_in_fan_out=kind == "gpt2",
        use_dora=dora))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in start.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    start.save_pretrained(tmp_path / "adapter")
    words = recipe(base, text, tmp_path / "out", kind, 2, quantized=quantized)
    lora = json.dumps({"r": 4, "alpha": 12, "target_modules": TARGETS[kind]})
    words = words.replace(f"lora: {lora}", f"adapter: {json.dumps(str(tmp_path / 'adapter'))}")
    tessera.train(words, ranks=2)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    numbers = by_bitsandbytes if quantized == "nf4" else by_rows
    model = peft.PeftModel.from_pretrained(quantised(base, numbers), tmp_path / "adapter", is_trainable=True)
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
        assert line["loss"] == pytest.approx(loss.item(), rel=3e-4), line["step"]


def test_merged_weights_are_the_numbers_and_the_adapter(tessera, tmp_path, text, kind, base):
    tessera.train(recipe(base, text, tmp_path / "out", kind))
    step = tmp_path / "out" / f"step-{STEPS}"
    tessera.run("convert", step, tmp_path / "merged", "--to", "hf", "--merge", "--verify")
    theirs = peft.PeftModel.from_pretrained(quantised(base), step).merge_and_unload()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for (name, mine), (_, wanted) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        # bitsandbytes' CPU takes the second nearest code for about one scale in 600, in a block of 64 elements.
        difference = (mine - wanted).abs()
        assert (difference > 1e-5 * wanted.abs() + 1e-6).float().mean() <= 0.02, name
        assert difference.max() <= 0.02 * wanted.abs().max(), name
    ids = prompt(40, 256)
    assert_close(tessera.logits(tmp_path / "merged", ids), tessera.logits(step, ids))


def test_a_layer_of_bitsandbytes_has_the_same_product(tessera, tmp_path, text):
    """Linear4bit's own forward, in place of the layers of transformers' model."""
    from bitsandbytes.nn import Linear4bit

    base = tmp_path / "base"
    MAKERS["llama"](vocabulary=256, intermediate_size=192).save_pretrained(base)
    tessera.train(recipe(base, text, tmp_path / "out", "llama"))
    step = tmp_path / "out" / f"step-{STEPS}"
    model = AutoModelForCausalLM.from_pretrained(base)
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, torch.nn.Linear) or name.endswith("lm_head"):
            continue
        coded = Linear4bit(layer.in_features, layer.out_features, bias=layer.bias is not None,
                           compute_dtype=torch.float32, quant_type="nf4", compress_statistics=True)
        coded.load_state_dict(layer.state_dict())
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, coded.to("cpu"))
    ids = prompt(40, 256)
    # In evaluation some processors take a kernel in bfloat16. The model has no dropout.
    theirs = logits_of(peft.PeftModel.from_pretrained(model, step).train(), ids)
    assert (tessera.logits(step, ids) - theirs).abs().max() <= 1e-3 * theirs.abs().max()
