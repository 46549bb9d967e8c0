"""GPT-2 and Llama (Mistral, Qwen2, Qwen3 and its mixture of experts) in plain PyTorch, with Hugging Face's names, for the peers that train them.

Attention is scaled_dot_product_attention, projections are nn.Linear, the loss is cross entropy of fp32 logits: as a PyTorch
user would write it. The sizes are the keys of Hugging Face's config.json, which are the recipe's.
"""
import json
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional


def activation(name):
    if name in ("gelu_new", "gelu_pytorch_tanh"):
        return nn.GELU(approximate="tanh")
    return {"gelu": nn.GELU, "silu": nn.SiLU}[name]()


class LanguageModel(nn.Module):
    """A body with a head that may share the token embedding. forward() returns the mean loss."""

    def __init__(self, body, table, width, tied):
        super().__init__()
        self.body = body
        self.lm_head = nn.Linear(width, table.num_embeddings, bias=False)
        if tied:
            self.lm_head.weight = table.weight

    def forward(self, ids, targets):
        logits = self.lm_head(self.body(ids))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Gpt2Attention(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        width, self.heads = config["n_embd"], config["n_head"]
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop, self.resid = config.get("attn_pdrop", 0.0), nn.Dropout(config.get("resid_pdrop", 0.0))
        scale = 1 / math.sqrt(width // self.heads) if config.get("scale_attn_weights", True) else 1.0
        self.scale = scale / (number + 1) if config.get("scale_attn_by_inverse_layer_idx") else scale

    def forward(self, x):
        batch, tokens, width = x.shape
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2)
                             for part in self.c_attn(x).split(width, dim=2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale,
                                                        dropout_p=self.drop if self.training else 0.0)
        return self.resid(self.c_proj(mixed.transpose(1, 2).reshape(batch, tokens, width)))


class Gpt2Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
        self.c_fc, self.c_proj = nn.Linear(width, inner), nn.Linear(inner, width)
        self.act = activation(config.get("activation_function", "gelu_new"))
        self.resid = nn.Dropout(config.get("resid_pdrop", 0.0))

    def forward(self, x):
        return self.resid(self.c_proj(self.act(self.c_fc(x))))


class Gpt2Block(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        width, epsilon = config["n_embd"], config.get("layer_norm_epsilon", 1e-5)
        self.ln_1, self.attn = nn.LayerNorm(width, epsilon), Gpt2Attention(config, number)
        self.ln_2, self.mlp = nn.LayerNorm(width, epsilon), Gpt2Mlp(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["n_embd"]
        self.wte, self.wpe = nn.Embedding(config["vocab_size"], width), nn.Embedding(config["n_positions"], width)
        self.drop = nn.Dropout(config.get("embd_pdrop", 0.0))
        self.h = nn.ModuleList(Gpt2Block(config, number) for number in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(width, config.get("layer_norm_epsilon", 1e-5))

    def forward(self, ids):
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


def rotary_frequencies(config, size):
    """Hugging Face's default, linear and llama3 (docs/recipe.md: rope_scaling)."""
    frequencies = config.get("rope_theta", 10000.0) ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    scaling = config.get("rope_scaling") or {}
    kind, factor = scaling.get("rope_type") or "default", scaling.get("factor")
    if kind == "linear":
        return frequencies / factor
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        waves = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        share = ((waves - low) / (high - low)).clamp(0, 1)
        return frequencies * (share + (1 - share) / factor)
    return frequencies


class LlamaAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.key_heads = config.get("num_key_value_heads") or self.heads
        self.size = config.get("head_dim") or width // self.heads
        biased = bool(config.get("attention_bias")) or config["model_type"] == "qwen2"
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=biased)
        self.k_proj = nn.Linear(width, self.key_heads * self.size, bias=biased)
        self.v_proj = nn.Linear(width, self.key_heads * self.size, bias=biased)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=bool(config.get("attention_bias")))
        self.q_norm = self.k_norm = nn.Identity()
        if config["model_type"].startswith("qwen3"):
            epsilon = config.get("rms_norm_eps", 1e-6)
            self.q_norm, self.k_norm = nn.RMSNorm(self.size, epsilon), nn.RMSNorm(self.size, epsilon)
        self.drop = config.get("attention_dropout", 0.0)

    def forward(self, x, cosine, sine):
        def heads(projected, count, norm=nn.Identity()):
            return norm(projected.view(*x.shape[:2], count, self.size)).transpose(1, 2)

        def rotate(part):
            first, second = part.chunk(2, dim=-1)
            return part * cosine + torch.cat((-second, first), dim=-1) * sine

        query = rotate(heads(self.q_proj(x), self.heads, self.q_norm))
        key, value = rotate(heads(self.k_proj(x), self.key_heads, self.k_norm)), heads(self.v_proj(x), self.key_heads)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.drop if self.training else 0.0,
            enable_gqa=self.key_heads != self.heads)
        return self.o_proj(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))


