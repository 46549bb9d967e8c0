"""The program behind the module: where it is found, its version, its libraries, and the command `tessera`."""

import json
import pathlib
import pickle
import re
import signal
import subprocess
import sys

import pytest
from module_testing import ROOT, folder, recipe, tessera  # noqa: F401  (a fixture)

from tessera import _program
from tessera._errors import CLASSES, error_of

COMMAND = [sys.executable, "-m", "tessera"]


def test_the_version_is_that_of_the_header():
    header = (ROOT / "base/version.h").read_text(encoding="utf-8")
    parts = re.findall(r"^#define TESSERA_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header, re.MULTILINE)
    assert tessera.__version__ == ".".join(parts)
    with pytest.raises(AttributeError, match="no attribute 'versions'"):
        tessera.versions  # noqa: B018


def test_a_program_that_does_not_exist_is_named(monkeypatch, tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        monkeypatch.setenv("TESSERA_PROGRAM", str(path))
        with pytest.raises(FileNotFoundError, match="correct the variable TESSERA_PROGRAM"):
            tessera.inspect("x")


def test_the_command_is_the_program():
    done = subprocess.run([*COMMAND, "inspect", "/nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr == "tessera: error: '/nothing' does not exist\n"
    with subprocess.Popen([*COMMAND, "tokenize", "-", "--tokenizer", "bytes", "--lines", "--json", "/dev/stdout"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"a\n")
        process.stdin.close()
        assert process.stdout.read() == b"[[97]]\n"
        assert process.wait() == 0


def test_a_signal_reaches_the_program(folder):  # noqa: F811
    (folder / "recipe.json").write_text(json.dumps(recipe(train={"steps": 1000000})), encoding="utf-8")
    with subprocess.Popen([*COMMAND, "train", "recipe.json", "--metrics", "/dev/stdout"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline().startswith(b'{"step": 1,')
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait() == 128 + signal.SIGTERM


def test_folders_of_nvidias_packages_follow_the_users(monkeypatch, tmp_path):
    for name in ("cublas/lib/libcublasLt.so.13", "nccl/lib/libnccl.so.2", "npp/lib/libnppc.so.13", "cudnn/lib/libcudnn.so.9"):
        (tmp_path / "nvidia" / name).parent.mkdir(parents=True)
        (tmp_path / "nvidia" / name).touch()
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/own:/two")
    found = [str(tmp_path / "nvidia" / name / "lib") for name in ("cublas", "cudnn", "nccl")]
    assert _program.environment()["LD_LIBRARY_PATH"].split(":") == ["/own", "/two", *found]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(["/own", *found]))
    assert _program.environment()["LD_LIBRARY_PATH"].split(":") == ["/own", *found]
    monkeypatch.setenv("LD_LIBRARY_PATH", "/own:/two")
    monkeypatch.setattr(sys, "path", [])
    assert _program.environment()["LD_LIBRARY_PATH"] == "/own:/two"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert "LD_LIBRARY_PATH" not in _program.environment()


def test_the_program_opens_the_libraries_of_nvidias_packages():
    nvidia = pytest.importorskip("nvidia", reason="NVIDIA's Python packages are not installed")
    place = str(pathlib.Path(next(iter(nvidia.__path__))))
    lines = subprocess.run([*COMMAND, "env"], capture_output=True, text=True, check=True).stdout.splitlines()
    known = {line.split()[0]: line for line in lines if line.strip()}
    for name in ("cuBLASLt", "cuDNN", "NCCL"):
        if "not built" in known.get(name, "not built"):
            pytest.skip(f"this build has no {name}")
        assert place in known[name], known[name]


def test_a_launchers_variables_stay_here(monkeypatch, folder):  # noqa: F811
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "nowhere"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert tessera.train(recipe(train={"steps": 1})).metrics["step"] == 1


@pytest.mark.parametrize("rank", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_bench_is_no_rank_of_a_launcher(monkeypatch, folder, rank):  # noqa: F811
    sizes = {"RANK": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE",
             "SLURM_PROCID": "SLURM_NTASKS"}
    monkeypatch.setenv(rank, "1")
    monkeypatch.setenv(sizes[rank], "2")
    options = {"strategies": ["none"], "world_sizes": [1], "steps": 1, "rounds": 1, "warmup": 0}
    (row,) = tessera.bench(recipe(), **options)["rows"]
    assert row["status"] == "measured"


def test_errors_by_exit_code():
    for code, kind in CLASSES.items():
        error = error_of(code, ["a note", "tessera: error: it fails", "  with more"], ["tessera", "x"])
        assert type(error) is kind
        assert (str(error), error.code, error.command) == ("it fails\n  with more", code, ["tessera", "x"])
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.code) == (kind, str(error), code)
    assert type(error_of(1, [], ["x"])) is tessera.Error
    assert "code 1" in str(error_of(1, [], ["x"]))
    stopped = error_of(-9, [], ["x"])
    assert isinstance(stopped, tessera.Stopped) and stopped.code == 137 and "signal 9" in str(stopped)
