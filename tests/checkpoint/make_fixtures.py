#!/usr/bin/env python3
"""Makes tests/checkpoint/fixtures anew: checkpoints as PyTorch and DeepSpeed write them, small, and beside each the
tensors that a reader must find (NAME.safetensors; names begin with "model/" or "optimizer/").

    PYTHON tests/checkpoint/make_fixtures.py [FOLDER]

PYTHON is that of scripts/judges. DeepSpeed's folders are laid out as its zero_to_fp32.py reads them.
"""
import os
import pickle
import shutil
import struct
import sys
import warnings
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

WORLD = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.last = nn.Linear(7, 3, bias=False)
        self.register_buffer("seen", torch.tensor(7))

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def train(model, seed):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1)
    torch.manual_seed(seed)
    for _ in range(3):
        model(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def expect(path, model, optimizer):
    tensors = {f"model/{name}": tensor.detach().clone().contiguous() for name, tensor in model.items()}
    for name, state in (optimizer or {}).items():
        for key, tensor in state.items():
            if key != "step":
                tensors[f"optimizer/{name}.{key}"] = tensor.detach().clone().contiguous()
    save_file(tensors, path)


def write_dcp(state, folder):
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), planner=DefaultSavePlanner())


def fsdp2(folder, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = Net()
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = train(model, rank)
    state, optimizer_state = get_state_dict(model, optimizer)
    write_dcp({"model": state, "optim": optimizer_state}, f"{folder}/fsdp2")
    whole, whole_optimizer = get_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save({"model": whole, "optimizer": whole_optimizer}, f"{folder}/fsdp2_full.pt")
        torch.save(model.state_dict(), f"{folder}/found/dtensor.pt")
        expect(f"{folder}/fsdp2.safetensors", whole, whole_optimizer["state"])


def verl(folder, rank):
    """As verl's FSDPCheckpointManager does: every rank saves its state dict of DTensors for itself."""
    import json

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(4)
    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    optimizer = train(model, rank)
    name = f"world_size_{WORLD}_rank_{rank}.pt"
    place = f"{folder}/verl"
    os.makedirs(f"{place}/huggingface", exist_ok=True)
    torch.save(model.state_dict(), f"{place}/model_{name}")
    torch.save(optimizer.state_dict(), f"{place}/optim_{name}")
    torch.save({"lr_scheduler": {"last_epoch": 3}, "rng": torch.arange(3)}, f"{place}/extra_state_{name}")
    whole, whole_optimizer = get_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        with open(f"{place}/fsdp_config.json", "w", encoding="ascii") as file:
            json.dump({"FSDP_version": 2, "world_size": WORLD}, file)
        with open(f"{place}/huggingface/config.json", "w", encoding="ascii") as file:
            json.dump({"model_type": "net"}, file)
        expect(f"{folder}/verl.safetensors", whole, whole_optimizer["state"])


def fsdp1(folder, rank):
    """As Accelerate's save_fsdp_model and save_fsdp_optimizer do."""
    from torch.distributed.fsdp import (FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel,
                                        LocalStateDictConfig, ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType)

    torch.manual_seed(2)
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = train(model, 10 + rank)
    with FullyShardedDataParallel.state_dict_type(
            model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True),
            ShardedOptimStateDictConfig(offload_to_cpu=True)):
        write_dcp({"model": model.state_dict()}, f"{folder}/accelerate/pytorch_model_fsdp_0")
        write_dcp({"optimizer": FullyShardedDataParallel.optim_state_dict(model, optimizer)},
                  f"{folder}/accelerate/optimizer_0")
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT,
                                                  LocalStateDictConfig(offload_to_cpu=True)):
        torch.save(model.state_dict(), f"{folder}/found/local/pytorch_model_fsdp_rank{rank}.bin")
    with FullyShardedDataParallel.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
            FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)):
        state = model.state_dict()
        optimizer_state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    if rank == 0:
        os.makedirs(f"{folder}/accelerate_full")
        torch.save(state, f"{folder}/accelerate_full/pytorch_model_fsdp.bin")
        torch.save(optimizer_state, f"{folder}/accelerate_full/optimizer.bin")
        # On a CPU, PyTorch 2.15 gathers exp_avg with the values of exp_avg_sq: each folder has its own truth.
        expect(f"{folder}/accelerate_full.safetensors", state, optimizer_state["state"])
        dcp_to_torch_save(f"{folder}/accelerate/optimizer_0", f"{folder}/optimizer.pt")
        sharded = torch.load(f"{folder}/optimizer.pt", weights_only=True)["optimizer"]["state"]
        os.remove(f"{folder}/optimizer.pt")
        expect(f"{folder}/accelerate.safetensors", state, sharded)


