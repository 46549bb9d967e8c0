#!/usr/bin/env python3
"""Plants each fault that tidiness.py is to find in a small tree, and looks that it is found, once."""
import os
import tempfile
import unittest

from tidiness import check_tree

HEADER = "// A header.\n#pragma once\n"


class Tidiness(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for floor in ("kernels", "engine", "sharding", "checkpoint", "models", "cli"):
            self.write(f"{floor}/{floor}.h", HEADER)

    def write(self, path, text):
        path = os.path.join(self.folder.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def errors(self):
        return [f"{path}:{line}: {message}" for path, line, message in check_tree(self.folder.name)[0]]

    def assert_one_error(self, start, part):
        errors = self.errors()
        self.assertEqual(len(errors), 1, errors)
        self.assertTrue(errors[0].startswith(start), errors)
        self.assertIn(part, errors[0])

    def test_a_clean_tree_passes(self):
        self.write("cli/main.cpp", '// Main.\n#include <vector>\n\n#include "kernels/kernels.h"\n')
        self.assertEqual(self.errors(), [])

    def test_every_upward_include_is_found(self):
        floors = ("kernels", "engine", "sharding", "checkpoint", "models", "cli")
        for low, source in enumerate(floors):
            for high, target in enumerate(floors):
                for left, right in ('""', "<>"):
                    text = f"// A file.\n#include {left}{target}/{target}.h{right}\n"
                    self.write(f"{source}/user.cpp", text)
                    if high > low:
                        self.assert_one_error(f"{source}/user.cpp:2:", "floor above")
                    else:
                        self.assertEqual(self.errors(), [])
            os.remove(os.path.join(self.folder.name, source, "user.cpp"))

    def test_tests_may_include_anything(self):
        self.write("tests/kernels/a_test.cpp", '// A test.\n#include "models/models.h"\n')
        self.assertEqual(self.errors(), [])

    def test_an_include_by_another_path(self):
        self.write("engine/a.cpp", '// A file.\n#include "engine.h"\n')
        self.assert_one_error("engine/a.cpp:2:", "no file of the repository")
        self.write("engine/a.cpp", '// A file.\n#include "../kernels/kernels.h"\n')
        self.assert_one_error("engine/a.cpp:2:", "path from the repository root")

    def test_a_header_without_guard(self):
        self.write("engine/b.h", "// A header.\n")
        self.assert_one_error("engine/b.h:1:", "#pragma once")

    def test_a_path_of_one_machine(self):
        self.write("scripts/x", "cd /home" + "/somebody/tessera\n")
        self.assert_one_error("scripts/x:1:", "machine")
        self.write("scripts/x", 'cd "$root/work/x" && ls ~/work/y\n')
        self.assertEqual(self.errors(), [])

    def test_length_only_warns(self):
        self.write("engine/long.cpp", "// A file.\n" + "int x;\n" * 500 + "// " + "x" * 100 + "\n")
        errors, warnings, _ = check_tree(self.folder.name)
        self.assertEqual(errors, [])
        self.assertEqual(sorted(line for _, line, _ in warnings), [502, 502])

    def test_build_folders_are_not_looked_at(self):
        self.write("build-asan/a.h", "int x;\n")
        self.write("build/a.h", "int x;\n")
        self.assertEqual(self.errors(), [])


if __name__ == "__main__":
    unittest.main()
