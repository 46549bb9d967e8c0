"""Every kernel of the table has a row in kernels_bench, every row runs and reports its ratio to its bound; unknown
options are refused.

    python3 benchmark_rows_test.py KERNELS_BENCH REPOSITORY [Names | Runs]
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BENCH, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
WITHOUT_BOUND = re.compile(r"^collective/barrier/")


def kernels():
    registry = (ROOT / "kernels/registry.h").read_text(encoding="utf-8")
    return re.findall(r"^ *X\((\w+), *\w+\)", registry, re.MULTILINE)


class Names(unittest.TestCase):
    def test_every_kernel_has_a_row(self):
        listed = subprocess.run([BENCH, "--benchmark_list_tests"], capture_output=True, text=True, check=True).stdout
        first = {line.split("/")[0] for line in listed.splitlines()}
        self.assertGreater(len(kernels()), 30)
        self.assertEqual([], [name for name in kernels() if name not in first])
        self.assertEqual(set(), first - set(kernels()) - {"head", "collective", "checkpoint", "grouped_linear"}, "rows of no kernel")

    def test_unknown_options_are_refused(self):
        for argument in ("--rounds=0", "--rounds=many", "--ranks=-1", "--folder=/no/such/folder", "--colour=blue"):
            done = subprocess.run([BENCH, argument, "--benchmark_list_tests"], capture_output=True, text=True, check=False)
            self.assertEqual(2, done.returncode, argument)
            self.assertIn(argument.split("=")[0], done.stderr)


class Runs(unittest.TestCase):
    def test_every_row_runs_and_has_its_ratio(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "kernels.json"
            subprocess.run([BENCH, "--rounds=1", "--state-mib=1", f"--folder={folder}", f"--benchmark_out={out}",
                            "--benchmark_out_format=json"], check=True, stdout=subprocess.DEVNULL)
            report = json.loads(out.read_text(encoding="utf-8"))
            self.assertEqual(["kernels.json"], [path.name for path in pathlib.Path(folder).iterdir()])
        self.assertIn("onednn", report["context"])
        for row in report["benchmarks"]:
            with self.subTest(row["name"]):
                self.assertFalse(row.get("error_occurred"), row.get("error_message"))
                self.assertGreater(row["real_time"], 0)
                if not WITHOUT_BOUND.match(row["name"]):
                    self.assertGreater(row["of_bound"], 0)
                    self.assertGreater(row["bytes_per_second"], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