def rank_main(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK=str(rank), WORLD_SIZE=str(WORLD))
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    fsdp2(folder, rank)
    fsdp1(folder, rank)
    verl(folder, rank)
    dist.destroy_process_group()


def found(folder):
    """What people have in their folders: the layouts of PyTorch's tutorials, nanoGPT, GANs, encoders with decoders, and
    of Accelerate's save_state and the Trainer."""
    def net(*, like="a"):
        return OrderedDict([(f"{like}.weight", torch.randn(4, 6)), (f"{like}.bias", torch.randn(6))])

    def numbered(tensors, *, kept=True):
        state = {i: {"step": torch.tensor(3.0), "exp_avg": t / 2, "exp_avg_sq": t * t}
                 for i, t in enumerate(tensors.values())}
        return {"state": state if kept else {}, "param_groups": [{"lr": 0.1, "params": list(range(len(tensors)))}]}

    torch.manual_seed(3)
    model, loss = net(), torch.tensor(0.25)
    files = {
        "tutorial": {"epoch": 5, "model_state_dict": model, "optimizer_state_dict": numbered(model), "loss": loss},
        "nanogpt": {"model": model, "optimizer": numbered(model, kept=False), "model_args": {"n_layer": 1},
                    "iter_num": 5, "best_val_loss": loss, "config": {"batch_size": 12}},
        "random_state": {"policy": model, "optimizer": numbered(model), "rng": torch.get_rng_state(), "epoch": loss},
        "encoder_decoder": {"model": {"encoder": model, "decoder": net()}},
        "gan": {"generator_state_dict": model, "discriminator_state_dict": net(), "epoch": 3},
        "nested": {"model": {"a": OrderedDict(weight=model["a.weight"], bias=model["a.bias"])}},
        "negative": {"a.weight": torch._neg_view(model["a.weight"])},
        "conjugate": {"a.weight": torch.complex(model["a.weight"], model["a.weight"]).conj()},
    }
    for name, state in files.items():
        torch.save(state, f"{folder}/found/{name}.pt")
    expect(f"{folder}/found/expected.safetensors", model,
           {name: {"exp_avg": t / 2, "exp_avg_sq": t * t} for name, t in model.items()})
    for name, weights, optimizer in [("save_state", "model.safetensors", "optimizer.bin"),
                                     ("trainer", "model.safetensors", "optimizer.pt"),
                                     ("old_trainer", "pytorch_model.bin", "optimizer.pt")]:
        place = f"{folder}/found/{name}"
        os.makedirs(place)
        if weights.endswith(".bin"):
            torch.save(model, f"{place}/{weights}")
        else:
            save_file(model, f"{place}/{weights}")
        torch.save(numbered(model), f"{place}/{optimizer}")


def views(folder):
    """What a state dict may hold: strides of all kinds, shared memory, every dtype, numbers of no element."""
    base = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    state = OrderedDict()
    state["transposed"] = base.t()
    state["columns"] = base[:, 3:7]
    state["every_third"] = base[::2, ::3]
    state["permuted"] = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4).permute(2, 0, 1)
    state["expanded"] = torch.tensor([[1.5], [2.5]]).expand(2, 4)
    state["scalar"] = torch.tensor(3.25, dtype=torch.float64)
    state["empty"] = torch.zeros(0, 4)
    state["without_columns"] = torch.zeros(3, 0)
    state["tied"] = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    state["also_tied"] = state["tied"]
    for dtype in (torch.float16, torch.int64, torch.uint8, torch.bool, torch.int8, torch.int16, torch.uint16,
                  torch.float8_e4m3fn):
        state[f"dtype.{str(dtype)[6:]}"] = torch.arange(5).to(dtype)
    state["parameter"] = nn.Parameter(torch.ones(3))
    torch.save(state, f"{folder}/views.pt")
    torch.save(state, f"{folder}/legacy_views.pt", _use_new_zipfile_serialization=False)
    expected = {name: tensor for name, tensor in state.items() if name != "also_tied"}
    expect(f"{folder}/views.safetensors", expected, None)


