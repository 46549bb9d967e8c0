"""Compares the completion for bash, sourced as bash sources it, with the program.

    python3 completion_test.py PROGRAM COMPLETION_FILE
"""
import subprocess
import sys
import tempfile
import unittest

PROGRAM, COMPLETION = sys.argv.pop(1), sys.argv.pop(1)

# Simulates bash when the user presses the tab key after the last word.
PRESS_TAB = """
source "$1" || exit 1
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_tessera && printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words):
    """The completions of the last word."""
    done = subprocess.run(["bash", "-c", PRESS_TAB, "bash", COMPLETION, PROGRAM, *words],
                          capture_output=True, text=True, check=True)
    assert done.stderr == "", done.stderr
    return sorted(line for line in done.stdout.splitlines() if line)


class Completion(unittest.TestCase):
    def test_subcommands(self):
        self.assertEqual(completed("la"), ["launch"])
        every = completed("")
        for name in ("train", "plan", "launch", "convert", "inspect", "verify", "generate", "tokenize", "encode",
                     "evaluate", "recipe", "env", "config", "test", "bench", "help", "version",
                     "--version", "--help"):
            self.assertIn(name, every)

    def test_options_are_the_subcommand_s(self):
        self.assertEqual(completed("launch", "--max"), ["--max-restarts"])
        self.assertEqual(completed("launch", "--standal"), [])  # without effect, so not in the help
        self.assertEqual(completed("train", "recipe.yaml", "--se"), ["--set"])
        self.assertEqual(completed("env", "--max"), [])

    def test_nested_subcommands(self):
        self.assertEqual(completed("config", "ch"), ["check"])
        self.assertEqual(completed("config", "--ke"), ["--keys"])
        self.assertEqual(completed("config", "explain", "--world"), ["--world-size"])
        self.assertEqual(completed("config", "check", ""), [])

    def test_values_of_options(self):
        self.assertEqual(completed("train", "recipe.yaml", "--device", ""), ["auto", "cpu", "cuda"])
        self.assertEqual(completed("train", "--device", "=", "cu"), ["cuda"])
        self.assertEqual(completed("train", "--device", "="), ["auto", "cpu", "cuda"])  # bash's last word is "="
        self.assertEqual(completed("evaluate", "folder", "--sharding_strategy", "NO"), ["NO_SHARD"])
        self.assertEqual(completed("evaluate", "--task", "p"), ["perplexity"])
        self.assertEqual(completed("convert", "a", "b", "--to", "h"), ["hf"])
        self.assertEqual(completed("plan", "--strategy", "al"), ["all"])
        self.assertIn("FULL_SHARD", completed("plan", "--strategy", ""))
        self.assertEqual(completed("plan", "--cluster", "h1"), ["h100"])
        self.assertEqual(completed("config", "default", "--mixed-precision", "b"), ["bf16"])
        self.assertEqual(completed("launch", "--nproc-per-node", ""), ["auto", "cpu", "gpu"])
        # Lists: the last element.
        self.assertEqual(completed("bench", "--precisions", "fp32,b"), ["fp32,bf16"])
        self.assertEqual(completed("bench", "--strategies", "dp,SHARD_G"), ["dp,SHARD_GRAD_OP"])
        # An option without a list of values, and a flag.
        self.assertEqual(completed("train", "--config-file", ""), [])
        self.assertEqual(completed("env", "--json", "--he"), ["--help"])

    def test_every_completed_value_of_an_option_is_valid(self):
        """The program refuses an unknown value and names the known ones."""
        for words in (["train", "x.yaml", "--device"], ["evaluate", "x", "--data", "x", "--task"],
                      ["convert", "x", "y", "--to"], ["bench", "x.yaml", "--strategies"], ["plan", "x.yaml", "--strategy"]):
            values = completed(*words, "")
            self.assertGreaterEqual(len(values), 3, words)
            for value in values:
                refusal = subprocess.run([PROGRAM, *words, value], capture_output=True, text=True).stderr
                self.assertNotRegex(refusal, "there are|must be|did you mean", value)

    def test_values_of_keys(self):
        self.assertEqual(completed("train", "--set", "sharding.sharding_strategy", "=", "NO"), ["NO_SHARD"])
        self.assertEqual(completed("train", "--set", "=", "train.optimizer", "="), ["adafactor", "adamw", "adamw8bit", "lion", "muon", "schedule_free_adamw", "sgd"])
        self.assertEqual(completed("train", "--set", "data.shuffle", "=", ""), ["false", "true"])
        self.assertEqual(completed("train", "--set", "sharding.loss_scale", "=", ""), ["dynamic"])
        self.assertEqual(completed("train", "--set", "train.lr", "=", ""), [])
        self.assertEqual(completed("recipe", "--set", "data.train", "=", ""), [])

    def test_the_program_of_launch(self):
        self.assertEqual(completed("launch", "--nproc-per-node", "2", "--", ""), ["tessera"])
        self.assertEqual(completed("launch", "--", "tessera", "tr"), ["train"])
        self.assertEqual(completed("launch", "--", "build/tessera", "train", "--dev"), ["--device"])
        self.assertEqual(completed("launch", "--nnodes", "1", "tessera", "train", "--device", "cu"), ["cuda"])
        self.assertEqual(completed("launch", "--", "tessera", "train", "--set", "train.optimizer", "=", "sg"), ["sgd"])
        self.assertEqual(completed("launch", "--", "python3", "tessera", "--max"), [])

    def test_help_takes_subcommands(self):
        self.assertEqual(completed("help", "ver"), ["verify", "version"])
        self.assertEqual(completed("help", "config", "ex"), ["explain"])

    def test_keys_have_their_section(self):
        self.assertEqual(completed("train", "recipe.yaml", "--set", "train.lr_dec"),
                         ["train.lr_decay_start=", "train.lr_decay_steps="])
        # bash cuts --set=KEY into three words.
        self.assertEqual(completed("train", "--set", "=", "checkpoint.ev"), ["checkpoint.every="])
        keys = set(completed("train", "--set", ""))
        table = subprocess.run([PROGRAM, "recipe", "--keys"], capture_output=True, text=True, check=True).stdout
        rows = [line for line in table.split("### a data set")[0].splitlines() if line.startswith("| `")]
        self.assertGreater(len(rows), 40)
        # Keys that several architectures have are in several tables.
        self.assertEqual({key.split(".", 1)[1] for key in keys}, {row.split("`")[1] + "=" for row in rows})

    def test_every_completed_key_is_valid(self):
        """The program refuses a key that it does not know as unknown."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as recipe:
            recipe.write("data: {train: x}\n")
            recipe.flush()
            for key in set(completed("recipe", "--set", "")):
                refusal = subprocess.run([PROGRAM, "recipe", recipe.name, "--set", key + "0"],
                                         capture_output=True, text=True).stderr
                self.assertNotIn("unknown", refusal, key)
                self.assertNotIn("group of keys", refusal, key)

    def test_other_words_are_files(self):
        """bash completes file names where the function has no completion."""
        self.assertEqual(completed("train", ""), [])
        self.assertEqual(completed("train", "--set", "data.train", "=", "cor"), [])
        self.assertEqual(completed("launch", "--", "program", "--max"), [])


if __name__ == "__main__":
    unittest.main()
