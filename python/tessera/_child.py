"""Runs the program as a child process: its output, its reports, its errors, and how it is stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import selectors
import signal
import subprocess
import tempfile
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from ._errors import error_of
from ._program import environment_without_ranks, program

LOG = logging.getLogger("tessera")
KEPT_LINES = 1000  # of standard error
CALLER = "TESSERA_CALLER"  # the program ends with this process, also if it is killed (cli/program.cpp)


@contextlib.contextmanager
def scratch() -> Iterator[pathlib.Path]:
    """A folder for the files of one call, which is removed whatever happens."""
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        yield pathlib.Path(folder)


class Lines:
    """Cuts bytes into lines and passes them on."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))

    def end(self) -> None:
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
            self._rest = b""


class Pipe:
    """A named pipe, which the program opens by its path. Its end is held open here, so that a program which opens it
    twice, as a restarted one does, finds a reader both times."""

    def __init__(self, path: pathlib.Path) -> None:
        os.mkfifo(path, 0o600)
        self.path = path
        self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._writer = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(self.reader, 1 << 16)
        return b""

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)


class Child:
    """A run of the program, which wait() starts. `renamed` are names of scratch files and what messages call them."""

    def __init__(self, arguments: Sequence[str], renamed: Mapping[str, str] | None = None) -> None:
        self.command = [program(), *arguments]
        self._renamed = dict(renamed or {})
        self._printed = bytearray()
        self._errors: deque[str] = deque(maxlen=KEPT_LINES)
        self.on_error_line: Callable[[str], None] = self._log
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._postponed: Callable[[], object] | None = None  # a ^C
        self._pipes: list[tuple[Pipe, Lines]] = []

    def follow(self, pipe: Pipe, take: Callable[[str], None]) -> None:
        """Calls `take` with each line that the program writes into the pipe, while wait() waits."""
        self._pipes.append((pipe, Lines(take)))

    def wait(self) -> int:
        """Runs the program: the exit code, after the end of all output. Any exception, a KeyboardInterrupt or one of a
        callback, first stops the program by SIGINT, after which a run saves its last finished step, and goes on when it
        has ended. A second ^C ends it at once."""
        with self._interrupts():
            try:
                try:
                    return self._pump(self._start())
                except BaseException:
                    self._stopping = True
                    raise
            finally:
                self._stop()

    def error(self, code: int) -> Exception:
        return error_of(code, list(self._errors), self.command)

    @property
    def printed(self) -> str:
        return self.rename(self._printed.decode(errors="replace"))

    @property
    def notes(self) -> list[str]:
        return list(self._errors)

    def rename(self, text: str) -> str:
        for name, known in self._renamed.items():
            text = text.replace(name, known)
        return text

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        """What ^C does. While Popen() starts the process, an exception would lose it: the ^C comes after it. Then it is
        the caller's handler's, a KeyboardInterrupt as a rule. While the program is being stopped, it goes to the
        program. Only the main thread sees it."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return

        def interrupt(number: int, frame: types.FrameType | None) -> None:
            if self._stopping and self._process is not None:
                self._process.send_signal(signal.SIGINT)
            elif self._process is None:
                self._postponed = lambda: before(number, frame)
            else:
                try:
                    before(number, frame)
                except BaseException:
                    self._stopping = True
                    raise

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is interrupt:  # a callback may have set another
                signal.signal(signal.SIGINT, before)

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: a terminal's ^C reaches this process alone, which passes it on once.
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment_without_ranks(), CALLER: str(os.getpid())},
            start_new_session=True,
        )
        if self._postponed is not None:
            self._postponed()
        return self._process

    def _pump(self, process: subprocess.Popen[bytes]) -> int:
        assert process.stdout and process.stderr  # both are pipes
        errors = Lines(self._take_error)
        takers: list[tuple[IO[bytes], Callable[[bytes], object]]] = []
        if not process.stdout.closed:  # an interrupted call may have closed them
            takers.append((process.stdout, self._printed.extend))
        if not process.stderr.closed:
            takers.append((process.stderr, errors.add))
        with selectors.DefaultSelector() as selector:
            for stream, take in takers:
                selector.register(stream, selectors.EVENT_READ, take)
            for pipe, lines in self._pipes:
                selector.register(pipe.reader, selectors.EVENT_READ, (pipe, lines))
            ends = len(takers)
            while ends:
                for key, _ in selector.select():
                    if isinstance(key.data, tuple):
                        pipe, lines = key.data
                        lines.add(pipe.read())
                        continue
                    data = os.read(key.fd, 1 << 16)
                    key.data(data)
                    if not data:
                        selector.unregister(key.fileobj)
                        ends -= 1
        errors.end()
        for pipe, lines in self._pipes:
            while data := pipe.read():
                lines.add(data)
        process.stdout.close()
        process.stderr.close()
        return process.wait()

    def _stop(self) -> None:
        """Ends the program by its documented signal, if it has not ended."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._pipes = [(pipe, Lines(lambda line: None)) for pipe, _ in self._pipes]
        self.on_error_line = self._log
        process.send_signal(signal.SIGINT)
        self._pump(process)

    def _take_error(self, line: str) -> None:
        line = self.rename(line)
        self._errors.append(line)
        self.on_error_line(line)

    @staticmethod
    def _log(line: str) -> None:
        if line.removeprefix("tessera: ").startswith("warning"):
            LOG.warning("%s", line)
        else:
            LOG.info("%s", line)


def run(arguments: Sequence[str], renamed: Mapping[str, str] | None = None) -> str:
    """Runs a command to its end and returns what it printed."""
    child = Child(arguments, renamed)
    code = child.wait()
    if code != 0:
        raise child.error(code)
    return child.printed


def report_and_text(
    arguments: Sequence[str],
    folder: pathlib.Path,
    answers: Sequence[int] | None = (),
    renamed: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> tuple[Any, str]:
    """Runs a command with --json and returns its report and what it printed, also if it ends with one of `answers`: codes
    by which the command says "no" after it has written the report; None: every code but a signal's. The report is in
    `folder`, or in `file`, where it stays."""
    place = folder / "report.json" if file is None else pathlib.Path(file)
    before = place.stat().st_mtime_ns if place.exists() else None
    child = Child([*arguments, f"--json={place}"], renamed)
    code = child.wait()
    is_answer = 0 < code < 128 if answers is None else code in answers
    if code != 0 and not (is_answer and place.exists() and place.stat().st_mtime_ns != before):
        raise child.error(code)
    return json.loads(child.rename(place.read_text(encoding="utf-8"))), child.printed


def report(
    arguments: Sequence[str],
    folder: pathlib.Path,
    answers: Sequence[int] = (),
    renamed: Mapping[str, str] | None = None,
) -> Any:
    return report_and_text(arguments, folder, answers, renamed)[0]


def launched(ranks: int, options: Sequence[str] = ()) -> list[str]:
    """The words before a command that ranks share."""
    return ["launch", f"--nproc-per-node={ranks}", *options, "--", program()]