def storage_views(path):
    """An old torch.save file whose storages are views of others, which PyTorch no longer writes but reads: `whole` is a
    storage of 20 elements, `part` lies in its elements 5 to 15."""
    base = torch.arange(20, dtype=torch.float32)

    class Storage:
        def __init__(self, *view):
            self.id = ("storage", torch.FloatStorage, "7", "cpu", 20, view[0] if view else None)

    class Tensor:
        def __init__(self, storage, first, shape, strides):
            self.arguments = (storage, first, shape, strides, False, OrderedDict())

        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, self.arguments

    class Pickler(pickle._Pickler):
        def persistent_id(self, obj):
            return obj.id if isinstance(obj, Storage) else None

    state = OrderedDict(whole=Tensor(Storage(), 0, (4, 5), (5, 1)), part=Tensor(Storage(("8", 5, 10)), 1, (3, 2), (1, 3)))
    with open(path, "wb") as file:
        machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
        for value in (0x1950A86A20F9469CFC6C, 1001, machine):
            pickle.dump(value, file, protocol=2)
        Pickler(file, protocol=2).dump(state)
        pickle.dump(["7"], file, protocol=2)
        file.write(struct.pack("<q", 20) + base.numpy().tobytes())
    found = torch.load(path, weights_only=True)
    assert torch.equal(found["part"], base[6:12].as_strided((3, 2), (1, 3), 6)), found
    expect(path.replace(".pt", ".safetensors"), found, None)


def zero_parts(flat, world, align):
    padded = torch.cat([flat, torch.zeros((-flat.numel()) % align)])
    return list(padded.chunk(world))


