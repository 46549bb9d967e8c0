#!/usr/bin/env python3
"""Adds up the results of test runs and prints them by tier, with a reason for all tests that did not run.

    scripts/summary.py RESULTS_FOLDER [--closing-line]

RESULTS_FOLDER holds a folder for each run. It contains `ctest.xml` (ctest --output-junit) with `gtest/*.xml`
(a GoogleTest program's own count of its cases) and, for the run `tests`, `labels.json` (ctest
--show-only=json-v1); or `pytest.xml`; or `passed`, `failed`, `skipped`: text files that each stand for one
check and contain the reason; `absent` is a note on tests that do not run here and is not counted. With
--closing-line the last line is only "N passed, N failed, N skipped".
Exit status 1 when anything failed, or when nothing ran.
"""
import argparse
import collections
import json
import os
import sys
import xml.etree.ElementTree as ElementTree


class Tier:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.seconds = 0.0
        self.failures = []  # names
        self.reasons = collections.Counter()  # of skipped tests
        self.notes = []

    def count(self, outcome, amount=1):
        setattr(self, outcome, getattr(self, outcome) + amount)


TIERS = ("tidiness", "consumer", "quick", "longer", "slow")  # a test belongs to the first of these among its labels


def read_tiers(path):
    """ctest name -> tier, from the output of `ctest --show-only=json-v1`."""
    with open(path, encoding="utf-8") as file:
        tests = json.load(file)["tests"]
    tiers = {}
    for test in tests:
        labels = [p["value"] for p in test.get("properties", ()) if p["name"] == "LABELS"]
        tiers[test["name"]] = next((tier for tier in TIERS if labels and tier in labels[0]), "unlabelled")
    return tiers


def outcome_of(case):
    """(passed | failed | skipped, reason) of a JUnit <testcase>, ctest's, GoogleTest's or pytest's."""
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed", ""
    skipped = case.find("skipped")
    message = ((skipped.get("message") or skipped.text or "") if skipped is not None else "").strip()
    if case.get("status") == "notrun" and case.get("result") is None and not message.startswith("SKIP_"):
        return "failed", ""  # ctest could not start it
    if skipped is not None or case.get("status") in ("notrun", "disabled") or case.get("result") == "suppressed":
        return "skipped", message.splitlines()[-1] if message else "disabled"
    return "passed", ""


def read_gtest(folder):
    """Program name -> its cases, for every complete GoogleTest report of a run."""
    reports = {}
    if os.path.isdir(folder):
        for name in sorted(os.listdir(folder)):
            try:
                cases = ElementTree.parse(os.path.join(folder, name)).getroot().iter("testcase")
            except ElementTree.ParseError:
                continue  # the program ended while it wrote this: ctest's verdict counts
            reports[os.path.splitext(name)[0]] = list(cases)
    return reports


def add_cases(tier, cases, prefix):
    failed = 0
    for case in cases:
        outcome, reason = outcome_of(case)
        tier.count(outcome)
        if outcome == "failed":
            failed += 1
            tier.failures.append(f"{prefix}{case.get('classname')}.{case.get('name')}")
        elif outcome == "skipped":
            tier.reasons[reason] += 1
    return failed


def add_ctest(tiers, run, path, tier_of, reports):
    for test in ElementTree.parse(path).getroot().iter("testcase"):
        name = test.get("name")
        tier = tiers[tier_of[name] if run == "tests" else run]
        tier.seconds += float(test.get("time") or 0)
        outcome, reason = outcome_of(test)
        failed_cases = add_cases(tier, reports.get(name.replace("/", "_"), ()), f"{name}: ")
        if outcome == "failed" and failed_cases == 0:  # crashed, timed out, stopped by a sanitizer
            tier.count("failed")
            tier.failures.append(name)
        elif name.replace("/", "_") not in reports:
            tier.count(outcome)
            if outcome == "skipped":
                tier.reasons[f"{name}: {reason}"] += 1


def read_results(folder):
    tiers = collections.defaultdict(Tier)
    for run in sorted(os.listdir(folder), key=lambda run: (run != "tests", run)):
        inside = os.path.join(folder, run)
        if os.path.exists(os.path.join(inside, "ctest.xml")):
            tier_of = read_tiers(os.path.join(inside, "labels.json")) if run == "tests" else {}
            add_ctest(tiers, run, os.path.join(inside, "ctest.xml"), tier_of, read_gtest(os.path.join(inside, "gtest")))
        if os.path.exists(os.path.join(inside, "pytest.xml")):
            root = ElementTree.parse(os.path.join(inside, "pytest.xml")).getroot()
            add_cases(tiers[run], root.iter("testcase"), "")
            tiers[run].seconds += sum(float(suite.get("time") or 0) for suite in root.iter("testsuite"))
        for outcome in ("passed", "failed", "skipped", "absent"):
            path = os.path.join(inside, outcome)
            if not os.path.exists(path):
                continue
            with open(path, encoding="utf-8") as file:
                reason = file.read().strip()
            if outcome == "absent":
                tiers[run].notes.append(reason)
                continue
            tiers[run].count(outcome)
            if outcome == "failed":
                tiers[run].failures.append(f"{run}: {reason}")
            elif outcome == "skipped":
                tiers[run].reasons[reason] += 1
    return tiers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--closing-line", action="store_true")
    arguments = parser.parse_args()
    tiers = read_results(arguments.folder)
    print(f"\n{'tier':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>9}")
    for name, tier in tiers.items():
        line = f"{name:<12}{tier.passed:>8}{tier.failed:>8}{tier.skipped:>9}{tier.seconds:>7.0f} s"
        print("  ".join([line, *tier.notes]))
    for name, tier in tiers.items():
        for reason, amount in tier.reasons.items():
            print(f"{name} skipped: {reason}" + (f" ({amount} of them)" if amount > 1 else ""))
    for tier in tiers.values():
        for failure in tier.failures:
            print(f"FAILED {failure}")
    passed, failed, skipped = (sum(getattr(tier, outcome) for tier in tiers.values())
                               for outcome in ("passed", "failed", "skipped"))
    total = f"{passed} passed, {failed} failed, {skipped} skipped"
    print(total if arguments.closing_line else f"in all: {total}")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
