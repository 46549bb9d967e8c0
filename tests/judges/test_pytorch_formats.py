"""Checkpoints to and from PyTorch: `tessera convert` assembles the files of FSDP on two ranks, with every moment;
torch.load(weights_only=True) and torch.distributed.checkpoint load its results, and training continues from there
unchanged."""
import copy
import os
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_state_dict, set_state_dict)

WORLD = 2
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 7)
        self.head = nn.Linear(7, 3, bias=False)
        self.register_buffer("seen", torch.tensor([1, 2, 3]))

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(self.embed(x))))


def sharded_net():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    model = Net()
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model.hidden, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1)


def train(model, optimizer, first, last):
    losses = []
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        x = torch.randint(0, 11, (8,), generator=generator)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def rank_main(rank, meeting, function, *arguments):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}/ranks", rank=rank, world_size=WORLD)
    function(rank, *arguments)
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads sometimes crash the process while Python shuts down


def save_rank(rank, folder):
    """Trains five steps, saves in both forms, and trains five more."""
    model, optimizer = sharded_net()
    train(model, optimizer, 0, 5)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state}, storage_writer=dcp.FileSystemWriter(folder / "sharded"),
             planner=DefaultSavePlanner())
    state, optimizer_state = get_state_dict(model, optimizer,
                                            options=StateDictOptions(flatten_optimizer_state_dict=True))
    dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=folder / "flat")
    dcp.save({**state, "optimizer": optimizer_state}, checkpoint_id=folder / "titan")
    whole, whole_optimizer = get_state_dict(model, optimizer, options=FULL)
    if rank == 0:  # immediately: the step counts are the optimizer's own tensors
        torch.save({"model": whole, "optimizer": whole_optimizer}, folder / "full.pt")
    losses = train(model, optimizer, 5, 10)
    if rank == 0:
        torch.save(losses, folder / "losses.pt")


def load_rank(rank, folder, name):
    """Loads a DCP folder into new shards, saves the full state, and trains five steps."""
    model, optimizer = sharded_net()
    state, optimizer_state = get_state_dict(model, optimizer)
    both = {"model": state, "optimizer": optimizer_state}
    dcp.load(both, storage_reader=dcp.FileSystemReader(folder / name), planner=DefaultLoadPlanner())
    set_state_dict(model, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"])
    whole, whole_optimizer = get_state_dict(model, optimizer, options=FULL)
    if rank == 0:
        torch.save({"model": whole, "optimizer": whole_optimizer}, folder / "loaded.pt")
    losses = train(model, optimizer, 5, 10)
    if rank == 0:
        torch.save(losses, folder / "losses-again.pt")


def save_safetensors_rank(rank, folder):
    """What torchtitan and NeMo write: each rank's parts in safetensors files of its own."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    model, optimizer = sharded_net()
    train(model, optimizer, 0, 3)
    state = get_model_state_dict(model)
    names = sorted(state)
    for name, files in (("one", None), ("two", {each: 1 + i % 2 for i, each in enumerate(names)})):
        writer = HuggingFaceStorageWriter(folder / name, fqn_to_index_mapping=files, save_distributed=True)
        dcp.save(state, storage_writer=writer)
    whole = get_model_state_dict(model, options=FULL)
    if rank == 0:
        torch.save(whole, folder / "whole.pt")


def spawn(function, *arguments):
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(rank_main, (meeting, function, *arguments), nprocs=WORLD)


def assert_same_tensors(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


def assert_same_checkpoint(found, expected):
    assert_same_tensors(found["model"], expected["model"])
    assert set(found["optimizer"]["state"]) == set(expected["optimizer"]["state"])
    for name, state in expected["optimizer"]["state"].items():
        assert_same_tensors(found["optimizer"]["state"][name], state)
    (group,), (wanted,) = found["optimizer"]["param_groups"], expected["optimizer"]["param_groups"]
    assert {**group, "params": sorted(group["params"])} == {**wanted, "params": sorted(wanted["params"])}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp2")
    spawn(save_rank, folder)
    return folder


@pytest.mark.parametrize("form", ["sharded", "flat", "titan"])
def test_sharded_state_becomes_one_file(saved, tessera, tmp_path, form):
    tessera.run("convert", saved / form, tmp_path / "one.pt", "--to", "torch")
    assert_same_checkpoint(torch.load(tmp_path / "one.pt", weights_only=True),
                           torch.load(saved / "full.pt", weights_only=True))


@pytest.mark.parametrize("source", ["full.pt", "sharded"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_dcp_for_any_number_of_ranks_is_trained_on(saved, tessera, source, ranks):
    name = f"from-{source}-{ranks}"
    tessera.run("convert", saved / source, saved / name, "--to", "dcp", "--world-size", ranks)
    spawn(load_rank, saved, name)
    loaded = torch.load(saved / "loaded.pt", weights_only=True)
    assert_same_checkpoint(loaded, torch.load(saved / "full.pt", weights_only=True))
    assert torch.load(saved / "losses-again.pt") == torch.load(saved / "losses.pt")


def test_torch_reads_dcp_without_ranks(saved, tessera, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    tessera.run("convert", saved / "full.pt", tmp_path / "dcp", "--to", "dcp", "--world-size", 2)
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=False)
    assert_same_checkpoint(again, torch.load(saved / "full.pt", weights_only=True))


def test_every_dtype_stride_and_alias(tessera, tmp_path):
    base = torch.arange(600, dtype=torch.float32).reshape(20, 30)
    state = {"transposed": base.t(), "columns": base[:, 3:7], "steps": base[::3, ::7], "scalar": torch.tensor(2.5),
             "empty": torch.zeros(3, 0), "expanded": torch.ones(5, 1).expand(5, 6),
             "permuted": torch.arange(60).reshape(3, 4, 5).permute(2, 0, 1), "naïve ☃": torch.ones(2)}
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
                  torch.uint8, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64,
                  torch.float8_e4m3fn, torch.float8_e5m2):
        state[f"of {dtype}"] = torch.arange(9).reshape(3, 3).to(dtype)
    state["tied"] = state["columns"]
    torch.save(state, tmp_path / "state.pt")
    tessera.run("convert", tmp_path / "state.pt", tmp_path / "again.pt", "--to", "torch")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert_same_tensors(again, state)
    assert again["tied"].data_ptr() == again["columns"].data_ptr()
    tessera.run("convert", tmp_path / "state.pt", tmp_path / "dcp", "--to", "dcp", "--world-size", 3)
    tessera.run("convert", tmp_path / "dcp", tmp_path / "third.pt", "--to", "torch")
    assert_same_tensors(torch.load(tmp_path / "third.pt", weights_only=True), state)
    template = {name: torch.empty_like(tensor.contiguous()) for name, tensor in state.items()}
    dcp.load({"model": template}, checkpoint_id=tmp_path / "dcp")
    assert_same_tensors(template, state)


def test_tied_heads_have_both_names(tessera, tmp_path):
    """Models of transformers save a tied head once, and ask for both names in a state dict."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 96, "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}
    saved, other = (transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)) for _ in range(2))
    saved.save_pretrained(tmp_path / "hf")
    tessera.run("convert", tmp_path / "hf", tmp_path / "dcp", "--to", "dcp")
    tessera.run("convert", tmp_path / "hf", tmp_path / "weights.pt", "--to", "torch")
    state = other.state_dict()
    dcp.load({"model": state}, checkpoint_id=tmp_path / "dcp")
    assert_same_tensors(state, saved.state_dict())
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=True)
    tessera.run("convert", tmp_path / "dcp", tmp_path / "again", "--to", "hf")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "again")
    assert_same_tensors(again.state_dict(), saved.state_dict())


