"""Makes fixtures/megatron with Megatron-Core itself, on CPUs: python3 make_megatron.py [FOLDER], with megatron-core 0.16.1,
einops, torch and safetensors (pip install megatron-core einops). Each case is saved by two ranks of tensor parallelism; beside it lie
the tensors of transformers that it stands for, mapped here by hand, and the logits of Megatron's model."""
import contextlib
import os
import shutil
import sys
import warnings
from argparse import Namespace

import torch
import torch.distributed as dist

VOCABULARY, PADDED, POSITIONS, TOKENS = 44, 48, 32, 12
ARGUMENTS = {
    "gpt2": dict(num_layers=2, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, group_query_attention=False,
                 num_query_groups=1, normalization="LayerNorm", swiglu=False, add_bias_linear=True, add_qkv_bias=False,
                 position_embedding_type="learned_absolute", untie_embeddings_and_output_weights=False,
                 norm_epsilon=1e-5, bias_gelu_fusion=False, vocab_size=VOCABULARY, tokenizer_type="HuggingFaceTokenizer"),
    "llama": dict(num_layers=3, hidden_size=16, num_attention_heads=4, ffn_hidden_size=20, group_query_attention=True,
                  num_query_groups=2, normalization="RMSNorm", swiglu=True, add_bias_linear=False, add_qkv_bias=False,
                  position_embedding_type="rope", untie_embeddings_and_output_weights=True, norm_epsilon=1e-6,
                  rotary_base=50000, kv_channels=8, vocab_size=VOCABULARY - 1, tokenizer_type="NullTokenizer"),
}
# Case: the model, and how the optimizer's state is saved.
CASES = {"gpt2": ("gpt2", "plain"), "llama": ("llama", "fully_reshardable")}


class OnCpu(torch.overrides.TorchFunctionMode):
    """Megatron names the device of a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        out = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(out, str):
            return out.replace("torch.", "torch.cuda.", 1)
        return out


def use_cpu():
    from megatron.core.tensor_parallel import random

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()


def make_model(a, world):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=a.num_layers, hidden_size=a.hidden_size, num_attention_heads=a.num_attention_heads,
        num_query_groups=a.num_query_groups if a.group_query_attention else None, ffn_hidden_size=a.ffn_hidden_size,
        kv_channels=getattr(a, "kv_channels", None), normalization=a.normalization, gated_linear_unit=a.swiglu,
        add_bias_linear=a.add_bias_linear, add_qkv_bias=a.add_qkv_bias, layernorm_epsilon=a.norm_epsilon,
        activation_func=torch.nn.functional.silu if a.swiglu else torch.nn.functional.gelu, hidden_dropout=0,
        attention_dropout=0, bias_dropout_fusion=False, gradient_accumulation_fusion=False, masked_softmax_fusion=False,
        apply_rope_fusion=False, use_cpu_initialization=True, tensor_model_parallel_size=world, init_method_std=0.3)
    torch.manual_seed(7)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization=a.normalization), vocab_size=PADDED,
                     max_sequence_length=POSITIONS, position_embedding_type=a.position_embedding_type,
                     share_embeddings_and_output_weights=not a.untie_embeddings_and_output_weights,
                     rotary_base=getattr(a, "rotary_base", 10000), parallel_output=False)
    for name, parameter in model.named_parameters():  # norms and biases begin with ones and zeros
        if parameter.dim() == 1 and ("norm" in name or "linear_proj" in name or "linear_fc2" in name):
            parameter.data += torch.linspace(-0.2, 0.3, parameter.numel())
    return config, model


def train(config, model, sharding):
    """Three steps of Adam; the functions that make the optimizer's state dict."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    distributed = sharding != "plain"
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=distributed), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=distributed, clip_grad=0.0), [wrapped])
    ids, positions, mask = batch()
    for _ in range(3):
        wrapped.zero_grad_buffer()
        wrapped(ids, positions, attention_mask=mask, labels=ids.roll(-1, 1)).mean().backward()
        wrapped.finish_grad_sync()
        optimizer.step()
    metadata = {"chained_optim_avoid_prefix": True}
    if distributed:
        metadata["distrib_optim_sharding_type"] = sharding
    return lambda state: optimizer.sharded_state_dict(state, metadata=metadata)


def batch():
    ids = (torch.arange(TOKENS)[None] * 7 + 3) % VOCABULARY
    mask = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)[None, None]
    return ids, torch.arange(TOKENS)[None], mask


def rank_main(rank, world, folder, case):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29573", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    warnings.simplefilter("ignore")
    from megatron.core import dist_checkpointing, parallel_state

    use_cpu()
    with OnCpu():
        dist.init_process_group("gloo", rank=rank, world_size=world)
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
        kind, sharding = CASES[case]
        a = Namespace(**ARGUMENTS[kind], padded_vocab_size=PADDED, max_position_embeddings=POSITIONS,
                      params_dtype=torch.float32, iteration=3)
        config, model = make_model(a, world)
        optimizer_state = train(config, model, sharding)
        ids, positions, mask = batch()
        with torch.no_grad():
            logits = model(ids, positions, attention_mask=mask)
        state = {"args": a, "checkpoint_version": 3.0, "iteration": 3, "model": model.sharded_state_dict()}
        state["optimizer"] = optimizer_state(state)
        if sharding == "fully_reshardable":  # mixed precision: the optimizer alone has all digits
            state["model"] = model.bfloat16().sharded_state_dict()
        place = f"{folder}/{case}/iter_0000003"
        os.makedirs(place, exist_ok=True)
        dist_checkpointing.save(state, place)
        if rank == 0:
            with open(f"{folder}/{case}/latest_checkpointed_iteration.txt", "w", encoding="ascii") as file:
                file.write("3")
            torch.save({"logits": logits, "ids": ids}, f"{folder}/{case}.logits")
        dist.barrier()
        dist.destroy_process_group()


