"""`tessera convert --heads N --ffn N`: transformers opens the smaller model, and its logits are those of the original with
the same heads and columns set to zero."""
import json

import pytest
import torch
from models import MAKERS, assert_close_relatively, logits_of, prompt
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, BertModel, DistilBertConfig, DistilBertModel

WITH_HEADS = ["llama", "mistral", "qwen2", "qwen3", "smollm3"]


def kept(scores, count):
    """The numbers of the largest scores; the first of equal ones."""
    return sorted(sorted(range(len(scores)), key=lambda unit: -scores[unit])[:count])


def squares(*parts):
    """The sums of squares of matrices [units, ...]."""
    return sum(part.double().square().flatten(1).sum(1) for part in parts).tolist()


def zero_heads(model, heads):
    config = model.config
    groups, size = config.num_key_value_heads, model.model.layers[0].self_attn.head_dim
    for layer in model.model.layers:
        attention = layer.self_attn
        out = attention.o_proj.weight
        by_group = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight, out.T]
        scores = squares(*(weight.reshape(groups, -1) for weight in by_group))
        stays = kept(scores, heads * groups // config.num_attention_heads)
        for group in set(range(groups)) - set(stays):
            width = config.num_attention_heads // groups * size
            out[:, group * width:(group + 1) * width] = 0


def zero_columns(up, down, count):
    """up: matrices [columns, in]; down [out, columns]."""
    gone = set(range(down.shape[1])) - set(kept(squares(*up, down.T), count))
    down[:, sorted(gone)] = 0


@pytest.mark.parametrize("name", [*WITH_HEADS, "olmo2", "gpt2"])
def test_logits_are_those_with_zeros(tessera, name):
    model = MAKERS[name]()
    model.save_pretrained(tessera.folder / "whole")
    options = ["--ffn", 40] + (["--heads", 2] if name in WITH_HEADS else [])
    tessera.run("convert", "whole", "small", "--to", "hf", "--verify", *options)
    with torch.no_grad():
        if name in WITH_HEADS:
            zero_heads(model, 2)
        if name == "gpt2":
            for layer in model.transformer.h:
                zero_columns([layer.mlp.c_fc.weight.T], layer.mlp.c_proj.weight.T, 40)
        else:
            for layer in model.model.layers:
                zero_columns([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight], layer.mlp.down_proj.weight, 40)
    small, report = AutoModelForCausalLM.from_pretrained(tessera.folder / "small", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], (kind, report[kind])
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    ids = prompt(40, model.config.vocab_size)
    expected = logits_of(model, ids)
    assert_close_relatively(logits_of(small.eval(), ids), expected)
    assert_close_relatively(tessera.logits(tessera.folder / "small", ids), expected)


def of_bert():
    config = BertConfig(vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                        max_position_embeddings=64, initializer_range=0.2)
    model = BertModel(config)
    return model, "intermediate_size", [(layer.intermediate.dense, layer.output.dense) for layer in model.encoder.layer]


def of_distilbert():
    config = DistilBertConfig(vocab_size=200, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64,
                              initializer_range=0.2)
    model = DistilBertModel(config)
    return model, "hidden_dim", [(layer.ffn.lin1, layer.ffn.lin2) for layer in model.transformer.layer]


@pytest.mark.parametrize("make", [of_bert, of_distilbert])
def test_hidden_states_of_encoders_are_those_with_zeros(tessera, make):
    torch.manual_seed(3)
    model, key, layers = make()
    model.eval().save_pretrained(tessera.folder / "whole")
    tessera.run("convert", "whole", "small", "--to", "hf", "--ffn", 24)
    with torch.no_grad():
        for first, second in layers:
            zero_columns([first.weight], second.weight, 24)
        ids = torch.tensor([prompt(30, 200)])
        small = AutoModel.from_pretrained(tessera.folder / "small").eval()
        assert json.loads((tessera.folder / "small/config.json").read_text(encoding="utf-8"))[key] == 24
        theirs = model(ids).last_hidden_state
        assert (small(ids).last_hidden_state - theirs).abs().max() <= 1e-5 * theirs.abs().max()
