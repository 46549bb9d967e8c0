"""The programs of bench/ answer --help, and refuse unknown arguments in one line.

    python3 benchmark_options_test.py PROGRAM ...
"""
import pathlib
import subprocess
import sys
import unittest

PROGRAMS = sys.argv[1:]
del sys.argv[1:]


def run(program, *arguments):
    # A program that ignored its arguments would measure for minutes.
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=20)


class Options(unittest.TestCase):
    def test_help_is_answered(self):
        self.assertGreaterEqual(len(PROGRAMS), 8)
        for program in PROGRAMS:
            with self.subTest(program):
                done = run(program, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout.startswith(f"usage: {pathlib.Path(program).name}"), done.stdout)
                self.assertEqual(run(program, "-h").stdout, done.stdout)

    def test_unknown_arguments_are_refused_in_a_line(self):
        for program in PROGRAMS:
            for words in (["--no-such-option", "3"], ["--no-such-option"]):
                with self.subTest(program, words=words):
                    done = run(program, *words)
                    self.assertEqual((done.returncode, done.stdout), (2, ""))
                    self.assertEqual(done.stderr, f"{pathlib.Path(program).name}: unknown option --no-such-option; "
                                                  f"{pathlib.Path(program).name} --help lists the options\n")

    def test_invalid_values_are_refused(self):
        for program, words, why in (
                ("train_step_bench", ["--rounds", "3x"], "--rounds cannot be '3x'"),
                ("train_step_bench", ["--rounds", "0"], "--rounds cannot be '0'"),
                ("train_step_bench", ["--rounds"], "--rounds needs a value"),
                ("train_step_bench", ["--dtype", "float16"], "--dtype cannot be 'float16'"),
                ("train_step_bench", ["7"], "unexpected argument '7'"),
                ("hosts_bench", ["sixty"], "MIB cannot be 'sixty'"),
                ("tokenizers_bench", ["text.txt"], "TOKENIZER... is missing"),
                ("overlap_bench", ["--strategy", "ddp"], "--strategy cannot be 'ddp'")):
            with self.subTest(program, words=words):
                path = next(path for path in PROGRAMS if pathlib.Path(path).name == program)
                done = run(path, *words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stderr, f"{program}: {why}; {program} --help lists the options\n")


if __name__ == "__main__":
    unittest.main()
