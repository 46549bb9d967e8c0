"""`train`: metrics, callbacks, and how a run is stopped."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from module_testing import folder, recipe, tessera  # noqa: F401  (a fixture)


def test_a_run_on_two_ranks(folder):  # noqa: F811
    seen, events = [], []
    made = recipe(train={"steps": 4, "eval_every": 2}, data={"valid": "text.txt"}, checkpoint={"dir": "out"},
                  log={"jsonl": "m.jsonl"})
    run = tessera.train(made, ranks=2, on_step=seen.append, on_event=events.append)
    lines = [json.loads(line) for line in (folder / "m.jsonl").read_text(encoding="utf-8").splitlines()]
    assert seen == [line for line in lines if "loss" in line]
    assert events == run.events == [line for line in lines if "loss" not in line]
    assert [step["step"] for step in seen] == [1, 2, 3, 4] and [event["step"] for event in events] == [2, 4]
    assert run.metrics == seen[-1]
    assert run.folder == pathlib.Path("out") and (folder / "out/step-4").is_dir()
    assert "2 ranks" in run.lines[0] and run.lines[-1] == "saved out/step-4"
    again = tessera.train(made, ranks=2)
    assert again.metrics is None and "nothing is left to train" in "\n".join(again.lines)
    more = tessera.train(made, set={"train.steps": 6}, on_step=seen.append)
    assert [step["step"] for step in seen[4:]] == [5, 6] and more.metrics["step"] == 6


def test_a_recipe_from_a_file_that_saves_nothing(folder, capsys):  # noqa: F811
    (folder / "recipe.json").write_text(json.dumps(recipe()), encoding="utf-8")
    run = tessera.train(folder / "recipe.json", device="cpu", verbose=True)
    assert run.metrics["step"] == 3 and run.folder is None
    assert "1 rank," in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["recipe.json", "text.txt"]


def test_a_recipe_is_checked_for_its_ranks(folder):  # noqa: F811
    made = recipe(train={"steps": 1}, sharding={"sharding_strategy": "HYBRID_SHARD", "group_size": 2})
    assert tessera.train(made, ranks=2).metrics["step"] == 1
    with pytest.raises(tessera.ConfigurationError, match="group_size 2 does not divide the 3 ranks"):
        tessera.train(made, ranks=3)
    with pytest.raises(tessera.UsageError, match="--world-size"):
        tessera.train(made, ranks=0)


class Enough(Exception):
    pass


def test_an_exception_in_a_callback_stops_the_run_after_a_save(folder):  # noqa: F811
    def stop(step):
        if step["step"] == 5:
            raise Enough(step["step"])

    made = recipe(train={"steps": 1000000}, checkpoint={"dir": "out", "every": 1000000})
    with pytest.raises(Enough, match="5"):
        tessera.train(made, ranks=2, on_step=stop)
    (saved,) = (folder / "out").glob("step-*")
    done = int(saved.name.removeprefix("step-"))
    assert done >= 5
    run = tessera.train(made, set={"train.steps": done + 1})
    assert run.metrics["step"] == done + 1


PROGRAM = """
import json, os, signal, sys
from module_testing import recipe, tessera
made = recipe(train={"steps": 1000000}, checkpoint={"dir": "out", "every": 1000000})
def stop(step):
    if step["step"] == 3:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
tessera.train(made, on_step=stop)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_signals_to_python(folder, name):  # noqa: F811
    """^C saves and becomes a KeyboardInterrupt; a process that is killed does not leave a run behind."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
    began = time.time()
    done = subprocess.run([sys.executable, "-B", "-c", PROGRAM, name], env=environment, capture_output=True, text=True,
                          timeout=60, check=False)
    if name == "SIGINT":
        assert done.returncode == -signal.SIGINT, done.stderr
        assert "KeyboardInterrupt" in done.stderr and list((folder / "out").glob("step-*"))
        return
    assert done.returncode == -signal.SIGKILL, done.stderr
    (scratch,) = pathlib.Path(os.environ["TMPDIR"]).iterdir()  # the killed process could not remove it
    while time.time() < began + 30 and runs_with(scratch):
        time.sleep(0.05)
    assert not runs_with(scratch)
    for file in scratch.iterdir():
        file.unlink()
    scratch.rmdir()


CALL = """
import sys
from module_testing import tessera
from tessera import _child
_child.subprocess.DEVNULL = None  # its input is that of this process, which stays open
_child.Child(["tokenize", "-", "--tokenizer=bytes", "--lines", "--json=" + sys.argv[1]]).wait()
"""


def test_no_command_outlives_a_killed_python(folder):  # noqa: F811
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
    marked = folder / "ids.json"
    until = time.time() + 30

    def programs():
        return [path for path in runs_with(marked) if path.read_bytes().startswith(tessera.program().encode())]

    with subprocess.Popen([sys.executable, "-B", "-c", CALL, str(marked)], env=environment, stdin=subprocess.PIPE) as caller:
        while time.time() < until and not programs():
            time.sleep(0.02)
        assert programs(), "the program did not start"
        time.sleep(0.3)
        caller.kill()
        caller.wait()
        until = time.time() + 5
        while time.time() < until and runs_with(marked):
            time.sleep(0.02)
        assert not runs_with(marked)


def runs_with(folder):  # noqa: F811
    """Processes with a name of this folder among their arguments."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(path)
        except OSError:  # it has just ended
            pass
    return found


@pytest.mark.parametrize(("change", "kind", "text"), [
    ({"train": {"lrr": 1}}, tessera.ConfigurationError, r"^recipe: unknown key train.lrr; did you mean lr\?$"),
    ({"data": {"train": "nothing.txt"}}, tessera.DataError, r"nothing.txt cannot be opened"),
    ({"train": {"lr": 1e30}}, tessera.NumericError, r"not finite"),
])
def test_bad_input_is_an_exception_and_leaves_nothing(folder, change, kind, text):  # noqa: F811
    with pytest.raises(kind, match=text) as caught:
        tessera.train(recipe(**change), ranks=2)
    assert caught.value.command[0] == tessera.program()
    assert [path.name for path in folder.iterdir()] == ["text.txt"]


def test_a_missing_file(folder):  # noqa: F811
    with pytest.raises(tessera.ConfigurationError, match=r"^recipe nothing.yaml does not exist$") as caught:
        tessera.train("nothing.yaml")
    assert caught.value.code == 3


def test_a_run_that_somebody_else_stops(folder):  # noqa: F811
    def stop(step):
        if step["step"] == 3:
            for path in runs_with(os.environ["TMPDIR"]):
                if b"launch" in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGTERM)
                    break

    with pytest.raises(tessera.Stopped, match=r"signal 15") as caught:
        tessera.train(recipe(train={"steps": 1000000}), on_step=stop)
    assert caught.value.code == 143
