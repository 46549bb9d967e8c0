#!/usr/bin/env python3
"""Tests gpu-check with planted faults: whatever a part does, the other parts run, and each fault is reported by name.

    gpu_check_test.py [ROOT]
"""
import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = os.path.realpath(sys.argv.pop(1)) if len(sys.argv) > 1 else os.path.realpath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
SCRIPTS = os.path.join(ROOT, "scripts")
sys.path.insert(0, SCRIPTS)

from gpu_check import commands as commands_module  # noqa: E402  the path comes first
from gpu_check import libraries, main, parts  # noqa: E402
from gpu_check.check import FAILED, NOT_RUN, PASSED, TIMED_OUT, Check, NotRun, Part  # noqa: E402
from gpu_check.commands import Commands  # noqa: E402
from gpu_check.installation import Installation, Unusable  # noqa: E402
from gpu_check.report import Report  # noqa: E402

# Ignores SIGTERM, and so does its child process; both first write their process ids.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                          "print('up', flush=True); time.sleep(600)"], stdout=subprocess.PIPE)
child.stdout.readline()
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
ENVIRONMENT = {"gpus": {"cuda:0": "a GPU"},
               "parts": {"CUDA": {"note": ""}, "cuBLASLt": {"note": "cuBLASLt 13.0.0 (/lib/libcublasLt.so.13)"},
                         "cuDNN": {"note": "cuDNN 9.19.0 (/lib/libcudnn.so.9)"},
                         "NCCL": {"note": "2.28.9 (/lib/libnccl.so.2)"}}}


