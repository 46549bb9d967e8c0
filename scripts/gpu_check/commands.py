"""Commands with a time limit: their processes end with them, and they cannot block their caller."""
import dataclasses
import os
import signal
import subprocess
import tempfile
import threading
import time

POLL_SECONDS = 0.1
# The time from SIGTERM to SIGKILL, and from there to giving up on a process that hangs in a driver's call.
GRACE_SECONDS = 3
GIVE_UP_SECONDS = 5
TAIL_BYTES = 6000


@dataclasses.dataclass
class Done:
    """How a command ended. `status` is None when it ran past its limit."""
    status: int | None
    seconds: float
    output: str  # its end

    @property
    def timed_out(self):
        return self.status is None

    def last_line(self):
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


def members_of_session(session):
    """The processes of a session that are not zombies."""
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                state, _, _, its_session = file.read().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended
            continue
        if int(its_session) == session and state not in "ZX":
            members.append(int(entry))
    return members


def end_session(process):
    """Ends a process and its whole session: with SIGTERM, then with SIGKILL. A process that survives both is left alone."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GIVE_UP_SECONDS)):
        deadline = time.monotonic() + seconds
        members = members_of_session(process.pid)
        for member in members:
            try:
                os.kill(member, number)
            except ProcessLookupError:
                pass
        while members and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            process.poll()
            members = members_of_session(process.pid)
        process.poll()
        if not members:
            return


class Commands:
    """Runs commands, also from several threads, and can end all of them."""

    def __init__(self, environment):
        self.environment = environment
        self._running = set()
        self._lock = threading.Lock()

    def run(self, command, seconds, variables=None, watch=None):
        """Runs a command for at most `seconds`. Calls `watch` while it runs, and once afterwards."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env={**self.environment, **(variables or {})}, start_new_session=True)
            except OSError as error:
                return Done(127, 0.0, f"{command[0]}: {error.strerror}")
            with self._lock:
                self._running.add(process)
            try:
                status = self._wait(process, began + seconds, watch)
            finally:
                end_session(process)
                with self._lock:
                    self._running.discard(process)
            if watch:
                watch()
            output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = output.read().decode("utf-8", errors="replace")
        return Done(status, time.monotonic() - began, text)

    def end_all(self):
        with self._lock:
            running = list(self._running)
        for process in running:
            end_session(process)

    @staticmethod
    def _wait(process, deadline, watch):
        while time.monotonic() < deadline:
            try:
                return process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if watch:
                    watch()
        return None
