#!/usr/bin/env python3
"""A program that was built with CUDA runs on every machine: it needs no CUDA library to start, and without a GPU it reports
the reason and computes on the CPU.

    program_without_cuda_test.py PROGRAM

Each command runs on the machine as it is, but without LD_LIBRARY_PATH, and again where CUDA cannot be found: in a mount
namespace of its own, with empty folders in place of the toolkits and empty files in place of the libraries. The second
half is skipped where the machine allows no such namespace.
"""
import functools
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else sys.exit(__doc__)
CUDA_LIBRARY = re.compile(r"lib(?:cuda|cudart|cublas|cublasLt|nccl|cudnn\w*|nvrtc|nvidia-\w+)\.so\b[^/\s]*")
RECIPE = """
model: {{architecture: gpt2, n_layer: 1, n_head: 2, n_embd: 32, seq_len: 16}}
data: {{train: {folder}/text, batch_size: 2}}
train: {{steps: 2}}
log: {{jsonl: {folder}/metrics.jsonl}}
"""
# Hides the paths of its first arguments, up to `--`, and then executes the command after it.
COVER = """
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mount -t tmpfs none "$1"; else mount --bind /dev/null "$1"; fi || exit 125
  shift
done
shift
exec "$@"
"""
CONFIGURATION = 3  # the exit code, docs/errors.md
TIMEOUT_SECONDS = 60


def environment():
    """The test's own environment, without variables for CUDA and for ranks."""
    dropped = re.compile(r"LD_LIBRARY_PATH|CUDA_.*|TESSERA_(?:CUDA|COMM|BOOTSTRAP).*|(?:LOCAL_)?(?:RANK|WORLD_SIZE)")
    return {name: value for name, value in os.environ.items() if not dropped.fullmatch(name)}


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment(),
                          stdin=subprocess.DEVNULL, check=False)


def places_of_cuda():
    """The toolkits' folders, and CUDA's libraries that the loader finds elsewhere."""
    folders = {os.path.realpath(folder) for folder in glob.glob("/usr/local/cuda*") if os.path.isdir(folder)}
    cache = run(["/sbin/ldconfig", "-p"]).stdout
    files = {os.path.realpath(line.split("=> ")[1]) for line in cache.splitlines()
             if "=> " in line and CUDA_LIBRARY.match(line.strip())}
    files = {file for file in files if os.path.isfile(file)}
    return sorted(folders) + sorted(file for file in files if not file.startswith(tuple(f + "/" for f in folders)))


@functools.cache
def namespace():
    """(the beginning of a command that runs without CUDA, ""), or (None, the reason why there is none)."""
    reason = "unshare is missing"
    for options in (["--mount"], ["--mount", "--map-root-user"]):
        start = ["unshare", *options, "sh", "-c", COVER, "sh", *places_of_cuda(), "--"]
        try:
            tried = run([*start, "true"])
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return start, ""
        reason = tried.stderr.strip() or f"unshare ended with {tried.returncode}"
    return None, f"no mount namespace to hide CUDA in: {reason}"


class ProgramWithoutCuda(unittest.TestCase):
    """With an empty `start`, on the machine as it is."""
    start = []

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "text"), "w", encoding="utf-8") as file:
            file.write("A sentence to learn by heart. " * 40)
        self.recipe = os.path.join(self.folder, "recipe.yaml")
        with open(self.recipe, "w", encoding="utf-8") as file:
            file.write(RECIPE.format(folder=self.folder))

    def program(self, *arguments):
        return run([*self.start, PROGRAM, *arguments])

    def environment_of_the_program(self):
        done = self.program("env", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def skip_where_there_is_a_gpu(self):
        if self.environment_of_the_program()["gpus"]:
            self.skipTest("there is a GPU")

    def assert_trains_on_the_cpu(self, *arguments):
        done = self.program("train", self.recipe, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        # `tessera env` gives the reason why there is no GPU; other commands do not repeat it in every run.
        self.assertRegex(done.stderr, r", on cpu\n")
        with open(os.path.join(self.folder, "metrics.jsonl"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["step"] for line in file], [1, 2])

    def test_the_loader_needs_no_library_of_cuda(self):
        listed = run([*self.start, "ldd", PROGRAM])
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn("libc.so", listed.stdout)
        self.assertNotIn("not found", listed.stdout)
        self.assertEqual(CUDA_LIBRARY.findall(listed.stdout), [], listed.stdout)

    def test_env_says_whether_there_is_a_gpu_and_why_not(self):
        described = self.environment_of_the_program()
        cuda = described["parts"]["CUDA"]
        self.assertRegex(described["parts"]["cuBLASLt"]["note"], r"^(cuBLASLt \d+\.|our own kernels \()")
        self.assertTrue(cuda["built"], "this program was built without CUDA")
        if described["gpus"]:
            self.assertEqual(cuda["note"], "")
        else:
            self.assertRegex(cuda["note"], r"no NVIDIA (driver|GPU)|CUDA does not start")
            text = self.program("env")
            self.assertEqual(text.returncode, 0, text.stderr)
            self.assertIn(cuda["note"], text.stdout)

    def test_it_trains_on_the_cpu_when_asked(self):
        self.assert_trains_on_the_cpu("--device", "cpu")

    def test_it_trains_on_the_cpu_where_there_is_no_gpu(self):
        self.skip_where_there_is_a_gpu()
        self.assert_trains_on_the_cpu()

    def test_a_missing_gpu_is_refused_in_one_line(self):
        self.skip_where_there_is_a_gpu()
        done = self.program("train", self.recipe, "--device", "cuda")
        self.assertEqual(done.returncode, CONFIGURATION, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, r"^tessera: error: .*train\.device: cuda.*(?:no NVIDIA|CUDA does not start)")
        self.assertIn("use cpu or auto", done.stderr)


class ProgramWhereCudaIsHidden(ProgramWithoutCuda):
    """The same tests where CUDA cannot be found."""

    def setUp(self):
        self.start, reason = namespace()
        if self.start is None:
            self.skipTest(reason)
        super().setUp()

    def test_cuda_cannot_be_found(self):
        described = self.environment_of_the_program()
        self.assertEqual(described["gpus"], {}, "the driver's library is still there")
        for library in ("NCCL", "cuBLASLt"):
            self.assertRegex(described["parts"][library]["note"], r"lib(nccl|cublasLt)\.so\S* cannot open",
                             f"{library} is still there")


if __name__ == "__main__":
    unittest.main(verbosity=2)
