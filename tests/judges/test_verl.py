"""verl's folders, a file of DTensors for each rank: `tessera convert` gives the tensors that FSDP itself gathers."""
import json
import os
import shutil
import subprocess
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
from conftest import PROGRAM
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Net(nn.Module):
    """A tied head, a dimension that no number of ranks divides, a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 7)
        self.mix = nn.Linear(7, 6, bias=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.tensor([1, 2, 3]))

    def forward(self, x):
        return self.head(self.mix(torch.tanh(self.hidden(self.embed(x))))).square().mean()


def train(model, rank):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.95))
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        model(torch.randint(0, 11, (8,), generator=generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def save_rank(rank, meeting, folder, shape, version):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (FullyShardedDataParallel, ShardedStateDictConfig, ShardingStrategy, StateDictType,
                                        fully_shard)

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    world = shape[0] * (shape[1] if len(shape) > 1 else 1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}/ranks", rank=rank, world_size=world)
    names = ("ddp", "fsdp")[-len(shape):]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    torch.manual_seed(5)
    model = Net()
    if version == 2:
        fully_shard(model.hidden, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        strategy = ShardingStrategy.HYBRID_SHARD if len(shape) > 1 else ShardingStrategy.FULL_SHARD
        model = FullyShardedDataParallel(model, device_mesh=mesh, sharding_strategy=strategy, use_orig_params=True,
                                         device_id=torch.device("cpu"))
    optimizer = train(model, rank)
    name = f"world_size_{world}_rank_{rank}.pt"
    if version == 2:
        state = model.state_dict()
    else:
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT,
                                                      ShardedStateDictConfig(offload_to_cpu=True)):
            state = model.state_dict()
    torch.save(state, folder / f"model_{name}")
    torch.save(optimizer.state_dict(), folder / f"optim_{name}")
    torch.save({"rng": torch.get_rng_state()}, folder / f"extra_state_{name}")
    if version == 2:  # the names of Accelerate's use_dcp=False, and what it puts into the files
        (folder.parent / "accelerate").mkdir(exist_ok=True)
        for kind, saved in zip(("pytorch_model_fsdp", "optimizer"), get_state_dict(model, optimizer)):
            torch.save(saved, folder.parent / f"accelerate/{kind}_0_rank{rank}.bin")
    whole, moments = get_state_dict(model, optimizer, options=FULL)
    if rank == 0:
        torch.save({"model": whole, "optimizer": moments}, folder.parent / "whole.pt")
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": version, "world_size": world}))
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes crash the process while Python shuts down


def save(folder, shape, version):
    folder.mkdir()
    world = shape[0] * (shape[1] if len(shape) > 1 else 1)
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(save_rank, (meeting, folder, shape, version), nprocs=world)
    return torch.load(folder.parent / "whole.pt", weights_only=True)


def refusal(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (2, 2)])
@pytest.mark.parametrize("names", ["actor", "accelerate"])
def test_ranks_of_fsdp2_are_joined_with_their_moments(tessera, tmp_path, shape, names):
    whole = save(tmp_path / "actor", shape, 2)
    tessera.run("convert", tmp_path / names, tmp_path / "one.pt", "--to", "torch", "--verify")
    found = torch.load(tmp_path / "one.pt", weights_only=True)
    assert_same(found["model"], whole["model"])
    assert found["model"]["head.weight"].data_ptr() == found["model"]["embed.weight"].data_ptr()
    state = {("embed.weight" if name == "head.weight" else name): s for name, s in whole["optimizer"]["state"].items()}
    assert set(found["optimizer"]["state"]) == set(state)
    for name, moments in state.items():
        assert_same(found["optimizer"]["state"][name], moments)
    assert found["optimizer"]["param_groups"][0]["betas"] == (0.8, 0.95)
    shutil.move(tmp_path / "actor" / f"model_world_size_{shape[0] * (shape + (1,))[1]}_rank_0.pt", tmp_path / "away")
    if shape != (1,):
        assert "rank_0.pt, the file of rank 0" in refusal("inspect", tmp_path / "actor")


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_ranks_of_fsdp1_are_joined_without_their_flat_moments(tessera, tmp_path, shape):
    from safetensors.torch import load_file

    whole = save(tmp_path / "actor", shape, 1)
    text = refusal("convert", tmp_path / "actor", tmp_path / "one", "--to", "full")
    assert "optim_world_size" in text and "--weights-only" in text
    assert not (tmp_path / "one").exists()
    tessera.run("convert", tmp_path / "actor", tmp_path / "one", "--to", "hf", "--weights-only")
    expected = {name: tensor for name, tensor in whole["model"].items()}
    found = load_file(tmp_path / "one/model.safetensors")
    tied = {"head.weight", "embed.weight"}
    assert set(expected) - tied <= set(found) <= set(expected)
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
