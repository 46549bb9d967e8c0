"""NCCL: its tests, and a training run of two processes, on two GPUs or on one."""
import functools
import os
import socket
import tempfile

from gpu_check import recipe
from gpu_check.tests import test_files

STEPS = 20
RANKS = 2


def nccl(check):
    """NCCL's communicator, and two processes that train over it."""
    if check.installation.emulated:
        return test_files(check, ["nccl_test"])
    with tempfile.TemporaryDirectory() as folder:
        path = recipe.write(folder, STEPS)
        port = free_port()
        check.together([functools.partial(train, check, rank, path, port) for rank in range(RANKS)], RANKS)
        losses = recipe.losses(folder) if os.path.exists(recipe.metrics_path(folder)) else []
    test_files(check, ["nccl_test", "nccl_training_test"])
    return f"2 processes, loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else "no losses"


def train(check, rank, path, port):
    """With different NCCL_HOSTIDs two processes may share a GPU; they communicate over the loopback network."""
    variables = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NCCL_HOSTID": f"gpu-check-{rank}",
                 "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1, "NCCL_NVLS_ENABLE": 0, "NCCL_MAX_CTAS": 2,
                 "TESSERA_CUDA_MEMORY": "8G"}
    check.command(f"rank {rank} of {RANKS}",
                  [check.installation.program("tessera"), "train", path, "--device", "cuda", "--set",
                   f"train.steps={STEPS}", "--set", "sharding.fixed_reduction_order=true"], 40,
                  {name: str(value) for name, value in variables.items()})


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
