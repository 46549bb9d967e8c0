"""The program opens NVIDIA's own libraries, without a GPU, and finds every function that it calls there."""
import importlib.metadata
import os
import pathlib
import subprocess

import nvidia
import pytest
from conftest import PROGRAM

# The line of `tessera env`, the package, and the folder of its libraries below `nvidia`.
LIBRARIES = {"cuBLASLt": ("nvidia-cublas", "cu13"), "cuDNN": ("nvidia-cudnn-cu13", "cudnn"),
             "NCCL": ("nvidia-nccl-cu13", "nccl")}


def env_lines(path):
    done = subprocess.run([PROGRAM, "env"], env=os.environ | {"LD_LIBRARY_PATH": path}, capture_output=True, text=True,
                          timeout=60, check=True)
    return {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_function_is_found_in_the_real_library(name):
    package, folder = LIBRARIES[name]
    libraries = pathlib.Path(next(iter(nvidia.__path__))) / folder / "lib"
    line = env_lines(str(libraries)).get(name, "")
    if "not built" in line:
        pytest.skip(f"this build has no {name}")
    # A library without one of the functions is named by what it lacks, without its version.
    version = ".".join(importlib.metadata.version(package).split(".")[:3])
    assert version in line and str(libraries) in line, line
