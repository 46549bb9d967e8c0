#!/usr/bin/env python3
"""Tests scripts/summary.py with reports in the form of ctest, GoogleTest and pytest: every test that failed or did not
run must be in the closing line."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from xml.etree import ElementTree

SUMMARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "summary.py")


class Summary(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, path, text):
        path = os.path.join(self.folder.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_summary(self):
        done = subprocess.run([sys.executable, "-B", SUMMARY, self.folder.name, "--closing-line"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def ctest(self, *cases, labels=("engine", "quick")):
        self.write("tests/ctest.xml", "<testsuite>" + "".join(cases) + "</testsuite>")
        names = [ElementTree.fromstring(case).get("name") for case in cases]
        self.write("tests/labels.json", json.dumps({"tests": [
            {"name": name, "properties": [{"name": "TIMEOUT", "value": 9.0}, {"name": "LABELS", "value": list(labels)}]}
            for name in names]}))

    def test_a_tier_is_what_a_test_is_labelled_with(self):
        for labels, tier in ((["cuda", "longer"], "longer"), (["consumer", "quick"], "consumer"), (["cli"], "unlabelled")):
            self.ctest('<testcase name="cli/a_slow_test" time="1" status="run"/>', labels=labels)
            self.assertEqual(self.run_summary()[1][2].split()[0], tier)

    def test_cases_of_a_program_are_counted_one_by_one(self):
        self.ctest('<testcase name="engine/a_test" time="1.5" status="run"/>')
        self.write("tests/gtest/engine_a_test.xml",
                   '<testsuites><testsuite><testcase name="x" classname="A" status="run" result="completed"/>'
                   '<testcase name="y" classname="A" status="run" result="skipped">'
                   '<skipped message="file.cpp:3&#x0A;no AMX here"/></testcase></testsuite></testsuites>')
        code, lines = self.run_summary()
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertIn("quick skipped: no AMX here", lines)

    def test_a_program_that_crashed_is_a_failure_even_if_its_cases_passed(self):
        self.ctest('<testcase name="engine/a_test" time="1" status="fail"><failure message=""/></testcase>')
        self.write("tests/gtest/engine_a_test.xml",
                   '<testsuites><testsuite><testcase name="x" classname="A" status="run"/></testsuite></testsuites>')
        code, lines = self.run_summary()
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED engine/a_test", lines)

    def test_a_program_that_left_no_or_half_a_report(self):
        self.ctest('<testcase name="engine/a_test" time="1" status="fail"/>',
                   '<testcase name="engine/b_slow_test" time="1" status="fail"/>')
        self.write("tests/gtest/engine_b_slow_test.xml", "<testsuites><tests")
        code, lines = self.run_summary()
        self.assertEqual((code, lines[-1]), (1, "0 passed, 2 failed, 0 skipped"))

    def test_one_failed_case_is_one_failure(self):
        self.ctest('<testcase name="engine/a_test" time="1" status="fail"/>')
        self.write("tests/gtest/engine_a_test.xml",
                   '<testsuites><testsuite><testcase name="x" classname="A" status="run">'
                   '<failure message="no"/></testcase></testsuite></testsuites>')
        code, lines = self.run_summary()
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED engine/a_test: A.x", lines)

    def test_a_test_that_could_not_start_is_a_failure_and_one_that_declined_is_not(self):
        self.ctest('<testcase name="engine/a_test" status="run"/>',
                   '<testcase name="engine/c_test" status="notrun"><skipped message="Unable to find executable"/></testcase>',
                   '<testcase name="engine/d_test" status="notrun">'
                   '<skipped message="SKIP_RETURN_CODE=77"/></testcase>')
        code, lines = self.run_summary()
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))
        self.assertIn("FAILED engine/c_test", lines)
        self.assertIn("quick skipped: engine/d_test: SKIP_RETURN_CODE=77", lines)

    def test_single_checks_and_pytest(self):
        self.write("format/passed", "")
        self.write("judges/pytest.xml", '<testsuites><testsuite time="2"><testcase classname="t" name="a"/>'
                   '<testcase classname="t" name="b"><error message="x"/></testcase></testsuite></testsuites>')
        self.write("other/skipped", "no package")
        self.write("gpu/absent", "not here")
        code, lines = self.run_summary()
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 1 skipped"))
        self.assertIn("other skipped: no package", lines)
        self.assertTrue(any(line.startswith("gpu") and line.endswith("not here") for line in lines))

    def test_an_empty_run_is_not_a_success(self):
        self.write("other/skipped", "no package")
        self.assertEqual(self.run_summary()[0], 1)


if __name__ == "__main__":
    unittest.main()
