"""A user's program that fails under `tessera launch` reports the error in the same way as `tessera`.

    python3 own_program_error_test.py PROGRAM EXAMPLE
"""
import subprocess
import sys
import unittest

PROGRAM, EXAMPLE = sys.argv.pop(1), sys.argv.pop(1)


class OwnProgramError(unittest.TestCase):
    def test_an_error_is_one_line_and_the_exit_code_of_its_kind(self):
        done = subprocess.run([PROGRAM, "launch", "--nproc-per-node", "2", "--", EXAMPLE, "/dev/null/out"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("tessera: error: "), done.stderr)
        self.assertIn("/dev/null/out", done.stderr)


if __name__ == "__main__":
    unittest.main()
