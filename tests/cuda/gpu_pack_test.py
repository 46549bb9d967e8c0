#!/usr/bin/env python3
"""Tests a pack of scripts/gpu-pack in an empty root with only the C library and Python: no compiler, CMake, git, shell
or source tree. With the emulator, the parts of gpu-check pass there as far as they can without a GPU.

    gpu_pack_test.py [ROOT]

For root it is a chroot in a namespace of its own. Where neither is allowed, the pack runs beside the repository, with an
environment that does not refer to it.
"""
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

ROOT = os.path.realpath(sys.argv.pop(1)) if len(sys.argv) > 1 else os.path.realpath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
MOST_BYTES = 60 << 20
SECONDS = 480
PASSES = ("environment", "smoke", "training", "device", "strategies", "nccl", "curves")
NEEDS_A_GPU = ("kernels", "sanitizers")


def copy(path, root):
    """Copies a file to the same path in another root; links become the files that they point to."""
    target = os.path.join(root, path.lstrip("/"))
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(path, target)


def copy_with_libraries(path, root):
    copy(path, root)
    for line in subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout.splitlines():
        library = next((word for word in line.split() if word.startswith("/")), None)
        if library:
            copy(library, root)


def make_root(root):
    """Python and its dependencies; also the parts of the C library that programs of the pack need."""
    python = os.path.realpath(sys.executable)
    copy_with_libraries(python, root)
    standard = sysconfig.get_path("stdlib")
    left_out = shutil.ignore_patterns("test", "idlelib", "tkinter", "*-packages", "__pycache__", "ensurepip", "lib2to3")
    shutil.copytree(standard, os.path.join(root, standard.lstrip("/")), ignore=left_out,
                    ignore_dangling_symlinks=True)
    for place, _, names in os.walk(os.path.join(standard, "lib-dynload")):
        for name in names:
            copy_with_libraries(os.path.join(place, name), root)
    libc = next(line.split()[2] for line in subprocess.run(
        ["ldd", python], capture_output=True, text=True, check=True).stdout.splitlines() if "libc.so" in line)
    for name in ("libm.so.6", "libmvec.so.1", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libresolv.so.2"):
        if os.path.exists(os.path.join(os.path.dirname(libc), name)):
            copy(os.path.join(os.path.dirname(libc), name), root)
    for folder in ("proc", "dev", "tmp"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    return python


def isolation(root):
    """The beginning of a command that runs in `root` and sees nothing else, or None."""
    begin = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
             'mount -t proc none "$0/proc" && mount -t tmpfs none "$0/dev" && for d in null zero urandom; do '
             ': >"$0/dev/$d" && mount --bind "/dev/$d" "$0/dev/$d"; done && mkdir -p "$0/dev/shm" && '
             'mount -t tmpfs none "$0/dev/shm" && exec chroot "$0" "$@"', root]
    tried = subprocess.run([*begin, os.path.realpath(sys.executable), "-c", "import json"], capture_output=True,
                           text=True, check=False)
    if tried.returncode == 0:
        return begin
    print(f"no root of its own: {tried.stderr.strip()}", file=sys.stderr)
    return None


class GpuPackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = folder.name
        cls.root = os.path.join(cls.work, "root")
        os.makedirs(cls.root)
        cls.python = make_root(cls.root)
        cls.begin = isolation(cls.root)
        cls.archive = os.path.join(cls.work, "gpu-pack.tar.xz")
        made = subprocess.run([os.path.join(ROOT, "scripts", "gpu-pack"), "--emulated", cls.archive],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise RuntimeError(made.stdout + made.stderr)
        cls.listing = made.stdout
        subprocess.run(["tar", "-C", cls.root, "-xf", cls.archive], check=True)
        cls.pack = os.path.join(cls.root, "gpu-pack")

    def run_there(self, *command):
        """Runs a command in the root; {pack} is the path of the pack there."""
        pack = "/gpu-pack" if self.begin else self.pack
        command = [*(self.begin or []), *(word.format(pack=pack) for word in command)]
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": "/tmp", "LANG": "C.UTF-8",
                       "LD_LIBRARY_PATH": f"{pack}/lib:{pack}/lib-compiler"}
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)

    def gpu_check(self, *arguments):
        return self.run_there(self.python, "{pack}/gpu-check", *arguments)

    def test_it_is_small_enough_and_lists_its_files(self):
        self.assertLess(os.path.getsize(self.archive), MOST_BYTES)
        with open(os.path.join(self.pack, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        there = {os.path.relpath(os.path.join(place, name), self.pack)
                 for place, _, names in os.walk(self.pack) for name in names}
        self.assertEqual(there - {"manifest.json"}, set(manifest["files"]))
        for name in ("bin/tessera", "bin/cuda_tests", "bin/cuda_training_bench", "gpu-check"):
            self.assertIn(name, manifest["files"])
            self.assertIn(name, self.listing)
        self.assertFalse([name for name in there if "libc.so" in name or "libcuda" in name or "libcublas" in name])

    def test_it_runs_in_an_empty_root(self):
        report = "/tmp/report.json" if self.begin else os.path.join(self.work, "report.json")
        done = self.gpu_check("--on-emulator", "--json", report)
        print(done.stdout, file=sys.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(self.root, "tmp", "report.json") if self.begin else report, encoding="utf-8") as file:
            parts = {part["part"]: part for part in json.load(file)["parts"]}
        self.assertEqual({name: part["verdict"] for name, part in parts.items()},
                         {**dict.fromkeys(PASSES, "passed"), **dict.fromkeys(NEEDS_A_GPU, "not run")})
        # Every figure with matrix products names the library that computed them.
        for row in (row for part in parts.values() for row in part["rows"] if "tokens_per_s" in row):
            self.assertRegex(row["matrix_products"], "^our own kernels ")
            self.assertRegex(row["attention_by"], "^our own kernels ")
        self.assertIn("not checked, because it needs a GPU:", done.stdout)
        for name in NEEDS_A_GPU:
            self.assertRegex(done.stdout, rf"(?m)^  {name} +all of it")

    def test_the_test_program_takes_names_of_files(self):
        def tests(*arguments):
            return self.run_there("{pack}/bin/cuda_tests", *arguments)

        files = tests("--files").stdout.split()
        self.assertGreater(len(files), 30)
        self.assertIn("strategies_test", files)
        listed = tests("arena_test", "fill_test", "--gtest_list_tests", "--gtest_filter=-Settings*").stdout
        suites = {line for line in listed.splitlines() if not line.startswith(" ")}
        self.assertEqual(suites, {"CudaFill.", "FreeRanges."})
        unknown = tests("fill_test", "fil_test")
        self.assertEqual(unknown.returncode, 2)
        self.assertRegex(unknown.stderr, "no test stands in a file 'fil_test'; --files lists those there are\n$")

    def test_it_is_not_mistaken_for_a_pack_for_gpus(self):
        done = self.gpu_check()
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "^gpu-check: .* is for the emulator: run it with --on-emulator\n$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
