"""Shared by the judges: the program, a text to train on, and functions to run the program."""
import os
import subprocess

import pytest
import torch

PROGRAM = os.environ.get("TESSERA_PROGRAM", "build/tessera")


class Tessera:
    """Runs the program in a folder of its own, as one process or as ranks under `tessera launch`."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, *arguments, ranks=1):
        command = [PROGRAM, *map(str, arguments)]
        if ranks > 1:
            command = [PROGRAM, "launch", "--nproc-per-node", str(ranks), "--", *command]
        done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def train(self, recipe, ranks=1):
        path = self.folder / "recipe.yaml"
        path.write_text(recipe, encoding="utf-8")
        return self.run("train", path, ranks=ranks)

    def logits(self, folder, ids):
        """The logits [tokens, vocabulary] of a prompt, from `tessera generate`."""
        from safetensors.torch import load_file

        path = self.folder / "logits.safetensors"
        path.unlink(missing_ok=True)
        self.run("generate", folder, "--prompt-ids", ",".join(map(str, ids)), "--max-new-tokens", 1,
                 "--logits", path)
        tensors = load_file(path)
        assert list(tensors) == ["logits"]
        return tensors["logits"]


@pytest.fixture(scope="session", autouse=True)
def the_program_is_built():
    assert os.access(PROGRAM, os.X_OK), f"{PROGRAM} is not a program: run scripts/build"
    torch.set_num_threads(1)


@pytest.fixture
def tessera(tmp_path):
    return Tessera(tmp_path)


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """40,000 bytes that can be learned: numbers and their squares, in words."""
    path = tmp_path_factory.mktemp("data") / "squares.txt"
    lines = (f"{n} times {n} is {n * n}; half of it is {n * n // 2}.\n" for n in range(1, 2000))
    path.write_bytes("".join(lines).encode("ascii")[:40000])
    return path
