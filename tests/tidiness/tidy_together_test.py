#!/usr/bin/env python3
"""Tests scripts/tidy_together.py with a stand-in for clang-tidy: findings are reported at their place, and a finding in
joined sources counts only if one of them has it by itself; what passed is not checked again until something changes."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "tidy_together.py")
# Finds `bad` in a line, and `shadow` in the second of two lines; does not compile a file that contains `name` twice.
CHECKER = """#!{python}
import sys
if sys.argv[-1] == "--version":
    sys.exit(0)
path = sys.argv[-1]
open("checked", "a").write("once" + chr(10))
lines = open(path).read().split(chr(10))
found = [f"{{path}}:{{i}}:1: warning: bad" for i, line in enumerate(lines, 1) if "bad" in line]
if sum("shadow" in line for line in lines) > 1:
    found += [f"{{path}}:1:1: warning: hides another"]
if sum("name" in line for line in lines) > 1:
    found = [f"{{path}}:1:1: error: ambiguous [clang-diagnostic-error]"]
print(chr(10).join(found))
sys.exit(1 if found else 0)
"""
# Lists what every source includes.
COMPILER = """#!{python}
import os, sys
if not os.path.exists("header.h"):
    sys.exit(1)
print("joined.o:", sys.argv[-1], chr(92) + chr(10), "header.h")
"""


class TidyTogether(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in (("checker", CHECKER), ("compiler", COMPILER)):
            self.write(name, text.format(python=sys.executable))
            os.chmod(os.path.join(self.folder, name), 0o755)
        self.options = []

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def check(self, **sources):
        for name, text in sources.items():
            self.write(name + ".cpp", text)
        self.write("compile_commands.json", json.dumps(
            [{"directory": self.folder, "command": f"c++ -o {name}.o", "file": os.path.join(self.folder, name + ".cpp")}
             for name in sources]))
        done = subprocess.run(
            [sys.executable, "-B", SCRIPT, "--tool", "./checker", "--build", ".", *self.options,
             *(name + ".cpp" for name in sources)],
            cwd=self.folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip()

    def test_a_finding_is_reported_where_it_stands(self):
        self.assertEqual(self.check(a="good\ngood\n", b="good\nbad\n"), (1, "b.cpp:2:1: warning: bad"))

    def test_tidy_sources_pass(self):
        self.assertEqual(self.check(a="good\n", b="good\n"), (0, ""))

    def test_sources_that_use_one_name_are_read_apart(self):
        self.assertEqual(self.check(a="name\n", b="name\n"), (0, ""))
        self.assertEqual(self.check(a="name\n", b="name\nbad\n"), (1, "b.cpp:2:1: warning: bad"))

    def test_a_name_that_hides_one_of_another_source_is_not_a_finding(self):
        self.assertEqual(self.check(a="shadow\n", b="shadow\n"), (0, ""))
        self.assertEqual(self.check(a="good\n", b="shadow\nshadow\n"), (1, "b.cpp:1:1: warning: hides another"))

    def test_a_source_that_does_not_compile_by_itself_is_a_finding(self):
        code, said = self.check(a="name\nname\n", b="name\n")
        self.assertEqual((code, said), (1, "a.cpp:1:1: error: ambiguous [clang-diagnostic-error]"))

    def checked(self, **sources):
        """How often the checker ran."""
        self.write("checked", "")
        self.check(**sources)
        with open(os.path.join(self.folder, "checked"), encoding="utf-8") as file:
            return len(file.readlines())

    def test_what_passed_is_checked_again_when_it_changes(self):
        self.options = ["--passed", "passed", "--compiler", "./compiler"]
        self.write("header.h", "int header;\n")
        self.write(".clang-tidy", "Checks: all\n")
        self.assertEqual(self.checked(a="good\n", b="name\n"), 1)
        self.assertEqual(self.checked(a="good\n", b="name\n"), 0)
        self.assertEqual(self.checked(a="good\n", b="name \n"), 1, "a source")
        self.write("header.h", "long header;\n")
        self.assertEqual(self.checked(a="good\n", b="name \n"), 1, "a header")
        self.write(".clang-tidy", "Checks: some\n")
        self.assertEqual(self.checked(a="good\n", b="name \n"), 1, "the checks")
        self.assertEqual(self.checked(a="good\n", b="name \n"), 0)

    def test_findings_are_reported_each_time(self):
        self.options = ["--passed", "passed", "--compiler", "./compiler"]
        self.write("header.h", "")
        self.write(".clang-tidy", "")
        for _ in range(2):
            self.assertEqual(self.check(a="good\n", b="bad\n"), (1, "b.cpp:1:1: warning: bad"))

    def test_without_a_list_of_its_headers_a_source_is_checked_each_time(self):
        self.options = ["--passed", "passed", "--compiler", "./compiler"]  # there is no header.h
        self.write(".clang-tidy", "")
        for _ in range(2):
            self.assertEqual(self.checked(a="good\n"), 1)


if __name__ == "__main__":
    unittest.main()
