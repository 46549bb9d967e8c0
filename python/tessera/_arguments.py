"""Turns Python's keyword arguments into the program's options."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping

# Lists that the program splits at commas; it takes other lists as repeated options.
SEPARATED = frozenset(
    "activation_checkpointing batch_sizes columns labels offload peer peer_modes precisions prefetch stop strategies"
    " world_sizes".split()
)


def plain(value: object) -> object:
    """For json.dumps: paths as texts, NumPy's arrays and numbers as lists and numbers."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    convert = getattr(value, "tolist", None)
    if callable(convert):
        return convert()
    raise TypeError(f"{value!r} ({type(value).__name__}) is not a value of a recipe")


def text_of(value: object) -> str:
    """A value as the program reads it: texts and paths unchanged, the rest as JSON, which is YAML too."""
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str):
            return text
    return json.dumps(value, default=plain, allow_nan=False, ensure_ascii=False)


def check_names(function: str, names: Iterable[str], known: Iterable[str]) -> None:
    """TypeError, as for any function, for a keyword that the command does not have."""
    known = sorted(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'; {hint}")


def options(function: str, keywords: Mapping[str, object], known: Iterable[str]) -> list[str]:
    """`batch_size=8` is --batch-size=8, `normalize=True` a flag, a list a repeated option, and a mapping one
    KEY=VALUE for each of its items. None and False are left out."""
    check_names(function, keywords, known)
    words: list[str] = []
    for name, value in keywords.items():
        option = "--" + name.replace("_", "-")
        convert = getattr(value, "tolist", None)
        if callable(convert):  # of NumPy
            value = convert()
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, Mapping):
            words += [f"{option}={key}={text_of(one)}" for key, one in value.items()]
        elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            words += [f"{option}={_element(function, name, one)}" for one in value]
        else:
            words.append(f"{option}={text_of(value)}")
    return words


def _element(function: str, name: str, value: object) -> str:
    """One of a list. The program would take a comma for the end of the element."""
    text = text_of(value)
    if name in SEPARATED and "," in text:
        raise ValueError(f"{function}(): {name} has the element {text!r}, and the program separates elements by commas")
    return text


def path_of(path: str | os.PathLike[str]) -> str:
    """A path as an argument of its own, which must not look like an option."""
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text
