"""The command `tessera`: becomes the program, so that signals and exit codes are the program's."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._program import environment, program


def main() -> NoReturn:
    try:
        path = program()
    except FileNotFoundError as error:
        sys.exit(f"tessera: error: {error}")
    os.execve(path, [path, *sys.argv[1:]], environment())


if __name__ == "__main__":
    main()
