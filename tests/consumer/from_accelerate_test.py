"""What docs/from-accelerate.md says of the keys of an Accelerate configuration is what the program does with them.

    python3 from_accelerate_test.py TESSERA REPOSITORY
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

tessera, root = sys.argv[1], pathlib.Path(sys.argv[2])
CONFIGURATION_ERROR = 3


def rows():
    """(key, values that are taken, values that are refused) of the table of keys."""
    text = (root / "docs/from-accelerate.md").read_text(encoding="utf-8")
    section = text.split("## Keys of `fsdp_config`")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            yield cells[0].strip("`"), re.findall("`(.*?)`", cells[1]), re.findall("`(.*?)`", cells[2])


class FromAccelerate(unittest.TestCase):
    def code_and_error(self, key, value):
        with tempfile.TemporaryDirectory() as folder:
            recipe = pathlib.Path(folder) / "recipe.yaml"
            recipe.write_text(f"data: {{train: corpus.txt}}\nsharding:\n  {key}: {value}\n", encoding="utf-8")
            ended = subprocess.run([tessera, "recipe", recipe], capture_output=True, text=True, timeout=60, check=False)
            return ended.returncode, ended.stderr

    def test_keys(self):
        table = list(rows())
        self.assertGreater(len(table), 10)
        for key, taken, refused in table:
            self.assertTrue(taken or refused, key)
            for value in taken:
                with self.subTest(key=key, taken=value):
                    self.assertEqual(self.code_and_error(key, value), (0, ""))
            for value in refused:
                with self.subTest(key=key, refused=value):
                    code, error = self.code_and_error(key, value)
                    self.assertEqual(code, CONFIGURATION_ERROR, error)
                    self.assertIn(key.removeprefix("fsdp_"), error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
