"""Folders that transformers saved: `tessera generate` computes the same logits."""
import json

import pytest
from models import (LLAMA3_ROPE, MAKERS, YARN_ROPE, assert_close, assert_close_relatively, edit_config, gemma3, gpt2, gpt_oss, llama,
                    logits_of, mistral, prompt, qwen2)
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


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
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


# Each with what its family adds to Llama, in both settings.
FAMILIES = [
    ("qwen3", {}),
    ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    ("qwen3", {"attention_bias": True, "num_key_value_heads": 1}),
    ("olmo2", {}),
    ("olmo2", {"num_key_value_heads": 4, "tie_word_embeddings": True, "attention_bias": True}),
    ("smollm3", {}),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 2, "num_hidden_layers": 5}),
    ("smollm3", {"no_rope_layers": [1, 0], "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    ("phi3", {}),
    ("phi3", {"rope_parameters": None, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75},
              "sliding_window": 90}),
    ("gemma3", {}),
    ("gemma3", {"layer_types": None, "num_hidden_layers": 7, "sliding_window": 30, "tie_word_embeddings": False}),
    ("gemma3", {"attention_bias": True, "num_key_value_heads": 1, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}}),
    ("mixtral", {}),
    ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 40, "tie_word_embeddings": True}),
    ("qwen3_moe", {}),
    ("qwen3_moe", {"norm_topk_prob": True, "num_experts_per_tok": 1, "num_experts": 2, "attention_bias": True}),
    ("qwen3_moe", {"norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 4}),
    ("gpt_oss", {}),
    ("gpt_oss", {"num_local_experts": 3, "num_experts_per_tok": 1, "attention_bias": False, "swiglu_limit": 0.3,
                 "swiglu_alpha": 1.1, "tie_word_embeddings": True}),
    ("gpt_oss", {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "num_key_value_heads": 4,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}),
    ("gpt_oss", {"rope_parameters": {"rope_theta": 5000.0, **YARN_ROPE}}),
    ("qwen2", {"rope_parameters": {"rope_theta": 5000.0, **YARN_ROPE}}),
    ("qwen3", {"rope_parameters": {"rope_theta": 1e6, **YARN_ROPE, "attention_factor": 1.3, "beta_fast": 8.0,
                                   "beta_slow": 2.0, "truncate": False}}),
    ("llama", {"rope_parameters": {"rope_theta": 5000.0, **YARN_ROPE, "mscale": 2.0, "mscale_all_dim": 0.5}}),
    ("olmo2", {"rope_parameters": {"rope_theta": 5000.0, **LLAMA3_ROPE}}),
]


@pytest.mark.parametrize("family,changes", FAMILIES)
def test_families(tessera, tmp_path, family, changes):
    model = MAKERS[family](**changes)
    model.save_pretrained(tmp_path / "model")
    ids = prompt(80, model.config.vocab_size)
    assert_close_relatively(tessera.logits(tmp_path / "model", ids), logits_of(model, ids))


def test_gemma3_in_the_older_spelling(tessera, tmp_path):
    """As Google's folders of transformers 4 have it."""
    model = gemma3(num_hidden_layers=4, layer_types=None, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}},
        sliding_window_pattern=3)
    model.save_pretrained(tmp_path / "model")

    def spread(config):
        del config["rope_parameters"], config["layer_types"]
        config.pop("_sliding_window_pattern", None)
        config.update(rope_theta=5000.0, rope_local_base_freq=300.0, sliding_window_pattern=3,
                      rope_scaling={"rope_type": "linear", "factor": 8.0})

    edit_config(tmp_path / "model", spread)
    ids = prompt(80, model.config.vocab_size)
    assert_close_relatively(tessera.logits(tmp_path / "model", ids), logits_of(model, ids))


@pytest.mark.parametrize("family", ["qwen3", "olmo2", "smollm3", "phi3", "mixtral", "qwen3_moe"])
def test_families_in_the_older_spelling(tessera, tmp_path, family):
    """rope_theta, rope_scaling and partial_rotary_factor as keys of their own, as in most folders on the Hub."""
    model = MAKERS[family]()
    model.save_pretrained(tmp_path / "model")

    def spread(config):
        rope = config.pop("rope_parameters")
        assert rope.pop("rope_type") == "default"
        config.update(rope, rope_scaling=None)

    edit_config(tmp_path / "model", spread)
    ids = prompt(80, model.config.vocab_size)
    assert_close_relatively(tessera.logits(tmp_path / "model", ids), logits_of(model, ids))


def test_gpt_oss_as_on_the_hub(tessera, tmp_path):
    """With the keys of OpenAI's own code beside those of transformers 4."""
    model = gpt_oss()
    model.save_pretrained(tmp_path / "model")

    def spread(config):
        rope = config.pop("rope_parameters")
        assert rope["truncate"] is False and rope["factor"] == 32.0
        config.update(rope_theta=int(rope.pop("rope_theta")), rope_scaling=rope, initial_context_length=4096,
                      experts_per_token=config["num_experts_per_tok"])

    edit_config(tmp_path / "model", spread)
    ids = prompt(80, model.config.vocab_size)
    assert_close_relatively(tessera.logits(tmp_path / "model", ids), logits_of(model, ids))


def test_gpt_oss_without_a_scaling_has_its_own(tessera, tmp_path):
    """Transformers takes YaRN where the configuration lacks the keys, and where they are null."""
    model = gpt_oss()
    model.save_pretrained(tmp_path / "model")

    def forget(config):
        del config["rope_parameters"]
        config.update(rope_theta=150000.0, rope_scaling=None)

    edit_config(tmp_path / "model", forget)
    again = type(model).from_pretrained(tmp_path / "model")
    assert again.config.rope_parameters["rope_type"] == "yarn"
    ids = prompt(80, model.config.vocab_size)
    assert_close_relatively(tessera.logits(tmp_path / "model", ids), logits_of(again.eval(), ids))
