"""The program treats the keys of an Accelerate configuration as docs/from-accelerate.md says.

    python3 from_accelerate_test.py TESSERA REPOSITORY
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

tessera, root = sys.argv[1], pathlib.Path(sys.argv[2])
CONFIGURATION_ERROR = 3
TEXT = (root / "docs/from-accelerate.md").read_text(encoding="utf-8")


class Row:
    """A key with its accepted and refused values, and the recipe key that replaces it."""

    def __init__(self, group, cells):
        self.group = group
        self.key = cells[0].strip("`")
        self.version = cells[1]
        self.taken, self.refused = (re.findall("`(.*?)`", cell) for cell in cells[2:4])
        self.becomes = cells[4].strip("`")

    def file(self, value):
        entry = f"{self.key}: {value}\n"
        if self.key == "distributed_type":
            return entry
        if self.group == "":
            return "distributed_type: FSDP\n" + entry
        lines = f"distributed_type: FSDP\n{self.group}:\n"
        if self.key.startswith("fsdp_") and self.key != "fsdp_version":
            second = self.version == "2" or self.key == "fsdp_reshard_after_forward"
            lines += f"  fsdp_version: {2 if second else 1}\n"
        return lines + "  " + entry


def rows():
    group = ""
    for line in TEXT.split("## Keys")[1].split("\n## ")[0].splitlines():
        if line.startswith("### "):
            named = re.search("`(.*)`", line)
            group = named.group(1) if named else ""
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].startswith("`"):
            yield Row(group, cells)


class FromAccelerate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.recipe = self.write("recipe.yaml", "data: {train: corpus.txt}\n")

    def write(self, name, text):
        path = pathlib.Path(self.folder.name) / name
        path.write_text(text, encoding="utf-8")
        return path

    def run_program(self, *words):
        return subprocess.run([tessera, *words], capture_output=True, text=True, timeout=60, check=False)

    def test_every_row(self):
        table = list(rows())
        self.assertGreater(len(table), 60)
        for row in table:
            self.assertTrue(row.taken, row.key)
            for value in row.taken:
                with self.subTest(key=row.key, taken=value):
                    checked = self.run_program("config", "check", "--world-size", "4",
                                               self.write("a.yaml", row.file(value)))
                    self.assertEqual((checked.returncode, checked.stderr), (0, ""))
            for value in row.refused:
                with self.subTest(key=row.key, refused=value):
                    checked = self.run_program("config", "check", self.write("a.yaml", row.file(value)))
                    self.assertEqual(checked.returncode, CONFIGURATION_ERROR, checked.stdout)
                    self.assertRegex(checked.stderr, r"^tessera: error: .*a\.yaml:\d+: .*\n$")

    def test_the_replacements_are_keys_of_the_recipe(self):
        reference = self.run_program("recipe", "--keys").stdout
        keys = set()
        section = ""
        for line in reference.splitlines():
            if line.startswith("### "):
                section = re.match(r"### (\w+)", line).group(1)
            elif line.startswith("| `"):
                keys.add(f"{section}.{line.split('`')[1]}")
        named = [row.becomes for row in rows() if re.fullmatch(r"\w+\.\w+", row.becomes)]
        self.assertGreater(len(named), 15)
        self.assertEqual(set(named) - keys, set())

    def test_a_recipe_may_have_fsdp_keys(self):
        for row in rows():
            if not row.becomes.startswith("sharding.") or row.group != "fsdp_config":
                continue
            if row.key in ("fsdp_reshard_after_forward", "fsdp_activation_checkpointing_offload"):
                continue  # the recipe has the strategy, and activation_offload
            for value in row.taken:
                for name in (row.key, row.key.removeprefix("fsdp_")):
                    with self.subTest(key=name, value=value):
                        recipe = self.write("r.yaml", f"data: {{train: corpus.txt}}\nsharding: {{{name}: '{value}'}}\n"
                                            if "," in value else
                                            f"data: {{train: corpus.txt}}\nsharding: {{{name}: {value}}}\n")
                        ended = self.run_program("recipe", recipe)
                        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_a_file_overrides_the_recipe_and_the_command_line_overrides_both(self):
        recipe = self.write("r.yaml", "data: {train: corpus.txt}\nsharding: {sharding_strategy: NO_SHARD}\n")
        config = self.write("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2}\n")

        def strategy(*more):
            ended = self.run_program("recipe", recipe, "--config-file", config, *more)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            return json.loads(ended.stdout)["sharding"]["sharding_strategy"], ended.stderr
        value, said = strategy()
        self.assertEqual(value, "SHARD_GRAD_OP")
        self.assertRegex(said, r"a\.yaml:2: fsdp_sharding_strategy: 2 overrides .*r\.yaml:2")
        self.assertEqual(strategy("--set", "sharding.sharding_strategy=FULL_SHARD")[0], "FULL_SHARD")

    def test_commands_of_the_table(self):
        """Each spelling of torchrun that the table lists as accepted is accepted."""
        text = TEXT.split("| `torchrun` | `tessera launch` |")[1].split("\n\n")[0]
        self.assertIn("--standalone", text)
        for words in (["--standalone", "--nproc_per_node", "2"], ["--nnodes", "1", "--node-rank", "0"],
                      ["--no-python", "--role", "x"], ["--rdzv-id", "5"], ["--rdzv_backend", "c10d"],
                      ["--rdzv-endpoint", "localhost:0"], ["--rdzv-conf", "a=1"], ["--monitor-interval", "1"],
                      ["--start-method", "spawn"], ["--max-restarts", "0"], ["--master-addr", "127.0.0.1"],
                      ["--tee", "3"], ["--tee"], ["--nproc-per-node", "cpu"], ["--nproc-per-node", "auto"]):
            with self.subTest(words=words):
                for word in words[:1]:
                    self.assertIn(word.replace("_", "-"), text)
                ended = self.run_program("launch", *words, "true")
                self.assertEqual(ended.returncode, 0, ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
