"""`train`: a run of a recipe on ranks of this machine, with a callback for each step."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ._arguments import options
from ._child import Child, Pipe, launched, run, scratch
from ._options import OPTIONS, TrainOptions
from ._recipe import Recipe, recipe_file
from ._reports import StepMetrics

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run."""

    metrics: StepMetrics | None
    """Of the last step; None if nothing was left to train."""
    events: list[dict[str, Any]]
    """The other lines of log.jsonl: evaluations, and steps that were skipped or rolled back."""
    folder: pathlib.Path | None
    """checkpoint.dir; None if the run saves nothing."""
    lines: list[str]
    """The last lines that the run printed."""


def train(
    recipe: Recipe,
    *,
    ranks: int = 1,
    on_step: Callable[[StepMetrics], object] | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    verbose: bool = False,
    max_restarts: int = 0,
    **keywords: Unpack[TrainOptions],
) -> Run:
    """Trains to the recipe's last step, from its newest checkpoint if it has one, on `ranks` processes of this machine.

    `on_step` gets the metrics of each step, `on_event` each evaluation and each step that was not used. An exception in
    them, or a KeyboardInterrupt, stops the run: it saves its last finished step and ends, and the exception is raised
    again; a later call goes on from there. `verbose` prints the run's lines."""
    words = options("train", keywords, OPTIONS["train"])
    last: StepMetrics | None = None
    events: list[dict[str, Any]] = []

    def take(line: str) -> None:
        nonlocal last
        values = json.loads(line)
        if "loss" in values:
            last = cast(StepMetrics, values)
            if on_step is not None:
                on_step(last)
        else:
            events.append(values)
            if on_event is not None:
                on_event(values)

    with scratch() as folder:
        file, names = recipe_file(recipe, folder)
        values = _values(file, names, ranks, keywords)
        pipe = Pipe(folder / "steps")
        try:
            command = ["train", file, f"--metrics={pipe.path}", *words]
            child = Child([*launched(ranks, [f"--max-restarts={max_restarts}"]), *command], names)
            child.follow(pipe, take)
            if verbose:
                child.on_error_line = lambda line: print(line, file=sys.stderr, flush=True)
            code = child.wait()
        finally:
            pipe.close()
    if code != 0:
        raise child.error(code)
    place = values["checkpoint"]["dir"]
    return Run(last, events, None if place is None else pathlib.Path(place), child.notes)


def _values(file: str, names: dict[str, str], ranks: int, keywords: TrainOptions) -> Any:
    """All values of the recipe, which also finds its mistakes before a rank starts."""
    known = {name: value for name, value in keywords.items() if name != "device"}
    words = options("train", known, OPTIONS["train"])
    return json.loads(run(["recipe", file, f"--world-size={ranks}", *words], names))
