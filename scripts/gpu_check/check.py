"""Runs parts, each within its own budget and with its own verdict, regardless of the earlier parts."""
import concurrent.futures
import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable

PASSED, FAILED, TIMED_OUT, NOT_RUN = "passed", "failed", "timed out", "not run"
LEAST_SECONDS = 3  # with less time left a part does not begin


class NotRun(Exception):
    """A part or row cannot be run here; the text says why."""


class Interrupted(BaseException):
    """The whole run must end."""


@dataclasses.dataclass(frozen=True)
class Part:
    """`run(check)` adds rows and returns a note. `beyond` names what needs a GPU, for runs without one."""
    name: str
    seconds: int
    purpose: str
    run: Callable
    beyond: str = ""


class Check:
    """A run of parts over an installation."""

    def __init__(self, installation, commands, report, seconds, show=print):
        self.installation = installation
        self.commands = commands
        self.report = report
        self.show = show
        self.deadline = time.monotonic() + seconds
        self.part_deadline = self.deadline

    def left(self):
        """Seconds that the running part may still take."""
        return self.part_deadline - time.monotonic()

    def perform(self, part):
        """Runs a part; its verdict is the worst of its rows'."""
        began = time.monotonic()
        self.part_deadline = min(self.deadline, began + part.seconds)
        self.show(f"== {part.name}: {part.purpose}")
        self.report.begin(part.name)
        try:
            if self.left() < LEAST_SECONDS:
                raise NotRun("no time was left")
            verdict, note = self._verdict(part.run(self))
        except NotRun as reason:
            verdict, note = NOT_RUN, str(reason)
        except Interrupted:
            self.commands.end_all()
            self.report.end(FAILED, time.monotonic() - began, "a signal ended the run")
            raise
        except Exception as error:  # an error in one part must not stop the others
            traceback.print_exc(file=sys.stderr)
            verdict, note = FAILED, f"gpu-check itself: {type(error).__name__}: {error}"
        self.report.end(verdict, time.monotonic() - began, note)

    def _verdict(self, note):
        rows = self.report.rows()
        for verdict in (FAILED, TIMED_OUT):
            names = [row["row"] for row in rows if row["verdict"] == verdict]
            if names:
                notes = [row["note"] for row in rows if row["verdict"] == verdict and row.get("note")]
                return verdict, ", ".join(names[:8]) + (f": {notes[0]}" if notes else "")
        if not any(row["verdict"] == PASSED for row in rows):
            return NOT_RUN, next((row["note"] for row in rows if row.get("note")), "nothing ran")
        late = sum(row["verdict"] == NOT_RUN for row in rows)
        return PASSED, (note or "") + (f" ({late} rows not run)" if late else "")

    def row(self, name, verdict, note="", /, **figures):
        """Adds a row, which is printed and on disk when this returns."""
        row = {**figures, "row": name, "verdict": verdict, **({"note": note} if note else {})}
        self.report.row(row)
        seconds = f" {row['seconds']:6.1f} s" if "seconds" in row else ""
        self.show(f"   {verdict:9} {name}{seconds}{'  ' + note if note else ''}")
        return row

    def command(self, name, command, limit=120, variables=None, watch=None, silent=False):
        """Runs a command and adds a row with its verdict; `silent`: only where it fails."""
        seconds = min(limit, self.left())
        if seconds < LEAST_SECONDS:
            self.row(name, NOT_RUN, "no time was left")
            return None
        done = self.commands.run(command, seconds, variables, watch)
        if done.timed_out:
            self.row(name, TIMED_OUT, f"not finished after {seconds:.0f} s", seconds=done.seconds, output=done.output)
        elif done.status != 0:
            how = f"signal {-done.status}" if done.status < 0 else f"exit {done.status}"
            self.row(name, FAILED, f"{how}: {done.last_line()[:200]}", seconds=done.seconds, output=done.output)
        elif not silent:
            self.row(name, PASSED, seconds=done.seconds)
        return done

    def figures(self, name, command, path, limit=120, variables=None):
        """Runs a benchmark that appends a line of JSON for each figure to `path`; each becomes a row at once."""
        reader = LineReader(path)

        def take_figures():
            for number, line in reader.new_lines():
                self._figure(f"{name} {number}", line)

        done = self.command(name, command, limit, variables, take_figures, silent=True)
        if done is None:
            return
        if reader.rest() and not done.timed_out:
            self._figure(f"{name} {reader.count + 1}", reader.rest())
        if done.status == 0 and reader.count == 0:
            self.row(name, FAILED, "it wrote no figures", output=done.output)

    def _figure(self, name, line):
        try:
            figure = json.loads(line)
            if not isinstance(figure, dict):
                raise ValueError("not an object")
        except ValueError as error:
            self.row(name, FAILED, f"the row cannot be read ({error}): {line[:80]}")
            return
        problem = self.installation.problem_with_products(figure.get("matrix_products"),
                                                          figure.get("products_by_own_kernels", 0))
        # cuDNN has no attention of wider types.
        own = figure.get("attention_by_own_kernels", 0) if figure.get("dtype") in ("bfloat16", "float16") else 0
        problem = problem or self.installation.problem_with_attention(figure.get("attention_by"), own)
        self.row(name, FAILED if problem else PASSED, problem, **figure)

    def together(self, calls, workers):
        """Calls functions without arguments, some at a time."""
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(call) for call in calls]
            try:
                return [future.result() for future in futures]
            except Interrupted:
                pool.shutdown(wait=False, cancel_futures=True)
                self.commands.end_all()
                raise


class LineReader:
    """The lines of a file that another process appends to."""

    def __init__(self, path):
        self.path = path
        self.count = 0
        self._offset = 0
        self._partial = b""

    def new_lines(self):
        if not os.path.exists(self.path):
            return
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self.count += 1
            yield self.count, line.decode("utf-8", errors="replace")

    def rest(self):
        """The text after the last end of line: a row that was not complete when the process ended."""
        return self._partial.decode("utf-8", errors="replace")
