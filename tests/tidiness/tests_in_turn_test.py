#!/usr/bin/env python3
"""Tests scripts/tests_in_turn.py: two runs in a row take every test, and each takes those whose source changed."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import tests_in_turn  # noqa: E402

NAMES = [f"floor/test_{i}" for i in range(7)]


class TestsInTurn(unittest.TestCase):
    def test_two_runs_take_every_test_once(self):
        first, second = (tests_in_turn.in_turn(NAMES, number, set()) for number in (10, 11))
        self.assertEqual(sorted(first + second), NAMES)
        self.assertEqual(len(first), 4)

    def test_a_changed_test_is_in_both(self):
        changed = {"tests/floor/room/test_3.cpp", "scripts/test_4.py"}
        runs = [tests_in_turn.in_turn(NAMES, number, changed) for number in (0, 1)]
        self.assertTrue(all("floor/test_3" in run for run in runs))
        self.assertFalse(all("floor/test_4" in run for run in runs))


if __name__ == "__main__":
    unittest.main()