def layer(tensors, name, i):
    return tensors[f"decoder.layers.{name}"][i]


def split_heads(tensor, a):
    """Of each group: its query heads, its key head, its value head."""
    groups = a.num_query_groups if a.group_query_attention else a.num_attention_heads
    size = getattr(a, "kv_channels", None) or a.hidden_size // a.num_attention_heads
    grouped = tensor.reshape(groups, -1, size, *tensor.shape[1:])
    q, k, v = grouped[:, :-2], grouped[:, -2], grouped[:, -1]
    return [part.reshape(-1, *tensor.shape[1:]) for part in (q, k, v)]


def to_gpt2(t, a):
    out = {"wte.weight": t["embedding.word_embeddings.weight"][:VOCABULARY], "wpe.weight": t["embedding.position_embeddings.weight"],
           "ln_f.weight": t["decoder.final_layernorm.weight"], "ln_f.bias": t["decoder.final_layernorm.bias"]}
    for i in range(a.num_layers):
        for kind in ("weight", "bias"):
            def turned(tensor, kind=kind):
                return tensor.T.contiguous() if kind == "weight" else tensor
            out[f"h.{i}.ln_1.{kind}"] = layer(t, f"self_attention.linear_qkv.layer_norm_{kind}", i)
            out[f"h.{i}.ln_2.{kind}"] = layer(t, f"mlp.linear_fc1.layer_norm_{kind}", i)
            out[f"h.{i}.attn.c_attn.{kind}"] = turned(torch.cat(split_heads(layer(t, f"self_attention.linear_qkv.{kind}", i), a)))
            out[f"h.{i}.attn.c_proj.{kind}"] = turned(layer(t, f"self_attention.linear_proj.{kind}", i))
            out[f"h.{i}.mlp.c_fc.{kind}"] = turned(layer(t, f"mlp.linear_fc1.{kind}", i))
            out[f"h.{i}.mlp.c_proj.{kind}"] = turned(layer(t, f"mlp.linear_fc2.{kind}", i))
    return {f"transformer.{name}": tensor for name, tensor in out.items()}


def to_llama(t, a):
    out = {"model.embed_tokens.weight": t["embedding.word_embeddings.weight"][:VOCABULARY],
           "model.norm.weight": t["decoder.final_layernorm.weight"], "lm_head.weight": t["output_layer.weight"][:VOCABULARY]}
    for i in range(a.num_layers):
        at = f"model.layers.{i}."
        q, k, v = split_heads(layer(t, "self_attention.linear_qkv.weight", i), a)
        gate, up = layer(t, "mlp.linear_fc1.weight", i).chunk(2)
        out.update({at + "input_layernorm.weight": layer(t, "self_attention.linear_qkv.layer_norm_weight", i),
                    at + "self_attn.q_proj.weight": q, at + "self_attn.k_proj.weight": k, at + "self_attn.v_proj.weight": v,
                    at + "self_attn.o_proj.weight": layer(t, "self_attention.linear_proj.weight", i),
                    at + "post_attention_layernorm.weight": layer(t, "mlp.linear_fc1.layer_norm_weight", i),
                    at + "mlp.gate_proj.weight": gate, at + "mlp.up_proj.weight": up,
                    at + "mlp.down_proj.weight": layer(t, "mlp.linear_fc2.weight", i)})
    return out


def expect(folder, case):
    """Reads the folder with PyTorch alone, as whole tensors of Megatron's names."""
    from safetensors.torch import save_file
    from torch.distributed.checkpoint import FileSystemReader, TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    kind, sharding = CASES[case]
    a = Namespace(**ARGUMENTS[kind])
    place = f"{folder}/{case}/iter_0000003"
    entries = FileSystemReader(place).read_metadata().state_dict_metadata
    whole = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in entries.items()
             if isinstance(entry, TensorStorageMetadata)}
    load(whole, checkpoint_id=place, no_dist=True)
    mapped = to_gpt2 if kind == "gpt2" else to_llama
    masters = "optimizer.state.param." if sharding == "fully_reshardable" else ""
    expected = {f"model/{name}": tensor for name, tensor in mapped(strip(whole, masters), a).items()}
    for key in ("exp_avg", "exp_avg_sq"):
        for name, tensor in mapped(strip(whole, f"optimizer.state.{key}."), a).items():
            expected[f"optimizer/{name}.{key}"] = tensor
    logits = torch.load(f"{folder}/{case}.logits", weights_only=True)
    os.remove(f"{folder}/{case}.logits")
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, f"{folder}/{case}.safetensors")
    save_file(logits, f"{folder}/{case}.logits.safetensors")


def strip(tensors, prefix):
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(here, "fixtures/megatron")
    shutil.rmtree(folder, ignore_errors=True)
    for case in CASES:
        torch.multiprocessing.spawn(rank_main, (2, folder, case), nprocs=2)
        expect(folder, case)


if __name__ == "__main__":
    main()
