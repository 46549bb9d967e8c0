"""`tessera launch` over several nodes starts PyTorch's own programs: rank 0's store listens at MASTER_PORT itself."""
import secrets
import socket
import subprocess
import sys

from conftest import PROGRAM

SUM = """
import sys

import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
# One write: with PYTHONUNBUFFERED, print() writes each argument by itself, and ranks share this stdout.
sys.stdout.write(f"{dist.get_rank()} {dist.get_world_size()} {total.item()}\\n")
dist.destroy_process_group()
"""


def two_free_ports():
    """Two ports below those that Linux gives to programs that ask for any port."""
    while True:
        port = 10000 + secrets.randbelow(22000)
        try:
            with socket.create_server(("", port)), socket.create_server(("", port + 1)):
                return port
        except OSError:
            pass


def test_a_program_of_pytorch_meets_at_master_port(tmp_path):
    program = tmp_path / "sum.py"
    program.write_text(SUM, encoding="utf-8")
    port = str(two_free_ports())
    key = tmp_path / "key"
    key.write_text(secrets.token_hex(32), encoding="utf-8")
    key.chmod(0o600)
    launchers = [subprocess.Popen(
        [PROGRAM, "launch", "--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", port,
         "--job-key-file", str(key), "--nproc-per-node", "2", "--", sys.executable, str(program)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for node in (0, 1)]
    said = [launcher.communicate(timeout=120) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    lines = sorted(line for out, _ in said for line in out.splitlines())
    assert lines == [f"{rank} 4 10.0" for rank in range(4)]