def zero(folder, stage, world):
    """zero_to_fp32.py's view of a ZeRO folder: two groups, a buffer, a frozen and a shared parameter."""
    torch.manual_seed(20 + stage)
    groups = [OrderedDict([("module.embed.weight", (7, 3)), ("module.head.weight", (2, 5))]),
              OrderedDict([("module.norm.bias", (5,))])]
    frozen = OrderedDict([("module.frozen.weight", (3, 3))])
    tensors = {name: torch.randn(shape) for group in [*groups, frozen] for name, shape in group.items()}
    moments = {key: {name: torch.rand(shape) for group in groups for name, shape in group.items()}
               for key in ("exp_avg", "exp_avg_sq")}
    tag = f"{folder}/zero{stage}/global_step4"
    os.makedirs(tag)
    with open(f"{folder}/zero{stage}/latest", "w", encoding="ascii") as file:
        file.write("global_step4")

    def partition(values, rank):
        parts = []
        for group in groups:
            if stage == 3:
                parts.append(torch.cat([zero_parts(values[name].flatten(), world, world)[rank] for name in group]))
            else:
                flat = torch.cat([values[name].flatten() for name in group])
                parts.append(zero_parts(flat, world, 2 * world)[rank])
        return parts

    for rank in range(world):
        weights = partition(tensors, rank)
        state = {i: {"step": torch.tensor(4.0), **{key: partition(values, rank)[i].clone()
                                                   for key, values in moments.items()}}
                 for i in range(len(groups))}
        base = {"state": state, "param_groups": [{"lr": 0.01, "betas": (0.9, 0.99), "params": [i]} for i in range(2)]}
        optimizer = {"zero_stage": stage, "partition_count": world if stage == 3 else [world, world],
                     "loss_scaler": None}
        if stage == 3:
            optimizer.update(fp32_flat_groups=[w.clone() for w in weights], optimizer_state_dict=base)
        else:
            # The weights go without the padding at their end, the moments with it.
            last = [sum(torch.Size(s).numel() for s in g.values()) - rank * w.numel() for g, w in zip(groups, weights)]
            optimizer.update(single_partition_of_fp32_groups=[w[:n].clone() for w, n in zip(weights, last)],
                             base_optimizer_state=base)
        prefix = "bf16_" if stage == 2 else ""
        torch.save({"optimizer_state_dict": optimizer, "ds_version": "0.16.0"},
                   f"{tag}/{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3 or rank == 0:
            model = {"module": OrderedDict([("module.table", torch.arange(4))]), "buffer_names": ["module.table"],
                     "param_shapes": [OrderedDict((n, torch.Size(s)) for n, s in g.items()) for g in groups],
                     "shared_params": {"module.tied.weight": "module.embed.weight"},
                     "frozen_param_shapes": OrderedDict((n, torch.Size(s)) for n, s in frozen.items()),
                     "frozen_param_fragments": OrderedDict(
                         (n, zero_parts(tensors[n].flatten(), world, world)[rank].clone() if stage == 3
                          else tensors[n]) for n in frozen),
                     "ds_version": "0.16.0", "global_steps": 4}
            name = f"zero_pp_rank_{rank}_mp_rank_00" if stage == 3 else "mp_rank_00"
            torch.save(model, f"{tag}/{name}_model_states.pt")
    expected = {f"model/{name[7:]}": tensor for name, tensor in tensors.items()}
    expected["model/table"] = torch.arange(4)
    for key, values in moments.items():
        expected.update({f"optimizer/{name[7:]}.{key}": value for name, value in values.items()})
    save_file(expected, f"{folder}/zero{stage}.safetensors")


def universal(folder, stage):
    """A universal checkpoint as DeepSpeed's ds_to_universal.py leaves it: of stage 1 and 2 whole tensors in dicts, of stage
    3 flat ones; fp32 copies of a buffer and of a tied name."""
    torch.manual_seed(30 + stage)
    groups = [OrderedDict([("embed.weight", (7, 3)), ("head.weight", (2, 5))]), OrderedDict([("norm.bias", (5,))])]
    tensors = {name: torch.randn(shape) for group in groups for name, shape in group.items()}
    table, fixed = torch.arange(4), torch.randn(3, 2).bfloat16()
    root = f"{folder}/universal{stage}"
    tag = f"{root}/global_step4_universal"
    expected = {"model/table": table, "model/fixed.weight": fixed}
    for name, tensor in tensors.items():
        os.makedirs(f"{tag}/zero/{name}")
        for key, value in (("fp32", tensor), ("exp_avg", tensor / 2), ("exp_avg_sq", tensor * tensor)):
            whole = {"param": value, "cat_dim": 0}
            torch.save(value.flatten() if stage == 3 else whole, f"{tag}/zero/{name}/{key}.pt")
            expected[f"model/{name}" if key == "fp32" else f"optimizer/{name}.{key}"] = value
        if stage != 3:
            torch.save(torch.tensor(4.0), f"{tag}/zero/{name}/step.pt")
    module = {"table": table, "fixed.weight": fixed, "tied.weight": tensors["embed.weight"].bfloat16()}
    if stage != 3:
        for name, tensor in module.items():
            os.makedirs(f"{tag}/zero/{name}")
            torch.save({"param": tensor.float()}, f"{tag}/zero/{name}/fp32.pt")
    hyper = [{"lr": 0.01 * (i + 1), "betas": (0.9, 0.99), "params": [i]} for i in range(2)]
    state = {"zero_stage": stage, "ds_version": "0.19.8", "loss_scaler": None, "param_groups": hyper}
    if stage == 3:
        state["optimizer_state_dict"] = {"state": {0: {"step": torch.tensor(4.0)}}, "param_groups": hyper}
    torch.save(state, f"{tag}/zero/optimizer_state.pt")
    frozen = OrderedDict([("fixed.weight", fixed.shape)])
    model = {"module": module, "buffer_names": ["table"], "shared_params": {"tied.weight": "embed.weight"},
             "param_shapes": [OrderedDict((n, torch.Size(s)) for n, s in g.items()) for g in groups],
             "frozen_param_shapes": frozen,
             "frozen_param_fragments": {"fixed.weight": fixed.flatten() if stage == 3 else fixed},
             "ds_version": "0.19.8", "global_steps": 4}
    name = "zero_pp_rank_0_mp_rank_00" if stage == 3 else "mp_rank_00"
    torch.save(model, f"{tag}/{name}_model_states.pt")
    with open(f"{root}/latest_universal", "w", encoding="ascii") as file:
        file.write("global_step4_universal")
    save_file(expected, f"{root}.safetensors")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(here, "fixtures")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(f"{folder}/found/local")
    torch.multiprocessing.spawn(rank_main, (folder,), nprocs=WORLD)
    views(folder)
    storage_views(f"{folder}/legacy_storage_views.pt")
    found(folder)
    zero(folder, 2, 3)
    zero(folder, 3, 2)
    universal(folder, 2)
    universal(folder, 3)


if __name__ == "__main__":
    main()
