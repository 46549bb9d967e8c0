"""What the program refuses or cannot do, as exceptions: one class for each of its exit codes (docs/errors.md)."""

from __future__ import annotations

from collections.abc import Sequence

MARK = "tessera: error: "
FIRST_SIGNAL = 128


class Error(RuntimeError):
    """A command of the program failed: code 1, or one without a class of its own."""

    def __init__(self, message: str, code: int, command: Sequence[str], output: str = "") -> None:
        super().__init__(message, code, command, output)
        self.message = message
        """The program's line, without its beginning."""
        self.code = code
        """The exit code of docs/errors.md."""
        self.command = list(command)
        """The program and its arguments."""
        self.output = output
        """The end of what it printed to standard error."""

    def __str__(self) -> str:
        return self.message


class UsageError(Error):
    """Code 2: an option that does not exist or does not fit another."""


class ConfigurationError(Error):
    """Code 3: a recipe's key or value, or a file that cannot be made or replaced."""


class DataError(Error):
    """Code 4: missing or damaged data."""


class CheckpointError(Error):
    """Code 5: a missing or damaged checkpoint, or a disk without room."""


class OutOfMemoryError(Error):
    """Code 6: the plan of a run needs more memory than there is, or an allocation failed."""


class RankError(Error):
    """Code 7: a rank was killed, hung, or left the others."""


class NumericError(Error):
    """Code 8: a loss or gradient that is not finite."""


class Stopped(Error):
    """128 + N: the program ended by the signal N, which did not come from this module."""


CLASSES: dict[int, type[Error]] = {
    2: UsageError,
    3: ConfigurationError,
    4: DataError,
    5: CheckpointError,
    6: OutOfMemoryError,
    7: RankError,
    8: NumericError,
}


def error_of(code: int, lines: Sequence[str], command: Sequence[str]) -> Error:
    """The exception for a command that ended with `code` (negative: by a signal) after these lines of stderr."""
    if code < 0:
        code = FIRST_SIGNAL - code
    kind = Stopped if code > FIRST_SIGNAL else CLASSES.get(code, Error)
    begins = [number for number, line in enumerate(lines) if line.startswith(MARK)]
    if begins:
        message = "\n".join(lines[begins[-1] :]).removeprefix(MARK)
    elif kind is Stopped:
        message = f"the program was ended by signal {code - FIRST_SIGNAL}"
        if lines:
            message += f" ({lines[-1].removeprefix('tessera: ')})"
    else:
        message = lines[-1] if lines else f"the program ended with code {code}"
    return kind(message, code, command, "\n".join(lines))
