"""Shared by the tests of the Python module: where it is, small recipes, and the options of the program's help.

With TESSERA_PROGRAM it is the module of this source tree and that program; without it, an installed wheel."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
if os.environ.get("TESSERA_PROGRAM"):
    sys.path.insert(0, str(ROOT / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background job ignores SIGINT, and Python would go on ignoring it.
signal.signal(signal.SIGINT, signal.default_int_handler)

import tessera  # noqa: E402

TEXT = "A rank gathers a unit.\nA unit is gathered by a rank.\nThe file is whole.\nNo program reads the file.\n"
TOKENIZER = ROOT / "tests/tokenizers/fixtures/bert.json"


def recipe(**sections):
    """A GPT-2 of one layer on text.txt; sections are merged into it."""
    values = {
        "model": {"architecture": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "seq_len": 32},
        "data": {"train": "text.txt", "batch_size": 1},
        "train": {"steps": 3, "lr": 1.0e-3, "warmup_steps": 1},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return values


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder of a test, with text.txt; afterwards no file of the module may be left in TMPDIR."""
    scratch = tmp_path / "scratch"
    work = tmp_path / "work"
    for place in (scratch, work):
        place.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(work)
    (work / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    yield work
    assert list(scratch.iterdir()) == []


def options_of(command):
    """The names of a subcommand's options, as keywords."""
    done = subprocess.run([tessera.program(), command, "--help"], capture_output=True, text=True, check=True)
    names = re.findall(r"^  (?:-\w,)?--([\w-]+)", done.stdout, re.MULTILINE)
    return {name.replace("-", "_") for name in names} - {"help"}
