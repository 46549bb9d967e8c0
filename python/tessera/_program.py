"""Finds the program, and the libraries of NVIDIA's Python packages for it."""

from __future__ import annotations

import importlib.util
import os
import pathlib

# What the program opens at run time, for GPUs.
LIBRARIES = ("libcublasLt.so.*", "libcudnn.so.*", "libnccl.so.*")
# A launcher's variables: this process may be a rank of something else, and the program's ranks are its own.
# Without the rank's variable of Open MPI, MPICH or Slurm the program does not look at the others.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
             "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def program() -> str:
    """The program of the wheel, or that of the variable TESSERA_PROGRAM."""
    chosen = os.environ.get("TESSERA_PROGRAM")
    path = pathlib.Path(chosen) if chosen else pathlib.Path(__file__).parent / "bin" / "tessera"
    if not os.access(path, os.X_OK) or path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a program: "
            + ("correct the variable TESSERA_PROGRAM" if chosen else "install the wheel tessera-fsdp again")
        )
    return str(path.absolute())


def library_folders() -> list[str]:
    """The folders nvidia/*/lib of the installed packages that have a library which the program opens."""
    try:
        package = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):  # a module of another kind with this name
        return []
    places = package.submodule_search_locations if package else None
    folders = [folder for place in places or () for folder in sorted(pathlib.Path(place).glob("*/lib"))]
    return [str(folder) for folder in folders if any(any(folder.glob(name)) for name in LIBRARIES)]


def environment() -> dict[str, str]:
    """This process's environment, with NVIDIA's packages behind the user's own LD_LIBRARY_PATH."""
    variables = dict(os.environ)
    folders = list(filter(None, [variables.get("LD_LIBRARY_PATH")]))
    known = os.pathsep.join(folders).split(os.pathsep)  # of the command's ranks: it did so before
    folders += [folder for folder in library_folders() if folder not in known]
    if folders:
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(folders)
    return variables


def environment_without_ranks() -> dict[str, str]:
    """The same for a program that is not to join the ranks to which this process belongs."""
    return {name: value for name, value in environment().items() if name not in LAUNCHERS}
