"""GGUF files: llama.cpp's own package reads what `tessera convert` wrote, with equal settings and equal bytes of
quantised weights, and Tessera reads what the package wrote."""
import json

import gguf
import numpy as np
import pytest
import torch
from models import LLAMA3_ROPE, assert_close, gpt2, llama, logits_of, mistral, prompt, qwen2
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}


def open_gguf(path):
    reader = gguf.GGUFReader(path)
    settings = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return settings, {tensor.name: tensor for tensor in reader.tensors}


def halves_interleaved(weight, heads):
    """Rotary positions turn row i and row i + n / 2 of a head in transformers, neighbours in llama.cpp."""
    rows = weight.shape[0] // heads
    order = [head * rows + half * (rows // 2) + i for head in range(heads) for i in range(rows // 2) for half in (0, 1)]
    return weight[order]


def as_llama_cpp(model):
    """The tensors of a model of transformers under llama.cpp's names, in its order and layout."""
    config, state = model.config, model.state_dict()
    result = {}

    def put(name, source, change=lambda weight: weight):
        for ending in ("weight", "bias"):
            if f"{source}.{ending}" in state:
                result[f"{name}.{ending}"] = change(state[f"{source}.{ending}"])

    if config.model_type == "gpt2":
        put("token_embd", "transformer.wte")
        put("position_embd", "transformer.wpe")
        put("output_norm", "transformer.ln_f")
        for layer in range(config.n_layer):
            for name, source in (("attn_norm", "ln_1"), ("attn_qkv", "attn.c_attn"), ("attn_output", "attn.c_proj"),
                                 ("ffn_norm", "ln_2"), ("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")):
                put(f"blk.{layer}.{name}", f"transformer.h.{layer}.{source}", lambda weight: weight.t())
        return result
    put("token_embd", "model.embed_tokens")
    put("output_norm", "model.norm")
    if not config.tie_word_embeddings:
        put("output", "lm_head")
    turned = config.model_type != "qwen2"
    for layer in range(config.num_hidden_layers):
        for name, source, heads in (("attn_norm", "input_layernorm", 0),
                                    ("attn_q", "self_attn.q_proj", config.num_attention_heads),
                                    ("attn_k", "self_attn.k_proj", config.num_key_value_heads),
                                    ("attn_v", "self_attn.v_proj", 0), ("attn_output", "self_attn.o_proj", 0),
                                    ("ffn_norm", "post_attention_layernorm", 0), ("ffn_gate", "mlp.gate_proj", 0),
                                    ("ffn_up", "mlp.up_proj", 0), ("ffn_down", "mlp.down_proj", 0)):
            change = (lambda weight, n=heads: halves_interleaved(weight, n)) if heads and turned else lambda w: w
            put(f"blk.{layer}.{name}", f"model.layers.{layer}.{source}", change)
    return result


MAKERS = {"gpt2": (lambda: gpt2(n_embd=64), "gpt2"), "llama": (lambda: llama(attention_bias=True), "llama"),
          "mistral": (mistral, "llama"), "qwen2": (qwen2, "qwen2")}


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("family", MAKERS)
def test_the_package_reads_equal_tensors(tessera, family, type_name):
    make, architecture = MAKERS[family]
    model = make()
    model.save_pretrained(tessera.folder / "hf")
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf", "--type", type_name, "--verify")
    settings, tensors = open_gguf(tessera.folder / "m.gguf")
    assert settings["general.architecture"] == architecture
    expected = as_llama_cpp(model)
    assert set(tensors) == set(expected)
    wanted = gguf.GGMLQuantizationType(TYPES[type_name])
    for name, values in expected.items():
        found = tensors[name]
        values = values.contiguous().float().numpy()
        kept = values.ndim == 1 or name == "position_embd.weight"
        kind = gguf.GGMLQuantizationType.F32 if kept else wanted
        assert found.tensor_type == kind, name
        assert [int(n) for n in found.shape] == list(reversed(values.shape)), name
        encoded = gguf.quants.quantize(values, kind)
        assert np.array_equal(np.ascontiguousarray(found.data).view(np.uint8).reshape(-1),
                              np.ascontiguousarray(encoded).view(np.uint8).reshape(-1)), name
    # Read back, the elements are those that the package decodes.
    tessera.run("convert", "m.gguf", "back", "--to", "hf", "--verify")
    back = load_file(tessera.folder / "back/model.safetensors")
    table = "transformer.wte.weight" if family == "gpt2" else "model.embed_tokens.weight"
    decoded = gguf.quants.dequantize(tensors["token_embd.weight"].data, wanted).reshape(back[table].shape)
    assert np.array_equal(back[table].float().numpy(), decoded)


@pytest.mark.parametrize("make", [gpt2, lambda: llama(rope_parameters=LLAMA3_ROPE), mistral, qwen2],
                         ids=["gpt2", "llama3", "mistral", "qwen2"])
def test_a_file_that_was_written_computes_the_same_again(tessera, make):
    model = make()
    model.save_pretrained(tessera.folder / "hf")
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf")
    tessera.run("convert", "m.gguf", "back", "--to", "hf")
    ids = prompt(40, model.config.vocab_size)
    assert_close(tessera.logits(tessera.folder / "back", ids), logits_of(model, ids))


@pytest.mark.parametrize("type_name", TYPES)
def test_files_of_the_package_are_read(tessera, type_name):
    model = llama()
    config = model.config
    path = tessera.folder / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_scores([0.0] * config.vocab_size)
    kind = gguf.GGMLQuantizationType(TYPES[type_name])
    encoded = {}
    for name, values in as_llama_cpp(model).items():
        values = values.contiguous().numpy()
        own = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        encoded[name] = gguf.quants.quantize(values, own)
        writer.add_tensor(name, encoded[name], raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tessera.run("convert", path, "hf", "--to", "hf", "--verify")
    back = load_file(tessera.folder / "hf/model.safetensors")
    for name, source in (("blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"),
                         ("output.weight", "lm_head.weight")):
        decoded = gguf.quants.dequantize(encoded[name], kind).reshape(back[source].shape)
        assert np.array_equal(back[source].float().numpy(), decoded), name
    if type_name == "f32":
        for name, values in model.state_dict().items():
            assert torch.equal(back[name], values), name
        ids = prompt(40, config.vocab_size)
        assert_close(tessera.logits(tessera.folder / "hf", ids), logits_of(model, ids))


def test_the_tokenizer_and_the_chat_template(tessera):
    model = gpt2(vocabulary=300)
    folder = tessera.folder / "hf"
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the thin thread that thaws the other"] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    chat = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "chat_template": chat}), encoding="utf-8")
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf", "--type", "f16")
    settings, _ = open_gguf(tessera.folder / "m.gguf")
    whole = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = settings["tokenizer.ggml.tokens"]
    assert len(tokens) == model.config.vocab_size
    assert {token: tokens.index(token) for token in vocabulary} == vocabulary
    assert settings["tokenizer.ggml.merges"] == [" ".join(merge) for merge in whole["model"]["merges"]]
    kinds = settings["tokenizer.ggml.token_type"]
    assert kinds[vocabulary["<|endoftext|>"]] == gguf.TokenType.CONTROL
    assert set(kinds[len(vocabulary):]) <= {gguf.TokenType.UNUSED}
    assert settings["tokenizer.ggml.model"] == "gpt2" and settings["tokenizer.ggml.pre"] == "gpt-2"
    assert settings["tokenizer.ggml.eos_token_id"] == vocabulary["<|endoftext|>"]
    assert settings["tokenizer.chat_template"] == chat
