"""Trains an example under every strategy, and resumes it on other ranks, as a reader of docs/cpp-api.md would.

    python3 example_bits_test.py TESSERA EXAMPLE RANKS

Runs begin on two ranks, and the last one resumes on RANKS. The example takes a strategy, a folder and a number of steps.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

tessera, example = sys.argv[1:3]
other_ranks = int(sys.argv[3])
STRATEGIES = ["NO_SHARD", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]


def train(strategy, *more, ranks=2):
    """The printed steps, in which numbers are exact."""
    ended = subprocess.run([tessera, "launch", "--nproc-per-node", str(ranks), "--", example, strategy,
                            *map(str, more)], capture_output=True, text=True, timeout=120, check=False,
                           env=dict(os.environ, OMP_NUM_THREADS="1"))
    if ended.returncode != 0:
        raise AssertionError(f"{strategy} ended with {ended.returncode}: {ended.stderr}")
    return [line for line in ended.stdout.splitlines() if line.startswith("step ")]


def loss_of(line):
    return float.fromhex(re.search(r" loss (\S+)", line).group(1))


class ExampleBits(unittest.TestCase):
    def test_has_the_same_bits_under_every_strategy(self):
        first = train(STRATEGIES[0])
        self.assertEqual(len(first), 20)
        self.assertLess(loss_of(first[-1]), 0.5 * loss_of(first[0]))
        for strategy in STRATEGIES[1:]:
            self.assertEqual(train(strategy), first, strategy)

    def test_resumes_to_the_bit_and_on_another_world_size(self):
        straight = train("FULL_SHARD", "", 30)
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            begun = train("FULL_SHARD", out, 8)
            resumed = train("SHARD_GRAD_OP", out, 20)
            self.assertEqual(begun + resumed, straight[:20])
            again = train("FULL_SHARD", out, 30, ranks=other_ranks)
            self.assertEqual(len(again), 10)
            for line, wanted in zip(again, straight[20:]):  # sums of other ranks are rounded differently
                self.assertEqual(line.split()[:2], wanted.split()[:2])
                self.assertAlmostEqual(loss_of(line), loss_of(wanted), delta=0.05 * loss_of(wanted))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
