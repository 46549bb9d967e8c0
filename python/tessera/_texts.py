"""`tokenize`, `encode`, `evaluate` and `generate`: models and tokenizers on texts."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from ._arguments import options, path_of, plain, text_of
from ._child import launched, report, run, scratch
from ._options import OPTIONS, EncodeOptions, EvaluateOptions, GenerateOptions, Path, TokenizeOptions
from ._reports import Evaluation, Generation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

KEY = "text"
Rows = Iterable[Mapping[str, Any]]


def write_rows(rows: Rows, file: pathlib.Path) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row, default=plain) + "\n")


def write_texts(function: str, texts: Iterable[str], file: pathlib.Path) -> int:
    """Writes them as JSON lines, because a text may have line breaks; returns their number."""
    known = list(texts)
    for number, text in enumerate(known):
        if not isinstance(text, str):
            raise TypeError(f"{function}(): text {number} is {type(text).__name__}, not str")
    write_rows(({KEY: text} for text in known), file)
    return len(known)


@overload
def tokenize(  # type: ignore[overload-overlap]  # a str is an Iterable[str] too, and the first that fits decides
    texts: str, *, tokenizer: Path, **keywords: Unpack[TokenizeOptions]
) -> list[int]: ...
@overload
def tokenize(texts: Iterable[str], *, tokenizer: Path, **keywords: Unpack[TokenizeOptions]) -> list[list[int]]: ...
def tokenize(
    texts: str | Iterable[str], *, tokenizer: Path, **keywords: Unpack[TokenizeOptions]
) -> list[int] | list[list[int]]:
    """The token ids of a text, or of each of several, by a tokenizer's file or folder, or "bytes"."""
    words = options("tokenize", keywords, OPTIONS["tokenize"])
    with scratch() as folder:
        count = write_texts("tokenize", [texts] if isinstance(texts, str) else texts, folder / "texts.jsonl")
        ids: list[list[int]] = []
        if count > 0:
            source = [str(folder / "texts.jsonl"), "--lines", f"--column={KEY}", f"--tokenizer={path_of(tokenizer)}"]
            ids = report(["tokenize", *source, *words], folder)
    return ids[0] if isinstance(texts, str) else ids


def encode(
    folder: Path, sentences: str | Iterable[str], *, ranks: int = 1, **keywords: Unpack[EncodeOptions]
) -> NDArray[np.float32]:
    """The embeddings of sentences: an array [sentences, dimension], or [dimension] for one str.
    Without sentences it is [0, 0], because no model is loaded that would know the dimension."""
    import numpy  # needed here alone

    words = options("encode", keywords, OPTIONS["encode"])
    with scratch() as place:
        source, out = place / "texts.jsonl", place / "embeddings.npy"
        if write_texts("encode", [sentences] if isinstance(sentences, str) else sentences, source) == 0:
            return numpy.empty((0, 0), numpy.float32)
        files = [f"--input={source}", f"--column={KEY}", f"--out={out}"]
        run([*launched(ranks), "encode", path_of(folder), *files, *words], {str(source): "sentences"})
        rows: NDArray[np.float32] = numpy.load(out)
    return rows[0] if isinstance(sentences, str) else rows


def evaluate(
    folder: Path,
    data: Path | Sequence[Path | Mapping[str, Any]],
    *,
    ranks: int = 1,
    **keywords: Unpack[EvaluateOptions],
) -> Evaluation:
    """Scores a model. `data` is a file or pattern, several of them, or rows as dictionaries."""
    words = options("evaluate", keywords, OPTIONS["evaluate"])
    with scratch() as place:
        rows: list[Any] = [data] if isinstance(data, str) or not isinstance(data, Sequence) else list(data)
        names: dict[str, str] = {}
        if rows and all(isinstance(row, Mapping) for row in rows):
            write_rows(cast(Rows, rows), place / "rows.jsonl")
            names = {str(place / "rows.jsonl"): "data"}
            rows = [str(place / "rows.jsonl")]
        files = [f"--data={text_of(row)}" for row in rows]
        found = report([*launched(ranks), "evaluate", path_of(folder), *files, *words], place, renamed=names)
    known = {name: found.pop(name) for name in ("format", "task", "samples")}
    return cast(Evaluation, {**known, "numbers": found})


@overload
def generate(  # type: ignore[overload-overlap]
    folder: Path, prompts: str, **keywords: Unpack[GenerateOptions]
) -> Generation: ...
@overload
def generate(folder: Path, prompts: Iterable[str], **keywords: Unpack[GenerateOptions]) -> list[Generation]: ...
def generate(
    folder: Path, prompts: str | Iterable[str], **keywords: Unpack[GenerateOptions]
) -> Generation | list[Generation]:
    """Continues a text, or each of several: its `text` and `tokens` are what follows the `prompt`."""
    words = options("generate", keywords, OPTIONS["generate"])
    with scratch() as place:
        source = place / "texts.jsonl"
        if write_texts("generate", [prompts] if isinstance(prompts, str) else prompts, source) == 0:
            return []
        files = [f"--prompts={source}", f"--column={KEY}"]
        printed = run(["generate", path_of(folder), *files, *words], {str(source): "prompts"})
    found = [cast(Generation, json.loads(line)) for line in printed.splitlines()]
    return found[0] if isinstance(prompts, str) else found