@pytest.mark.parametrize("protocol", [2, 4])
def test_files_from_before_pytorch_1_6(tessera, tmp_path, protocol):
    """torch.save with its old format, of a model with its optimizer: the same tensors as from a file of today."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 0, 3)
    weights = model.state_dict()
    weights["transposed"], weights["hidden.again"] = weights["hidden.weight"].t(), weights["hidden.weight"]
    weights["half"] = torch.randn(3).half()
    kept = {"model": weights, "note": "text"}
    both = {"model": Net().state_dict(), "optimizer": optimizer.state_dict()}
    for name, state in (("weights", kept), ("both", both)):
        for form, new in (("old", False), ("new", True)):
            torch.save(state, tmp_path / f"{name}.{form}", _use_new_zipfile_serialization=new, pickle_protocol=protocol)
        tessera.run("convert", tmp_path / f"{name}.old", tmp_path / f"{name}.pt", "--to", "torch", "--verify")
        tessera.run("verify", tmp_path / f"{name}.old")
        tessera.run("diff", tmp_path / f"{name}.old", tmp_path / f"{name}.new")
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert_same_tensors(found, weights)
    assert found["hidden.again"].data_ptr() == found["hidden.weight"].data_ptr()


def test_moments_without_names_are_kept_or_refused(tessera, tmp_path):
    """optimizer.state_dict() beside the model's weights: its parameters have numbers. Integers and the running means of a
    norm are no parameters, frozen ones have no number, and another buffer of a parameter's shape could be one."""
    class WithMeans(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

    class WithFrozen(WithMeans):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(7, 9).requires_grad_(False)

    class WithBuffer(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.norm.register_buffer("kept", torch.zeros(6))

    for model, certain in ((Net(), True), (WithMeans(), True), (WithFrozen(), True), (WithBuffer(), False)):
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW([parameter for _, parameter in trained], lr=1e-2)
        for number, (_, parameter) in enumerate(trained):
            parameter.grad = torch.full_like(parameter, 1.0 + number)
        optimizer.step()
        (tmp_path / "out.pt").unlink(missing_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
        if certain:
            tessera.run("convert", tmp_path / "both.pt", tmp_path / "out.pt", "--to", "torch")
            state = torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"]["state"]
            moments = optimizer.state_dict()["state"]
            assert set(state) == {name for name, _ in trained}
            for number, (name, _) in enumerate(trained):
                assert torch.equal(state[name]["exp_avg"], moments[number]["exp_avg"]), name
            continue
        with pytest.raises(AssertionError, match="would be lost.*--weights-only"):
            tessera.run("convert", tmp_path / "both.pt", tmp_path / "lost", "--to", "full")
        assert not (tmp_path / "lost").exists()
        tessera.run("convert", tmp_path / "both.pt", tmp_path / "alone", "--to", "full", "--weights-only")


OPTIMIZERS = {"AdamW": {}, "Adam": {"amsgrad": True}, "NAdam": {}, "Adagrad": {}, "Adamax": {}, "Adadelta": {}, "Rprop": {},
              "RMSprop": {"momentum": 0.9, "centered": True}, "SGD": {"momentum": 0.9}}


def trained_with(name, groups=lambda model: model.parameters()):
    torch.manual_seed(2)
    model = Net()
    optimizer = getattr(torch.optim, name)(groups(model), lr=1e-2, **OPTIMIZERS[name])
    train(model, optimizer, 0, 3)
    return model, optimizer


def assert_goes_on(model, optimizer, loaded, make_groups=lambda model: model.parameters()):
    """A plain optimizer and set_state_dict take the moments, the steps and the hyperparameters."""
    copies = []
    for load in ("plain", "set_state_dict"):
        other = Net()
        fresh = type(optimizer)(make_groups(other))
        loaded = copy.deepcopy(loaded)  # load_state_dict keeps the tensors that it gets
        if load == "plain":
            other.load_state_dict(loaded["model"])
            fresh.load_state_dict(loaded["optimizer"])
        else:
            set_state_dict(other, fresh, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        mine, theirs = optimizer.state_dict(), fresh.state_dict()
        for number, state in mine["state"].items():
            assert_same_tensors(theirs["state"][number], state)
        for group, wanted in zip(theirs["param_groups"], mine["param_groups"], strict=True):
            assert {k: v for k, v in group.items() if k != "param_names"} == \
                {k: v for k, v in wanted.items() if k != "param_names"}
        copies.append((other, fresh))
    train(model, optimizer, 3, 5)
    for other, fresh in copies:
        train(other, fresh, 3, 5)
        assert_same_tensors(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("through", [None, "full", "dcp", "universal"])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_moments_with_numbers_go_on_in_torch(tessera, tmp_path, name, through):
    """torch.save({"model": ..., "optimizer": optimizer.state_dict()}), as most programs have it."""
    model, optimizer = trained_with(name)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
    source = tmp_path / "both.pt"
    if through:
        tessera.run("convert", source, tmp_path / through, "--to", through)
        source = tmp_path / through
    tessera.run("convert", source, tmp_path / "out.pt", "--to", "torch")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert [group["params"] for group in loaded["optimizer"]["param_groups"]] == \
        [[name for name, _ in model.named_parameters()]]
    assert_goes_on(model, optimizer, loaded)


@pytest.mark.parametrize("through", [None, "full", "dcp", "universal"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_groups_with_param_names(tessera, tmp_path, prefix, through):
    def groups(model):
        named = [(prefix + name, tensor) for name, tensor in model.named_parameters()]
        return [{"params": [each for each in named if each[1].dim() > 1]},
                {"params": [each for each in named if each[1].dim() == 1], "weight_decay": 0.0}]

    model, optimizer = trained_with("AdamW", groups)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
    source = tmp_path / "both.pt"
    if through:
        tessera.run("convert", source, tmp_path / through, "--to", through)
        source = tmp_path / through
    tessera.run("convert", source, tmp_path / "out.pt", "--to", "torch")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert_goes_on(model, optimizer, loaded, groups)
    state = optimizer.state_dict()
    state["param_groups"][0]["param_names"][1] = "absent"
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "wrong.pt")
    with pytest.raises(AssertionError, match='parameter "absent" is not a tensor of the model'):
        tessera.run("convert", tmp_path / "wrong.pt", tmp_path / "wrong", "--to", "torch")


@pytest.mark.parametrize("files", ["one", "two"])
def test_safetensors_of_ranks_are_joined(tessera, tmp_path, files):
    from safetensors.torch import load_file

    spawn(save_safetensors_rank, tmp_path)
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert len(list((tmp_path / files).glob("shard-*.safetensors"))) >= WORLD
    tessera.run("convert", tmp_path / files, "hf", "--to", "hf", "--verify")
    assert_same_tensors(load_file(tessera.folder / "hf/model.safetensors"), whole)
    tessera.run("convert", tmp_path / files, "one.pt", "--to", "torch")
    assert_same_tensors(torch.load(tessera.folder / "one.pt", weights_only=True), whole)
