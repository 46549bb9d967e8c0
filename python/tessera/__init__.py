"""Tessera from Python: each function runs the program of this package and returns what it reports.

    import tessera

    run = tessera.train("recipe.yaml", ranks=2, on_step=lambda step: print(step["step"], step["loss"]))
    tessera.convert(run.folder, "model", to="hf")

Further keywords are the options of the subcommand of the same name, which `tessera COMMAND --help` describes.
docs/python.md is the guide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _reports as reports
from ._checkpoints import convert, diff, inspect, verify
from ._child import run as _run
from ._errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    Error,
    NumericError,
    OutOfMemoryError,
    RankError,
    Stopped,
    UsageError,
)
from ._planning import bench, plan
from ._program import program
from ._reports import StepMetrics
from ._texts import encode, evaluate, generate, tokenize
from ._train import Run, train

__version__: str

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "Error",
    "NumericError",
    "OutOfMemoryError",
    "RankError",
    "Run",
    "StepMetrics",
    "Stopped",
    "UsageError",
    "bench",
    "convert",
    "diff",
    "encode",
    "evaluate",
    "generate",
    "inspect",
    "plan",
    "program",
    "reports",
    "tokenize",
    "train",
    "verify",
]


if not TYPE_CHECKING:  # a checker would take any name for a text

    def __getattr__(name):
        """The version is the program's, which has it from base/version.h."""
        if name == "__version__":
            return _run(["--version"]).split()[-1]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