def alive(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "report.json")

    def program(self, name, text):
        """Makes a program of the installation, in Python."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\n{text}")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def check(self, seconds=60, products="cublas", attention="cudnn"):
        with mock.patch.object(libraries, "on_this_machine", return_value={}):
            installation = Installation([self.folder], emulated=False, products=products, attention=attention)
        return Check(installation, Commands(dict(os.environ)), Report(self.path, {}), seconds, show=lambda text: None)

    def perform(self, check, *run):
        """Performs parts; returns {name: its entry in the report}, read from the file after each part."""
        for number, (name, seconds, function) in enumerate(run):
            check.perform(Part(name, seconds, "", function))
            self.assertEqual(len(self.written()), number + 1)
        return {part["part"]: part for part in self.written()}

    def written(self):
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)["parts"]

    def passing(self, check):
        check.command("fine", [sys.executable, "-c", "print('fine')"])

    def test_a_part_that_hangs_and_ignores_its_signal_times_out_and_others_run(self):
        numbers = os.path.join(self.folder, "numbers")
        began = time.monotonic()
        with mock.patch.object(commands_module, "GRACE_SECONDS", 0.5):
            result = self.perform(
                self.check(), ("before", 20, self.passing),
                ("hangs", 4, lambda check: check.command("stubborn", [sys.executable, "-c", STUBBORN, numbers])),
                ("after", 20, self.passing))
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual([result[name]["verdict"] for name in ("before", "hangs", "after")],
                         [PASSED, TIMED_OUT, PASSED])
        self.assertRegex(result["hangs"]["note"], "stubborn: not finished after 4 s")
        with open(numbers, encoding="utf-8") as file:
            for process in file.read().split():
                self.assertFalse(alive(process), "it was left behind")

    def test_processes_that_a_command_leaves_running_are_ended(self):
        done = Commands(dict(os.environ)).run(
            [sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"], 20)
        self.assertEqual(done.status, 0)
        self.assertFalse(alive(done.output.strip()))

    def test_a_cublaslt_that_cannot_be_loaded_fails_the_environment_by_name(self):
        described = json.loads(json.dumps(ENVIRONMENT))
        described["parts"]["cuBLASLt"]["note"] = ("our own kernels (no cuBLASLt: libcublasLt.so.13: cannot open shared "
                                                  "object file)")
        self.program("tessera", f"print({json.dumps(json.dumps(described))})")
        result = self.perform(self.check(), ("environment", 20, parts.environment))
        self.assertEqual(result["environment"]["verdict"], FAILED)
        self.assertRegex(result["environment"]["note"],
                         r"^cuBLASLt: products by our own kernels \(no cuBLASLt: libcublasLt.so.13: cannot open.*"
                         r"instead of cuBLASLt$")

    def test_a_cudnn_that_cannot_be_loaded_fails_unless_our_own_attention_is_requested(self):
        described = json.loads(json.dumps(ENVIRONMENT))
        described["parts"]["cuDNN"]["note"] = "our own kernels (no cuDNN: libcudnn.so.9: cannot open shared object file)"
        self.program("tessera", f"print({json.dumps(json.dumps(described))})")
        result = self.perform(self.check(), ("environment", 20, parts.environment))["environment"]
        self.assertEqual(result["verdict"], FAILED)
        self.assertRegex(result["note"], r"^cuDNN: attention by our own kernels \(no cuDNN: .* instead of cuDNN$")
        result = self.perform(self.check(attention="own"), ("environment", 20, parts.environment))["environment"]
        self.assertEqual(result["verdict"], PASSED)

    def test_the_environment_of_a_machine_with_everything_passes(self):
        self.program("tessera", f"print({json.dumps(json.dumps(ENVIRONMENT))})")
        result = self.perform(self.check(), ("environment", 20, parts.environment))
        self.assertEqual((result["environment"]["verdict"], result["environment"]["note"]), (PASSED, "a GPU"))

    def test_a_machine_without_a_gpu_fails_with_the_reason(self):
        described = {**ENVIRONMENT, "gpus": {}, "parts": {**ENVIRONMENT["parts"], "CUDA": {"note": "no NVIDIA driver"}}}
        self.program("tessera", f"print({json.dumps(json.dumps(described))})")
        result = self.perform(self.check(), ("environment", 20, parts.environment))
        self.assertEqual((result["environment"]["verdict"], result["environment"]["note"]),
                         (FAILED, "GPU: no NVIDIA driver"))

    def test_a_figure_with_other_products_than_requested_fails(self):
        rows = [{"tokens_per_s": 1.0, "matrix_products": "our own kernels (no cuBLASLt: gone)"}]
        verdicts = {}
        for products in ("cublas", "own"):
            check = self.check(products=products)
            verdicts[products] = self.perform(check, ("training", 20, lambda check: self.figures(check, rows)))
        self.assertEqual(verdicts["cublas"]["training"]["verdict"], FAILED)
        self.assertIn("products by our own kernels (no cuBLASLt: gone)", verdicts["cublas"]["training"]["note"])
        self.assertEqual(verdicts["own"]["training"]["verdict"], PASSED)

    def test_a_figure_by_cublaslt_with_products_that_it_refused_fails(self):
        for refused, verdict in ((0, PASSED), (3, FAILED)):
            rows = [{"tokens_per_s": 1.0, "matrix_products": "cuBLASLt 13.0.0", "products_by_own_kernels": refused}]
            check = self.check()
            result = self.perform(check, ("training", 20, lambda check, rows=rows: self.figures(check, rows)))["training"]
            self.assertEqual(result["verdict"], verdict)
            self.assertEqual("our own kernels computed 3 products" in result["note"], refused == 3)
            os.remove(os.path.join(self.folder, "rows"))

    def test_a_figure_with_attention_that_cudnn_refused_fails_for_16_bit_types(self):
        for dtype, own, verdict in (("bfloat16", 0, PASSED), ("bfloat16", 2, FAILED), ("float32", 2, PASSED)):
            rows = [{"tokens_per_s": 1.0, "attention_by": "cuDNN 9.19.0", "attention_by_own_kernels": own, "dtype": dtype}]
            check = self.check()
            result = self.perform(check, ("training", 20, lambda check, rows=rows: self.figures(check, rows)))["training"]
            self.assertEqual(result["verdict"], verdict, (dtype, own))
            self.assertEqual("computed 2 calls of attention" in result["note"], verdict == FAILED)
            os.remove(os.path.join(self.folder, "rows"))

    def environments(self, *names):
        """What the commands of a test were given: a list of {name: value}."""
        path = os.path.join(self.folder, "environments")
        with open(path, encoding="utf-8") as file:
            return [{name: json.loads(line).get(name) for name in names} for line in file]

    def writes_its_environment(self):
        path = os.path.join(self.folder, "environments")
        return (f"import json, os, sys\nwith open({path!r}, 'a') as file:\n"
                "  print(json.dumps(dict(os.environ)), file=file)\n")

    def test_pytorch_has_the_environment_of_the_user(self):
        self.program("python3", self.writes_its_environment())
        check = self.check()
        check.installation.data = self.folder
        with mock.patch.dict(os.environ, {"PATH": self.folder + ":" + os.environ["PATH"], "LD_LIBRARY_PATH": "/users"}), \
                mock.patch.dict(check.commands.environment, {"LD_LIBRARY_PATH": "/pack", "CUDA_MODULE_LOADING": "EAGER"}):
            self.perform(check, ("training", 20, lambda check: parts.pytorch(check, "124M", 32, self.folder)))
        self.assertEqual(self.environments("LD_LIBRARY_PATH", "CUDA_MODULE_LOADING"),
                         [{"LD_LIBRARY_PATH": "/users", "CUDA_MODULE_LOADING": "LAZY"}] * 2)

    def test_the_sanitizers_see_our_own_kernels_alone_and_races_first(self):
        self.program("compute-sanitizer", self.writes_its_environment() + "print('ERROR SUMMARY: 0', sys.argv[1:])")
        self.program("gpu_tests", "")
        with mock.patch.dict(os.environ, {"PATH": self.folder + ":" + os.environ["PATH"]}):
            result = self.perform(self.check(), ("sanitizers", 60, parts.sanitizers))["sanitizers"]
        self.assertEqual(result["verdict"], PASSED)
        self.assertEqual(result["rows"][0]["row"].split()[0], "racecheck")
        for environment in self.environments("CUDA_MODULE_LOADING", "TESSERA_CUDA_MATMUL", "TESSERA_CUDA_ATTENTION"):
            self.assertEqual(environment, {"CUDA_MODULE_LOADING": "LAZY", "TESSERA_CUDA_MATMUL": "own",
                                           "TESSERA_CUDA_ATTENTION": "own"})

    def test_a_build_without_the_program_of_gpu_tests_says_what_makes_it(self):
        self.program("build/tessera", "")
        with mock.patch.object(libraries, "on_this_machine", return_value={}), \
                self.assertRaisesRegex(Unusable, "no program gpu_tests: run scripts/gpu-compile first"):
            Installation.of_build(self.folder, emulated=False, products="cublas")

    def figures(self, check, rows, end=""):
        path = os.path.join(self.folder, "rows")
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        script = f"import sys, time\nfor line in {lines!r}:\n  print(line, file=open({path!r}, 'a'))\n{end}"
        check.figures("row", [sys.executable, "-c", script], path, 20)

    def test_a_broken_row_fails_and_the_others_are_kept(self):
        rows = [{"kernel": "fill", "us": 1.0}, '{"kernel": "cast", "us": ', {"kernel": "matmul", "us": 3.0}]
        result = self.perform(self.check(), ("kernels", 20, lambda check: self.figures(check, rows)),
                              ("after", 20, self.passing))
        self.assertEqual((result["kernels"]["verdict"], result["after"]["verdict"]), (FAILED, PASSED))
        self.assertRegex(result["kernels"]["note"], r"^row 2: the row cannot be read .*cast")
        self.assertEqual([row.get("us") for row in result["kernels"]["rows"]], [1.0, None, 3.0])

    def test_a_row_is_on_disk_while_its_program_still_runs(self):
        seen = []

        def show(text):
            if "row 1" in text:
                seen.append(self.written()[-1]["rows"][-1].get("us"))

        check = self.check()
        check.show = show
        result = self.perform(check, ("kernels", 5, lambda check: self.figures(
            check, [{"us": 1.0}], "time.sleep(600)")))
        self.assertEqual(seen, [1.0])
        self.assertEqual(result["kernels"]["verdict"], TIMED_OUT)
        self.assertEqual(result["kernels"]["rows"][0]["us"], 1.0)

    def test_a_program_that_dies_or_is_missing_fails_with_its_message(self):
        dies = "import os, sys; print('the last words', flush=True); os.kill(os.getpid(), 11)"
        result = self.perform(
            self.check(), ("dies", 20, lambda check: check.command("it", [sys.executable, "-c", dies])),
            ("missing", 20, lambda check: check.command("it", [os.path.join(self.folder, "nothing")])),
            ("silent", 20, lambda check: self.figures(check, [])))
        self.assertEqual({name: part["verdict"] for name, part in result.items()},
                         dict.fromkeys(("dies", "missing", "silent"), FAILED))
        self.assertEqual(result["dies"]["note"], "it: signal 11: the last words")
        self.assertIn("No such file", result["missing"]["note"])
        self.assertEqual(result["silent"]["note"], "row: it wrote no figures")

    def test_an_error_in_a_part_itself_does_not_affect_others(self):
        with contextlib.redirect_stderr(io.StringIO()):
            result = self.perform(self.check(), ("faulty", 20, lambda check: {}["gone"]), ("after", 20, self.passing))
        self.assertEqual((result["faulty"]["verdict"], result["after"]["verdict"]), (FAILED, PASSED))
        self.assertEqual(result["faulty"]["note"], "gpu-check itself: KeyError: 'gone'")

    def test_parts_without_time_are_not_run_and_reported(self):
        def cannot(check):
            raise NotRun("there is no such tool")

        result = self.perform(self.check(seconds=2), ("late", 20, self.passing))
        self.assertEqual((result["late"]["verdict"], result["late"]["note"]), (NOT_RUN, "no time was left"))
        result = self.perform(self.check(), ("cannot", 20, cannot))
        self.assertEqual((result["cannot"]["verdict"], result["cannot"]["note"]), (NOT_RUN, "there is no such tool"))

    def test_an_interruption_ends_the_running_part_and_keeps_the_report(self):
        numbers = os.path.join(self.folder, "numbers")
        script = (f"import sys; sys.path.insert(0, {SCRIPTS!r})\n"
                  "from gpu_check import libraries, main, parts\n"
                  "from gpu_check.check import Part\n"
                  f"main.PARTS = (Part('hangs', 60, '', lambda check: check.command('stubborn', [sys.executable, '-c', "
                  f"{STUBBORN!r}, {numbers!r}])),)\n"
                  f"sys.exit(main.main(['--pack', {self.pack()!r}, '--json', {self.path!r}], {self.folder!r}))")
        process = subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not os.path.exists(numbers) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual([part["verdict"] for part in self.written()], ["running"])
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 128 + signal.SIGTERM)
        self.assertEqual(self.written()[0]["note"], "a signal ended the run")
        with open(numbers, encoding="utf-8") as file:
            self.assertFalse(any(map(alive, file.read().split())))

    def pack(self, emulated=False):
        folder = os.path.join(self.folder, "pack")
        os.makedirs(os.path.join(folder, "bin"), exist_ok=True)
        with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
            json.dump({"commit": "c", "architecture": "90", "emulated": emulated, "files": {}}, file)
        self.program("pack/bin/tessera", "")
        return folder

    def test_packs_of_the_other_kind_and_other_folders_are_refused(self):
        for packed, asked, words in ((False, True, "for GPUs, not for the emulator"),
                                     (True, False, "run it with --on-emulator")):
            with self.assertRaisesRegex(Unusable, words):
                Installation.of_pack(self.pack(emulated=packed), emulated=asked, products="cublas")
        with self.assertRaisesRegex(Unusable, "is not a pack of scripts/gpu-pack"):
            Installation.of_pack(self.folder, emulated=False, products="cublas")

    def library(self, *place):
        path = os.path.join(self.folder, *place)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "wb").close()
        return path

    def test_libraries_are_taken_from_the_first_place_that_has_them(self):
        packed = self.library("nvidia", "cu13", "lib", "libcublasLt.so.13")
        nccl = self.library("nvidia", "nccl", "lib", "libnccl.so.2")
        folders = [("Python's packages", os.path.dirname(packed)), ("Python's packages", os.path.dirname(nccl))]
        self.assertEqual(libraries.find({}, folders), {"cuBLASLt": {"path": packed, "by": "Python's packages"},
                                                       "NCCL": {"path": nccl, "by": "Python's packages"}})
        own = self.library("system", "libcublasLt.so.13")
        cache = {"libcublasLt.so.13": own, "libnccl.so.2": os.path.join(self.folder, "gone", "libnccl.so.2")}
        self.assertEqual(libraries.find(cache, folders)["cuBLASLt"], {"path": own, "by": "the loader"})
        self.assertEqual(libraries.find(cache, folders)["NCCL"]["path"], nccl)
        named = self.library("named", "libcublasLt.so.12")
        self.assertEqual(libraries.find({}, [("LD_LIBRARY_PATH", os.path.dirname(named))]),
                         {"cuBLASLt": {"path": named, "by": "LD_LIBRARY_PATH"}})

    def test_the_first_cudnn_that_is_new_enough_is_taken(self):
        system = self.library("system", "libcudnn.so.9")
        packed = self.library("nvidia", "cudnn", "lib", "libcudnn.so.9")
        versions = {system: 91400, packed: 91900}
        folders = [("Python's packages", os.path.dirname(packed))]
        cache = {"libcudnn.so.9": system}
        for oldest, path in ((91400, packed), (91600, system), (0, packed)):
            versions[system] = oldest
            self.assertEqual(libraries.find(cache, folders, versions.get)["cuDNN"]["path"], path)
        versions[packed] = 91500
        self.assertEqual(libraries.find(cache, folders, versions.get)["cuDNN"]["path"], system)

    def test_packages_of_python_are_among_the_places(self):
        packed = self.library("lib", "python3.12", "site-packages", "nvidia", "cu13", "lib", "libcublasLt.so.13")
        with mock.patch.dict(os.environ, VIRTUAL_ENV=self.folder):
            self.assertIn(("Python's packages", os.path.dirname(packed)), list(libraries.places()))

    def test_every_part_can_be_called_alone_in_time(self):
        self.assertEqual([part.name for part in parts.PARTS][:3], ["environment", "smoke", "training"])
        self.assertEqual(parts.PARTS[-1].name, "sanitizers")
        for part in parts.PARTS:
            self.assertLess(part.seconds, 120, part.name)
        self.assertEqual([part.name for part in main.parse(["nccl"], self.folder).parts], ["nccl"])
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            main.parse(["speed"], self.folder)
        self.assertIn("no part 'speed'; there are: environment", said.getvalue())


if __name__ == "__main__":
    unittest.main(verbosity=2)
