"""Full checkpoints of Tessera: safetensors reads them, transformers loads them and computes the same."""
import json

import pytest
import torch
from models import assert_close, logits_of, prompt
from safetensors import safe_open
from tokenizers import Tokenizer, models as tokenizer_models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

MODELS = {
    "gpt2": "{architecture: gpt2, n_layer: 2, n_head: 4, n_embd: 64, seq_len: 64}",
    "llama": "{architecture: llama, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
             "hidden_size: 64, intermediate_size: 160, seq_len: 64}",
    "llama_tied": "{architecture: llama, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4, "
                  "hidden_size: 64, intermediate_size: 160, seq_len: 64, tie_word_embeddings: true}",
    "llama3": "{architecture: llama, num_hidden_layers: 1, num_attention_heads: 4, num_key_value_heads: 1, "
              "hidden_size: 64, intermediate_size: 96, seq_len: 64, rope_theta: 5000.0, "
              "max_position_embeddings: 128, rope_scaling: {rope_type: llama3, factor: 8.0, "
              "low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position_embeddings: 32}}",
    "mistral": "{architecture: mistral, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
               "hidden_size: 64, head_dim: 24, intermediate_size: 160, seq_len: 64, sliding_window: 64}",
    "gemma3": "{architecture: gemma3_text, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, "
              "hidden_size: 64, head_dim: 24, intermediate_size: 160, seq_len: 64, sliding_window: 20, "
              "sliding_window_pattern: 2, query_pre_attn_scalar: 30}",
    "qwen2": "{architecture: qwen2, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
             "hidden_size: 64, intermediate_size: 160, seq_len: 64}",
    "qwen2_tied": "{architecture: qwen2, num_hidden_layers: 1, num_attention_heads: 4, num_key_value_heads: 4, "
                  "hidden_size: 64, intermediate_size: 96, seq_len: 64, tie_word_embeddings: true}",
    "qwen2_yarn": "{architecture: qwen2, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
                  "hidden_size: 64, intermediate_size: 96, seq_len: 64, max_position_embeddings: 128, "
                  "rope_scaling: {rope_type: yarn, factor: 4.0, original_max_position_embeddings: 32, beta_fast: 16}}",
    "qwen3": "{architecture: qwen3, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
             "hidden_size: 64, head_dim: 24, intermediate_size: 160, seq_len: 64}",
    "olmo2": "{architecture: olmo2, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
             "hidden_size: 64, intermediate_size: 160, seq_len: 64}",
    "smollm3": "{architecture: smollm3, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2, "
               "hidden_size: 64, intermediate_size: 96, seq_len: 64, no_rope_layer_interval: 2}",
    "phi3": "{architecture: phi3, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
            "hidden_size: 64, intermediate_size: 160, seq_len: 64, partial_rotary_factor: 0.5, sliding_window: 64}",
    "mixtral": "{architecture: mixtral, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
               "hidden_size: 64, intermediate_size: 96, seq_len: 64, num_local_experts: 4, output_router_logits: true}",
    "qwen3_moe": "{architecture: qwen3_moe, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
                 "hidden_size: 64, moe_intermediate_size: 48, intermediate_size: 96, seq_len: 64, num_experts: 6, "
                 "num_experts_per_tok: 2, norm_topk_prob: true}",
    "gpt_oss": "{architecture: gpt_oss, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, "
               "hidden_size: 64, head_dim: 24, intermediate_size: 48, seq_len: 64, num_local_experts: 5, "
               "num_experts_per_tok: 2, sliding_window: 20, swiglu_limit: 2.0}",
    "gpt_oss_unscaled": "{architecture: gpt_oss, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
                        "hidden_size: 64, head_dim: 16, intermediate_size: 32, seq_len: 64, num_local_experts: 3, "
                        "num_experts_per_tok: 1, rope_theta: 5000.0, rope_scaling: {rope_type: default}}",
}


def train(tessera, model, text, ranks, dtype="fp32"):
    """30 steps at a rate that changes every weight considerably; returns the saved folder."""
    tessera.train(f"""
model: {MODELS[model]}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: 4}}
train: {{steps: 30, lr: 1.0e-2, lr_schedule: constant, max_grad_norm: 1.0}}
sharding: {{sharding_strategy: FULL_SHARD}}
checkpoint: {{dir: out, every: 30, state_dict_type: FULL_STATE_DICT, dtype: {dtype}}}
""", ranks=ranks)
    return tessera.folder / "out" / "step-30"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_transformers_loads_a_checkpoint(tessera, text, model, ranks):
    folder = train(tessera, model, text, ranks)
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], (kind, report[kind])
    ids = prompt(50, 256)
    assert_close(tessera.logits(folder, ids), logits_of(theirs.eval(), ids))


def test_safetensors_reads_every_tensor(tessera, text):
    folder = train(tessera, "gpt2", text, 2)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "pt"
        names = set(file.keys())
        for name in names:
            tensor = file.get_tensor(name)
            assert tensor.dtype == torch.float32, name
            assert torch.isfinite(tensor).all(), name
        assert file.get_slice("transformer.wte.weight").get_shape() == [256, 64]
        assert file.get_slice("transformer.h.1.attn.c_attn.weight").get_shape() == [64, 192]
    assert not any(name.endswith(("exp_avg", "exp_avg_sq")) for name in names)


def test_a_checkpoint_in_bfloat16(tessera, text):
    """Half the bytes: the tensors are bf16, and both programs compute the same from them."""
    folder = train(tessera, "gpt2", text, 2, dtype="bf16")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = prompt(50, 256)
    assert_close(tessera.logits(folder, ids), logits_of(theirs, ids))


def test_numbered_files_with_a_tokenizer(tessera, text):
    """A run that saves during training and exports: transformers opens both folders, including the tokenizer."""
    first = train(tessera, "gpt2", text, 1)
    words = {chr(i): i for i in range(256)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(tokenizer_models.WordLevel(words, unk_token="?")), unk_token="?"
    ).save_pretrained(first)
    tessera.train(f"""
model: {{pretrained: {first}, seq_len: 64}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: 4}}
train: {{steps: 4, lr: 1.0e-2}}
checkpoint: {{dir: next, every: 2, async: true, max_file_size: 200kB, export: exported}}
""", ranks=2)
    ids = prompt(50, 256)
    for folder in (tessera.folder / "next" / "step-4", tessera.folder / "exported"):
        assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
        theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not report[kind], (kind, report[kind])
        assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(["a"]) == [97]
        expected = tessera.logits(tessera.folder / "next" / "step-4", ids)
        assert_close(expected, logits_of(theirs.eval(), ids))
