"""Folders that transformers saved: `tessera generate` computes the same logits."""
import json

import pytest
from models import LLAMA3_ROPE, assert_close, edit_config, gpt2, llama, logits_of, mistral, prompt, qwen2
from safetensors.torch import load_file, save_file


def check(tessera, folder, model, length=40):
    ids = prompt(length, model.config.vocab_size)
    assert_close(tessera.logits(folder, ids), logits_of(model, ids))


@pytest.mark.parametrize("changes", [
    {},
    {"n_inner": 100},
    {"activation_function": "gelu", "layer_norm_epsilon": 1e-3},
    {"tie_word_embeddings": False},
], ids=["plain", "n_inner", "exact_gelu", "untied"])
def test_gpt2(tessera, tmp_path, changes):
    model = gpt2(**changes)
    model.save_pretrained(tmp_path / "gpt2")
    check(tessera, tmp_path / "gpt2", model)


def test_gpt2_under_the_hubs_names(tessera, tmp_path):
    """Files as on the Hub: names without `transformer.`, and each layer's causal mask as a buffer."""
    import torch

    model = gpt2()
    folder = tmp_path / "gpt2"
    model.transformer.save_pretrained(folder)
    edit_config(folder, lambda config: config.update(architectures=["GPT2LMHeadModel"]))
    tensors = load_file(folder / "model.safetensors")
    assert "h.0.attn.c_attn.weight" in tensors and "lm_head.weight" not in tensors
    for layer in range(model.config.n_layer):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    check(tessera, folder, model)


def test_gpt2_in_numbered_files(tessera, tmp_path):
    model = gpt2()
    folder = tmp_path / "gpt2"
    model.save_pretrained(folder, max_shard_size="100KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert len(set(index["weight_map"].values())) > 1
    check(tessera, folder, model)


def test_gpt2_in_bfloat16(tessera, tmp_path):
    """The file's weights are bf16; both compute with them in fp32."""
    import torch

    model = gpt2()
    model.to(torch.bfloat16).save_pretrained(tmp_path / "gpt2")
    check(tessera, tmp_path / "gpt2", model.to(torch.float32))


def test_gpt2_one_token_and_all_positions(tessera, tmp_path):
    model = gpt2()
    model.save_pretrained(tmp_path / "gpt2")
    check(tessera, tmp_path / "gpt2", model, length=1)
    check(tessera, tmp_path / "gpt2", model, length=63)


@pytest.mark.parametrize("make", [gpt2, llama, mistral, qwen2], ids=["gpt2", "llama", "mistral", "qwen2"])
def test_greedy_continuation(tessera, tmp_path, make):
    """Greedy generation: both programs write the same text."""
    model = make()
    model.save_pretrained(tmp_path / "model")
    ids = prompt(10, model.config.vocab_size)
    written = tessera.run("generate", tmp_path / "model", "--prompt-ids", ",".join(map(str, ids)),
                          "--max-new-tokens", 20, "--temperature", 0)
    for _ in range(20):
        ids.append(logits_of(model, ids)[-1].argmax().item())
    assert [int(token) for token in written.split(",")] == ids


LLAMAS = {
    "grouped_keys": {},
    "one_key_head": {"num_key_value_heads": 1},
    "as_many_keys": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "head_dim": {"head_dim": 24},
    "epsilon": {"rms_norm_eps": 1e-2},
}


@pytest.mark.parametrize("name", LLAMAS)
def test_llama(tessera, tmp_path, name):
    model = llama(**LLAMAS[name])
    model.save_pretrained(tmp_path / "llama")
    check(tessera, tmp_path / "llama", model)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "llama3"])
@pytest.mark.parametrize("keys", ["rope_parameters", "rope_scaling"])
def test_llama_rotary_positions(tessera, tmp_path, tied, scaled, keys):
    """In both notations of config.json: the single object of transformers 5, and the two keys of earlier versions."""
    rope = dict(LLAMA3_ROPE) if scaled else {"rope_type": "default"}
    model = llama(rope_parameters={"rope_theta": 5000.0, **rope}, tie_word_embeddings=tied)
    folder = tmp_path / "llama"
    model.save_pretrained(folder)

    def two_keys(config):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if scaled else None

    if keys == "rope_scaling":
        edit_config(folder, two_keys)
    check(tessera, folder, model, length=120)


MISTRALS = {
    "plain": {},
    "head_dim": {"head_dim": 24},
    "no_window": {"sliding_window": None},
    "window_as_long_as_the_prompt": {"sliding_window": 40},
    "tied": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("name", MISTRALS)
def test_mistral(tessera, tmp_path, name):
    model = mistral(**MISTRALS[name])
    model.save_pretrained(tmp_path / "mistral")
    check(tessera, tmp_path / "mistral", model)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 4}],
                         ids=["plain", "tied", "as_many_keys"])
def test_qwen2(tessera, tmp_path, changes):
    model = qwen2(**changes)
    model.save_pretrained(tmp_path / "qwen2")
    check(tessera, tmp_path / "qwen2", model)
