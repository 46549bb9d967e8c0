"""docs/from-fsdp.md against the installed PyTorch: every argument and method of FSDP2 and FSDP1 has a row, and the page's
program for PyTorch runs and learns."""
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest
from torch.distributed.fsdp import (BackwardPrefetch, FSDPModule, FullyShardedDataParallel, MixedPrecision,
                                    MixedPrecisionPolicy, ShardingStrategy, fully_shard)

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/from-fsdp.md"


def public(kind):
    return [name for name in vars(kind) if not name.startswith("_")]


NAMES = {
    "fully_shard": list(inspect.signature(fully_shard).parameters),
    "MixedPrecisionPolicy": list(inspect.signature(MixedPrecisionPolicy).parameters),
    "FSDPModule": public(FSDPModule),
    "FullyShardedDataParallel": list(inspect.signature(FullyShardedDataParallel.__init__).parameters),
    "its methods": public(FullyShardedDataParallel),
    "MixedPrecision": list(inspect.signature(MixedPrecision).parameters),
}


@pytest.mark.parametrize("of", NAMES)
def test_every_name_has_a_row(of):
    rows = "\n".join(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| "))
    absent = [name for name in NAMES[of] if name != "self" and not re.search(rf"`{re.escape(name)}\b", rows)]
    assert absent == []


def test_every_strategy_and_prefetch_is_named():
    text = PAGE.read_text(encoding="utf-8")
    for strategy in ShardingStrategy:
        assert f"`{strategy.name.strip('_').lower()}`" in text, strategy
    for prefetch in BackwardPrefetch:
        assert f"`{prefetch.name.removeprefix('BACKWARD_').lower()}`" in text.replace("BackwardPrefetch::", ""), prefetch


def test_the_program_for_pytorch_runs_and_learns(tmp_path):
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    (tmp_path / "before.py").write_text(program, encoding="utf-8")
    world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run([sys.executable, "-B", "before.py"], cwd=tmp_path, env={**os.environ, **world}, timeout=120,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(line.removeprefix("loss ")) for line in done.stdout.splitlines()]
    assert len(losses) == 4096 // 32 and losses[0] > 2 and losses[-1] < 0.1
