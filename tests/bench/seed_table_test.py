"""The script for the data of bench/seed-table*.yaml writes the files that these recipes read, from the same folder.

    python3 seed_table_test.py REPOSITORY
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(sys.argv.pop(1)).resolve() / "bench"


class SeedTable(unittest.TestCase):
    def test_the_recipes_read_the_files_of_the_script(self):
        with tempfile.TemporaryDirectory(prefix="tessera-seed-table-") as folder:
            subprocess.run([sys.executable, "-B", BENCH / "seed_table_data.py", "--nli", "4", "--sts", "4"], cwd=folder,
                           check=True, capture_output=True)
            for recipe in ("seed-table.yaml", "seed-table-small.yaml"):
                named = re.findall(r"(?:file|tokenizer): (build/[^,\s]+)", (BENCH / recipe).read_text(encoding="utf-8"))
                self.assertGreaterEqual(len(named), 3, recipe)
                for path in named:
                    self.assertTrue(pathlib.Path(folder, path).exists(), f"{recipe}: {path}")


if __name__ == "__main__":
    unittest.main()
