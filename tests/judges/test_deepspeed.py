"""DeepSpeed's ZeRO folders: `tessera convert` gives the same tensors as its own zero_to_fp32. Its universal checkpoints: those
of ds_to_universal are read, and ours are loaded by its engine. DeepSpeed is not one of the judges' packages; these tests are
skipped where it is not installed."""
import argparse
import os

import pytest
import torch
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip("deepspeed")

WORLD = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 7)
        self.fixed = nn.Linear(7, 7).requires_grad_(False)
        self.head = nn.Linear(7, 3, bias=False)
        self.register_buffer("seen", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x):
        return self.head(torch.tanh(self.fixed(self.hidden(self.embed(x))))).square().mean()


def engine_of(rank, folder, stage, bf16, *, universal=False):
    import deepspeed

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    meeting = f"file://{folder}/ranks{int(universal)}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD)
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(3)
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}]
    config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True, "bf16": {"enabled": bf16},
              "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    if universal:
        config["checkpoint"] = {"load_universal": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-2), config=config)
    return engine


def train(engine, rank, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(10 * step + rank)
        engine.backward(engine(torch.randint(0, 11, (4,), generator=generator)))
        engine.step()


def save_rank(rank, folder, stage, bf16):
    """Saves after three steps, and after three more."""
    engine = engine_of(rank, folder, stage, bf16)
    train(engine, rank, 0, 3)
    engine.save_checkpoint(str(folder / "saved"))
    train(engine, rank, 3, 6)
    engine.save_checkpoint(str(folder / "straight"))
    torch.distributed.destroy_process_group()
    os._exit(0)  # gloo's threads sometimes crash the process while Python shuts down


@pytest.mark.parametrize("stage,bf16", [(1, False), (2, True), (3, False)])
def test_partitions_are_joined_as_deepspeed_does(tessera, tmp_path, stage, bf16):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    torch.multiprocessing.spawn(save_rank, (tmp_path, stage, bf16), nprocs=WORLD)
    tessera.run("convert", tmp_path / "saved", tmp_path / "one.pt", "--to", "torch")
    found = torch.load(tmp_path / "one.pt", weights_only=True)
    expected = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "saved"))
    # zero_to_fp32 leaves out what stage 1 does not list as frozen.
    more = {"fixed.weight", "fixed.bias"} if stage == 1 else set()
    assert set(found["model"]) == set(expected) | more
    for name, tensor in expected.items():
        assert torch.equal(found["model"][name].float(), tensor.float()), name
    trained = {name for name in expected if not name.startswith("fixed.") and name != "seen"}
    assert set(found["optimizer"]["state"]) == trained
    for name, state in found["optimizer"]["state"].items():
        assert state["step"] == 3
        assert state["exp_avg"].shape == expected[name].shape
        assert bool((state["exp_avg_sq"] >= 0).all())


def load_rank(rank, folder, stage, bf16, name):
    """Loads a universal checkpoint, and trains three steps more."""
    engine = engine_of(rank, folder, stage, bf16, universal=True)
    engine.load_checkpoint(str(folder / name))
    train(engine, rank, 3, 6)
    engine.save_checkpoint(str(folder / f"{name}-again"))
    torch.distributed.destroy_process_group()
    os._exit(0)


@pytest.mark.parametrize("stage,bf16", [(1, False), (2, True), (3, False)])
def test_universal_checkpoints_go_both_ways(tessera, tmp_path, stage, bf16):
    from deepspeed.checkpoint import ds_to_universal

    torch.multiprocessing.spawn(save_rank, (tmp_path, stage, bf16), nprocs=WORLD)
    universal = tmp_path / "universal/global_step3"
    ds_to_universal.main(argparse.Namespace(
        input_folder=str(tmp_path / "saved/global_step3"), output_folder=str(universal), num_extract_workers=1,
        num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=True))
    tessera.run("diff", tmp_path / "saved", tmp_path / "universal")
    tessera.run("diff", tmp_path / "saved", universal)
    tessera.run("convert", tmp_path / "saved", tmp_path / "written", "--to", "universal", "--verify")
    tessera.run("diff", tmp_path / "saved", tmp_path / "written")
    tessera.run("convert", universal, tmp_path / "one.pt", "--to", "torch", "--verify")
    # DeepSpeed continues from ours as if it had never stopped. Under stage 3 it gives all groups the hyperparameters of the
    # first, also from a universal checkpoint of its own.
    torch.multiprocessing.spawn(load_rank, (tmp_path, stage, bf16, "written"), nprocs=WORLD)
    expected = "straight"
    if stage == 3:
        (tmp_path / "ranks1").unlink(missing_ok=True)
        torch.multiprocessing.spawn(load_rank, (tmp_path, stage, bf16, "universal"), nprocs=WORLD)
        expected = "universal-again"
    tessera.run("diff", tmp_path / expected, tmp_path / "written-again")
