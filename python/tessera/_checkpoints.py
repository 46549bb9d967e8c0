"""`convert`, `inspect`, `verify` and `diff`: checkpoints of all formats (docs/convert.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ._arguments import options, path_of
from ._child import report, scratch
from ._options import OPTIONS, ConvertOptions, DiffOptions, Path
from ._reports import Contents, Conversion, Difference, Verification

if TYPE_CHECKING:
    from typing_extensions import Unpack

DIFFERENT = 1
DAMAGED = 5


def convert(source: Path, target: Path, **keywords: Unpack[ConvertOptions]) -> Conversion:
    """Writes a checkpoint in another format, `to="hf"` for example, and returns a checksum of each tensor."""
    words = options("convert", keywords, OPTIONS["convert"])
    with scratch() as folder:
        return cast(Conversion, report(["convert", path_of(source), path_of(target), *words], folder))


def inspect(path: Path) -> Contents:
    """Lists the tensors and the training state of a checkpoint."""
    with scratch() as folder:
        return cast(Contents, report(["inspect", path_of(path)], folder))


def verify(path: Path) -> Verification:
    """Checks checksums and coverage. A damaged checkpoint is an answer: `sound` is False, and `damages` has the reasons.
    A path without a checkpoint is an error."""
    with scratch() as folder:
        return cast(Verification, report(["verify", path_of(path)], folder, [DAMAGED]))


def diff(first: Path, second: Path, **keywords: Unpack[DiffOptions]) -> Difference:
    """Compares two checkpoints tensor by tensor; `different` counts those that differ."""
    words = options("diff", keywords, OPTIONS["diff"])
    with scratch() as folder:
        return cast(Difference, report(["diff", path_of(first), path_of(second), *words], folder, [DIFFERENT]))
