"""GGUF files: llama.cpp's own package reads what `tessera convert` wrote, with equal settings and equal bytes of
quantised weights, and Tessera reads what the package wrote. Of q4_k and q6_k, for which the package has no quantiser,
llama.cpp's library is the reference: the error is at most its own."""
import ctypes
import importlib.util
import json
import pathlib

import gguf
import numpy as np
import pytest
import torch
from models import LLAMA3_ROPE, assert_close, gpt2, llama, logits_of, mistral, prompt, qwen2
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
K_QUANTS = {"q4_k": 12, "q6_k": 14}


@pytest.fixture(scope="module")
def llama_cpp_quantise():
    """llama.cpp's quantiser, ggml_quantize_chunk of the library in the package xllamacpp."""
    package = importlib.util.find_spec("xllamacpp")
    if package is None:
        pytest.skip("xllamacpp is not installed")
    library = ctypes.CDLL(str(next(pathlib.Path(package.origin).parent.glob("xllamacpp*.so"))))
    function = library.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                         ctypes.c_int64, ctypes.c_void_p]

    def quantise(values, kind):
        values = np.ascontiguousarray(values, np.float32)
        rows, columns = values.shape
        block, size = gguf.GGML_QUANT_SIZES[kind]
        encoded = np.zeros((rows, columns // block * size), np.uint8)
        written = function(int(kind), values.ctypes.data, encoded.ctypes.data, 0, rows, columns, None)
        assert written == encoded.nbytes
        return encoded

    return quantise


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


WIDE = {"gpt2": lambda: gpt2(n_embd=256), "llama": lambda: llama(hidden_size=256, intermediate_size=512)}


@pytest.mark.parametrize("type_name", K_QUANTS)
@pytest.mark.parametrize("family", WIDE)
def test_k_quants_are_read_equally_and_are_as_good_as_the_reference(tessera, llama_cpp_quantise, family, type_name):
    model = WIDE[family]()
    model.save_pretrained(tessera.folder / "hf")
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf", "--type", type_name, "--verify")
    tessera.run("convert", "m.gguf", "back.gguf", "--to", "gguf", "--type", "f32")
    settings, tensors = open_gguf(tessera.folder / "m.gguf")
    _, back = open_gguf(tessera.folder / "back.gguf")
    assert settings["general.file_type"] == {"q4_k": 14, "q6_k": 18}[type_name]
    kind = gguf.GGMLQuantizationType(K_QUANTS[type_name])
    matrices = 0
    for name, values in as_llama_cpp(model).items():
        values = values.contiguous().float().numpy()
        if values.ndim == 1 or name == "position_embd.weight":
            continue
        assert tensors[name].tensor_type == kind, name
        decoded = gguf.quants.dequantize(tensors[name].data, kind).reshape(values.shape)
        assert np.array_equal(back[name].data.reshape(values.shape), decoded), name
        theirs = gguf.quants.dequantize(llama_cpp_quantise(values, kind), kind).reshape(values.shape)
        assert ((decoded - values) ** 2).mean() <= ((theirs - values) ** 2).mean(), name
        matrices += 1
    assert matrices >= 5


@pytest.mark.parametrize("kind", K_QUANTS.values(), ids=K_QUANTS)
@pytest.mark.parametrize("shape_of_values", ["normal", "heavy", "sparse", "positive", "shifted", "rows"])
def test_k_quants_of_other_distributions(tessera, llama_cpp_quantise, kind, shape_of_values):
    random = np.random.default_rng(5)
    model = llama(hidden_size=256, intermediate_size=2048, num_hidden_layers=1)
    weight = model.model.layers[0].mlp.gate_proj.weight
    values = {"normal": lambda: random.normal(size=weight.shape), "heavy": lambda: random.standard_t(3, weight.shape),
              "sparse": lambda: random.normal(size=weight.shape) * (random.random(weight.shape) < 0.05),
              "positive": lambda: abs(random.normal(size=weight.shape)),
              "shifted": lambda: random.normal(size=weight.shape) - 3,
              "rows": lambda: random.normal(size=weight.shape) * np.exp(3 * random.normal(size=(len(weight), 1)))
              }[shape_of_values]().astype(np.float32)
    weight.data.copy_(torch.from_numpy(values))
    model.save_pretrained(tessera.folder / "hf")
    kind = gguf.GGMLQuantizationType(kind)
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf", "--type", kind.name.lower())
    _, tensors = open_gguf(tessera.folder / "m.gguf")
    ours = gguf.quants.dequantize(tensors["blk.0.ffn_gate.weight"].data, kind)
    theirs = gguf.quants.dequantize(llama_cpp_quantise(values, kind), kind)
    assert ((ours - values) ** 2).mean() <= ((theirs - values) ** 2).mean()


@pytest.mark.parametrize("type_name", K_QUANTS)
def test_files_of_the_reference_quantiser_are_read(tessera, llama_cpp_quantise, type_name):
    model = WIDE["llama"]()
    model.save_pretrained(tessera.folder / "hf")
    tessera.run("convert", "hf", "m.gguf", "--to", "gguf", "--type", type_name)
    _, tensors = open_gguf(tessera.folder / "m.gguf")
    tensor = tensors["blk.1.ffn_up.weight"]
    kind = gguf.GGMLQuantizationType(K_QUANTS[type_name])
    theirs = llama_cpp_quantise(model.state_dict()["model.layers.1.mlp.up_proj.weight"].numpy(), kind)
    with open(tessera.folder / "m.gguf", "r+b") as file:  # their bytes in the place of ours
        file.seek(tensor.data_offset)
        file.write(theirs.tobytes())
    tessera.run("convert", "m.gguf", "back", "--to", "hf", "--verify")
    back = load_file(tessera.folder / "back/model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    assert np.array_equal(back.numpy(), gguf.quants.dequantize(theirs, kind))


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
