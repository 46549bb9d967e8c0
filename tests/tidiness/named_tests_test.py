#!/usr/bin/env python3
"""Plants tests that do not exist in documents, and checks that named_tests.py finds them."""
import pathlib
import tempfile
import unittest

from named_tests import missing_tests, sections_without_tests

SOURCE = "TEST(Plain, Is) {\nTEST_F(Fixture, Is) {\nTEST_P(Values, Are) {\nTYPED_TEST(Types, Are) {\nTEST(Long,\n     Name) {\n"


class NamedTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tests/comm").mkdir(parents=True)
        (self.root / "tests/comm/a_test.cpp").write_text(SOURCE, encoding="utf-8")
        (self.root / "tests/comm/test_b.py").write_text("def test_one(x):\n    def test_inner():\n", encoding="utf-8")

    def missing(self, text):
        return list(missing_tests(self.root, text))

    def test_what_exists_is_accepted(self):
        self.assertEqual(self.missing("`tests/comm/a_test.cpp`\n  (`Plain.Is`, `Fixture.Is`,\n  `Values.Are`, `Types.Are`, `Long.Name`),"
                                      " `tests/comm/test_b.py` (`test_one`), `tests/comm/`, `tests/comm/a_test` (`Plain.Is`),"
                                      " `tests/<floor>/x_test.cpp`, `tests/comm/a*` (as always)"), [])

    def test_paths_that_do_not_exist_are_found(self):
        self.assertEqual(self.missing("see `tests/comm/c_test.cpp` (`Plain.Is`) and\n`tests/other`"),
                         ["there is no tests/comm/c_test.cpp", "there is no tests/other"])

    def test_tests_that_do_not_exist_are_found(self):
        self.assertEqual(self.missing("`tests/comm/a_test.cpp` (`Plain.Is`, `Plain.Was`,\n`Is`)"),
                         ["tests/comm/a_test.cpp has no test Plain.Was", "tests/comm/a_test.cpp has no test Is"])
        self.assertEqual(self.missing("`tests/comm/test_b.py` (`test_two`, `test_inner`)"),
                         ["tests/comm/test_b.py has no test test_two", "tests/comm/test_b.py has no test test_inner"])

    def test_sections_without_tests_are_found(self):
        text = "# Page\n\n## Part\n\n### One\n\n* **Tests**: `tests/x`.\n\n### Two\n\n* **Tests**: none. Why.\n\n"
        self.assertEqual(sections_without_tests(text), [])
        self.assertEqual(sections_without_tests(text + "### Three\n\nText.\n\n### Four\n\n* **Tests**: some day\n"),
                         ["Three", "Four"])


if __name__ == "__main__":
    unittest.main()