class LlamaMlp(nn.Module):
    def __init__(self, config, inner):
        super().__init__()
        width, biased = config["hidden_size"], bool(config.get("mlp_bias"))
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=biased), nn.Linear(width, inner, bias=biased)
        self.down_proj = nn.Linear(inner, width, bias=biased)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """A mixture of experts; one that no token has chosen computes nothing and has gradients of zero, as FSDP needs."""

    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config["hidden_size"], config["num_experts"], bias=False)
        self.experts = nn.ModuleList(LlamaMlp(config, config["moe_intermediate_size"]) for _ in range(config["num_experts"]))
        self.chosen, self.scales = config.get("num_experts_per_tok", 8), config.get("norm_topk_prob", False)

    def forward(self, x):
        rows = x.flatten(0, 1)
        weights, chosen = functional.softmax(self.gate(rows).float(), dim=-1).topk(self.chosen, dim=-1)
        if self.scales:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, row, (expert(rows[row]) * weights[row, place, None]).to(mixed.dtype))
        return mixed.view_as(x)


class LlamaBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, epsilon = config["hidden_size"], config.get("rms_norm_eps", 1e-6)
        self.input_layernorm, self.self_attn = nn.RMSNorm(width, epsilon), LlamaAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(width, epsilon)
        self.mlp = Experts(config) if config["model_type"] == "qwen3_moe" else LlamaMlp(config, config["intermediate_size"])

    def forward(self, x, cosine, sine):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], width)
        self.layers = nn.ModuleList(LlamaBlock(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(width, config.get("rms_norm_eps", 1e-6))
        self.frequencies = rotary_frequencies(config, self.layers[0].self_attn.size)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        angles = torch.outer(torch.arange(ids.shape[1], dtype=torch.float64), self.frequencies).repeat(1, 2)
        cosine, sine = (angle.to(x.device, x.dtype) for angle in (angles.cos(), angles.sin()))
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.norm(x)


def make(config):
    """(model, its layers' class) of a config.json's keys, with weights drawn as Hugging Face draws them."""
    if config["model_type"] == "gpt2":
        body = Gpt2(config)
        table, width, layer = body.wte, config["n_embd"], Gpt2Block
    else:
        body = Llama(config)
        table, width, layer = body.embed_tokens, config["hidden_size"], LlamaBlock
    model = LanguageModel(body, table, width, config.get("tie_word_embeddings", config["model_type"] == "gpt2"))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=config.get("initializer_range", 0.02))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model, layer


def tensors_of(folder):
    """A folder's weights: model.safetensors, or numbered files with their index."""
    from safetensors.torch import load_file

    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    tensors = {}
    for file in files:
        tensors.update(load_file(folder / file))
    return tensors


def load(model, folder):
    """The weights of a folder that transformers or Tessera wrote; names and shapes must be the model's."""
    tensors, given = {}, tensors_of(folder)
    for name, tensor in given.items():
        name = name.removeprefix("transformer.").removeprefix("model.")
        if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            tensor = tensor.t()  # GPT-2's projections are stored the other way round
        tensors[name if name.startswith("lm_head.") else "body." + name] = tensor
    own = dict(model.named_parameters(remove_duplicate=False))
    if model.lm_head.weight is own.get("body.wte.weight", own.get("body.embed_tokens.weight")):
        own.pop("lm_head.weight")
        tensors.pop("lm_head.weight", None)
    extra = [name for name in tensors if name not in own and not name.endswith((".attn.bias", ".attn.masked_bias"))]
    missing = [name for name in own if name not in tensors]
    if extra or missing:
        raise ValueError(f"{folder}: missing {missing[:3]}, unexpected {extra[:3]}")
    with torch.no_grad():
        for name, parameter in own.items():
            if tensors[name].shape != parameter.shape:
                raise ValueError(f"{folder}: {name} is {tuple(tensors[name].shape)}, the model's {tuple(parameter.shape)}")
            parameter.copy_(tensors[name])
