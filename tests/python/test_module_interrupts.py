"""^C at every point of a call: the program is never left behind."""

import signal
import subprocess
import sys

import pytest
from module_testing import tessera  # noqa: F401  (finds the module)

from tessera import _child

WAITS = ["-c", "import sys, time; print('x', file=sys.stderr, flush=True); time.sleep(100)"]
ENDS = ["-c", "print('x')"]


def interrupt():
    signal.raise_signal(signal.SIGINT)


class Recorded(subprocess.Popen):
    made: list[subprocess.Popen[bytes]] = []

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.made.append(self)


class WhileItStarts(Recorded):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        interrupt()


class Closing:
    """A stream whose close() is interrupted behind it."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def close(self):
        self._stream.close()
        interrupt()


class WhileItCloses(Recorded):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.stdout = Closing(self.stdout)


class ThreeTimes(Recorded):
    """Two more before the first one has been passed on."""

    count = 0

    def send_signal(self, sig):
        self.count += 1
        if self.count < 3:
            interrupt()
        super().send_signal(sig)


@pytest.mark.parametrize(("kind", "arguments"), [
    (WhileItStarts, WAITS), (WhileItCloses, ENDS), (ThreeTimes, WAITS)])
def test_no_program_is_left(monkeypatch, kind, arguments):
    monkeypatch.setattr(_child, "program", lambda: sys.executable)
    monkeypatch.setattr(_child.subprocess, "Popen", kind)
    monkeypatch.setattr(Recorded, "made", [])
    handler = signal.getsignal(signal.SIGINT)
    if kind is ThreeTimes:
        monkeypatch.setattr(_child.Lines, "add", lambda self, data: interrupt())
    try:
        with pytest.raises(KeyboardInterrupt):
            _child.Child(arguments).wait()
        (process,) = Recorded.made
        assert process.returncode is not None
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        for process in Recorded.made:
            process.kill()
