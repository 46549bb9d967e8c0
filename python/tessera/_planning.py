"""`plan` and `bench`: what a recipe needs, and how fast it is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ._arguments import options, path_of
from ._child import report, report_and_text, scratch
from ._options import OPTIONS, BenchOptions, Path, PlanOptions
from ._recipe import Recipe, recipe_file
from ._reports import Bench, Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack

NOTHING_FITS = 6
SLOWER = 9
REGRESSION = "regression: "


def plan(recipe: Recipe, **keywords: Unpack[PlanOptions]) -> Plan:
    """Memory, traffic and, with `cluster`, time of a recipe on any number of ranks. If nothing fits, the plan says so:
    `fits` is False in its rows."""
    words = options("plan", keywords, OPTIONS["plan"])
    with scratch() as folder:
        file, names = recipe_file(recipe, folder)
        return cast(Plan, report(["plan", file, *words], folder, [NOTHING_FITS], names))


def bench(recipe: Recipe, *, file: Path | None = None, **keywords: Unpack[BenchOptions]) -> Bench:
    """Measures strategies. With `file` the report stays there, and rows that it has are not measured again; the recipe
    is then a file, too, because the report names it. Rows that were refused, failed or do not fit have no figures but
    `status` and `reason`. With `compare`, `regressions` are the rows that are slower than in that report."""
    words = options("bench", keywords, OPTIONS["bench"])
    if file is not None and isinstance(recipe, Mapping):
        raise ValueError("bench(): with `file` give the path of a recipe, not a dictionary: the report names it")
    if keywords.get("peer") and not keywords.get("peer_python"):
        words.append(f"--peer-python={sys.executable}")
    with scratch() as folder:
        name, names = recipe_file(recipe, folder)
        stays = None if file is None else path_of(file)
        measured, text = report_and_text(["bench", name, *words], folder, None, names, stays)
    found = [line.removeprefix(REGRESSION) for line in text.splitlines() if line.startswith(REGRESSION)]
    return cast(Bench, {**measured, "regressions": found})
