#!/usr/bin/env python3
"""Tests scripts/compile_alone.py with the compiler: a source that leans on another's includes is found, each time, and
one that compiled before is read again when a header changes."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "compile_alone.py")


class CompileAlone(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("one.h", "using Number = int;\n")
        self.write("one.cpp", '#include "one.h"\nNumber one = 1;\n')
        self.write("build/compile_commands.json", json.dumps(
            [{"directory": os.path.join(self.folder, "build"), "file": os.path.join(self.folder, name + ".cpp"),
              "command": f"c++ -I{self.folder} -o {name}.o"} for name in ("one", "two")]))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_script(self):
        """(exit status, what it says of errors)"""
        done = subprocess.run(
            [sys.executable, "-B", SCRIPT, "--build", "build", "--jobs", "2", "--passed", "passed", "one.cpp", "two.cpp"],
            cwd=self.folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    def test_a_source_without_its_include_is_found_each_time(self):
        self.write("two.cpp", "Number two = 2;\n")
        for _ in range(2):
            code, said = self.run_script()
            self.assertEqual(code, 1)
            self.assertIn("two.cpp does not compile by itself", said)
            self.assertNotIn("one.cpp does not", said)

    def test_a_changed_header_counts(self):
        self.write("two.cpp", '#include "one.h"\nNumber two = 2;\n')
        self.assertEqual(self.run_script(), (0, ""))
        self.assertEqual(self.run_script(), (0, ""))
        self.write("one.h", "using Integer = int;\n")
        code, said = self.run_script()
        self.assertEqual(code, 1)
        self.assertIn("one.cpp does not compile", said)
        self.assertIn("two.cpp does not compile", said)


if __name__ == "__main__":
    unittest.main()
