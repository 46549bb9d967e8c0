"""`tessera convert`: transformers loads its results and computes the same; Tessera computes the same from files of
transformers and llm.c after a conversion."""
import struct

import pytest
import torch
from models import assert_close, edit_config, gpt2, llama, logits_of, prompt
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_export import MODELS
from transformers import AutoModelForCausalLM


def train_sharded(tessera, model, text):
    tessera.train(f"""
model: {MODELS[model]}
data: {{train: "{text}", tokenizer: bytes, batch_size: 4}}
train: {{steps: 20, lr: 1.0e-2, lr_schedule: constant}}
sharding: {{sharding_strategy: FULL_SHARD}}
checkpoint: {{dir: out, every: 20, state_dict_type: SHARDED_STATE_DICT}}
""", ranks=2)
    return tessera.folder / "out"


def load_whole(folder, **options):
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], (kind, report[kind])
    return model.eval()


@pytest.mark.parametrize("model", MODELS)
def test_transformers_loads_numbered_files_of_a_sharded_run(tessera, text, model):
    run = train_sharded(tessera, model, text)
    tessera.run("convert", run, "hf", "--to", "hf", "--max-shard-size", "100kB", "--verify")
    folder = tessera.folder / "hf"
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    ids = prompt(50, 256)
    assert_close(tessera.logits(run, ids), logits_of(load_whole(folder), ids))


def test_bfloat16_is_said_in_the_configuration(tessera, text):
    run = train_sharded(tessera, "gpt2", text)
    tessera.run("convert", run, "hf", "--to", "hf", "--dtype", "bf16")
    folder = tessera.folder / "hf"
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}
    assert load_whole(folder, dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("to", ["full", "sharded"])
def test_a_transformers_folder_becomes_a_step(tessera, make, to):
    model = make()
    model.save_pretrained(tessera.folder / "theirs")
    tessera.run("convert", "theirs", "step", "--to", to, "--world-size", 3, "--verify")
    ids = prompt(40, model.config.vocab_size)
    assert_close(tessera.logits(tessera.folder / "step", ids), logits_of(model, ids))


def test_the_hubs_names_become_whole_ones(tessera):
    model = gpt2()
    folder = tessera.folder / "hub"
    model.transformer.save_pretrained(folder)
    edit_config(folder, lambda config: config.update(architectures=["GPT2LMHeadModel"]))
    tensors = load_file(folder / "model.safetensors")
    for layer in range(model.config.n_layer):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tessera.run("convert", folder, "step", "--to", "full")
    ids = prompt(40, model.config.vocab_size)
    assert_close(tessera.logits(tessera.folder / "step", ids), logits_of(model, ids))


def llmc_file(model):
    """As llm.c's own script writes it: matrices in the layout of torch's Linear, the vocabulary padded to 128."""
    config, state = model.config, model.state_dict()
    padded = (config.vocab_size + 127) // 128 * 128
    header = [20240326, 3, config.n_positions, config.vocab_size, config.n_layer, config.n_head, config.n_embd, padded]
    out = struct.pack("<256i", *(header + [0] * (256 - len(header))))

    def data(tensor):
        return tensor.contiguous().float().numpy().tobytes()

    table = torch.zeros(padded, config.n_embd)
    table[:config.vocab_size] = state["transformer.wte.weight"]
    out += data(table) + data(state["transformer.wpe.weight"])
    for kind in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                 "mlp.c_proj.weight", "mlp.c_proj.bias"):
        for layer in range(config.n_layer):
            tensor = state[f"transformer.h.{layer}.{kind}"]
            out += data(tensor.t() if tensor.dim() == 2 else tensor)
    return out + data(state["transformer.ln_f.weight"]) + data(state["transformer.ln_f.bias"])


def test_llmc_files(tessera):
    model = gpt2()
    (tessera.folder / "model.bin").write_bytes(llmc_file(model))
    tessera.run("convert", "model.bin", "hf", "--to", "hf", "--verify")
    ids = prompt(40, model.config.vocab_size)
    assert_close(logits_of(load_whole(tessera.folder / "hf"), ids), logits_of(model, ids))
    assert_close(tessera.logits(tessera.folder / "hf", ids), logits_of(model, ids))
    tessera.run("convert", "hf", "back.bin", "--to", "llmc", "--verify")
    assert (tessera.folder / "back.bin").read_bytes() == (tessera.folder / "model.bin").read_bytes()
