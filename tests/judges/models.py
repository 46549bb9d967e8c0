"""Small language models made by transformers, with weights that reveal every error."""
import json

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def scatter(model, seed):
    """Weights so large that each of them changes the logits; also norms and biases, whose usual
    initial values, ones and zeros, would hide a swapped or forgotten one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.08 * noise)
            else:
                parameter.add_(0.1 * noise)
    return model.eval()


def gpt2(vocabulary=307, positions=64, seed=1, **changes):
    config = GPT2Config(**{"vocab_size": vocabulary, "n_positions": positions, "n_embd": 48, "n_layer": 2,
                           "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
                           "bos_token_id": 0, "eos_token_id": 0, **changes})
    return scatter(GPT2LMHeadModel(config), seed)


def decoder(name, seed, **of_family):
    """A function that makes models of transformers' classes NAMEConfig and NAMEForCausalLM."""
    def make(vocabulary=307, positions=128, **changes):
        config = getattr(transformers, name + ("TextConfig" if name == "Gemma3" else "Config"))(
            **{"vocab_size": vocabulary, "max_position_embeddings": positions, "hidden_size": 64,
               "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
               **of_family, **changes})
        return scatter(getattr(transformers, name + "ForCausalLM")(config), seed)
    return make


llama = decoder("Llama", 2)
mistral = decoder("Mistral", 3)
qwen2 = decoder("Qwen2", 4)
qwen3 = decoder("Qwen3", 5, head_dim=24)
olmo2 = decoder("Olmo2", 6)
smollm3 = decoder("SmolLM3", 7, no_rope_layers=[0, 1])
phi3 = decoder("Phi3", 8, rope_parameters={
    "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})
gemma3 = decoder("Gemma3", 11, layer_types=["sliding_attention", "full_attention"], sliding_window=9, head_dim=24,
                 query_pre_attn_scalar=20)
mixtral = decoder("Mixtral", 9, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.05)
qwen3_moe = decoder("Qwen3Moe", 10, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, head_dim=24)
gpt_oss = decoder("GptOss", 12, num_hidden_layers=3, num_local_experts=5, num_experts_per_tok=2, head_dim=24,
                  sliding_window=9, output_router_logits=True, router_aux_loss_coef=0.05)

MAKERS = {"gpt2": gpt2, "llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3, "olmo2": olmo2,
          "smollm3": smollm3, "phi3": phi3, "gemma3": gemma3, "mixtral": mixtral, "qwen3_moe": qwen3_moe,
          "gpt_oss": gpt_oss}


def edit_config(folder, edit):
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    edit(config)
    path.write_text(json.dumps(config), encoding="utf-8")


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def prompt(length, vocabulary, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (length,), generator=generator).tolist()


def assert_close(ours, theirs, tolerance=1e-4):
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert ours.dtype == torch.float32
    assert theirs.std() > 0.1, "logits without any spread would agree by themselves"
    worst = (ours - theirs).abs().max().item()
    assert worst <= tolerance, f"logits differ by {worst:.3g}, more than {tolerance}"


def assert_close_relatively(ours, theirs, tolerance=1e-5):
    """Differences are relative to the largest logit."""
    assert_close(ours, theirs, tolerance * theirs.abs().max().item())
