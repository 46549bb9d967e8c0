"""Recipes: the path of a file, or the same keys as nested dictionaries."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any, Union

from ._arguments import path_of, text_of

Recipe = Union[str, "os.PathLike[str]", Mapping[str, Any]]
NAME = "recipe"  # what messages call a recipe without a file


def recipe_file(recipe: Recipe, folder: pathlib.Path) -> tuple[str, dict[str, str]]:
    """The recipe's file, and the name that messages use in place of a scratch file's."""
    if not isinstance(recipe, Mapping):
        return path_of(recipe), {}
    file = folder / "recipe.json"
    file.write_text(text_of(recipe), encoding="utf-8")
    return str(file), {f"recipe {file}": NAME, f"{file}:1": NAME, str(file): NAME}
