"""Trains examples/sequence_model on ranks, stops it, resumes it and evaluates it, as a reader of docs/cpp-api.md would.

    python3 sequence_model_test.py TESSERA SEQUENCE_MODEL
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

tessera, sequence_model = sys.argv[1:3]
ONE_SEQUENCE = 1 / 28 + 0.001  # of the held-out sequences


def run(*command):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def train(ranks, folder, steps):
    """The lines "step ..." of a run, and its accuracy."""
    ended = run(tessera, "launch", "--nproc-per-node", str(ranks), "--",
                sequence_model, "train", str(folder), str(steps))
    if ended.returncode != 0:
        raise AssertionError(f"training ended with {ended.returncode}: {ended.stderr}")
    lines = [line for line in ended.stdout.splitlines() if line.startswith("step ")]
    return lines, accuracy_of(ended.stdout)


def accuracy_of(text):
    return float(re.search(r"^accuracy (\S+)", text, re.MULTILINE).group(1))


class SequenceModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def test_resumes_to_the_bit_and_on_another_world_size(self):
        straight, _ = train(2, self.path / "straight", 60)
        self.assertEqual(len(straight), 60)
        begun, _ = train(2, self.path / "stopped", 25)  # in the middle of an epoch
        resumed, _ = train(2, self.path / "stopped", 60)
        self.assertEqual(begun + resumed, straight)

        more, accuracy = train(4, self.path / "stopped", 150)
        self.assertTrue(more[0].startswith("step 61 "), more[0])
        self.assertGreater(accuracy, 0.8)
        kept = sorted(path.name for path in (self.path / "stopped").glob("step-*"))
        self.assertEqual(kept, ["step-100", "step-150"])

        evaluated = run(sequence_model, "evaluate", str(self.path / "stopped"), "3")
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
        self.assertLess(abs(accuracy_of(evaluated.stdout) - accuracy), ONE_SEQUENCE)

    def test_plans_without_ranks(self):
        bytes_of = []
        for ranks in ("1", "4"):
            planned = run(sequence_model, "plan", ranks)
            self.assertEqual(planned.returncode, 0, planned.stderr)
            self.assertIn("at most in backward", planned.stdout)
            bytes_of.append(int(planned.stdout.split()[0]))
        self.assertLess(bytes_of[1], bytes_of[0])

    def test_traces_a_step_of_all_ranks(self):
        file = self.path / "trace.json"
        traced = run(sequence_model, "trace", str(file), "4")
        self.assertEqual(traced.returncode, 0, traced.stderr)
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
        steps = [event for event in events if event["name"] == "step 5"]
        self.assertEqual([event["pid"] for event in steps], [0, 1, 2, 3])
        self.assertIn("waiting", traced.stdout)

    def test_failures_are_a_line_and_a_code(self):
        for arguments, code, said in ((("evaluate", str(self.path), "2"), 5, "there is no checkpoint"),
                                      (("evaluate", str(self.path), "two"), 2, "two is not a whole number"),
                                      (("train",), 2, "usage: ")):
            ended = run(sequence_model, *arguments)
            self.assertEqual(ended.returncode, code)
            self.assertIn(said, ended.stderr)
            self.assertEqual(ended.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
