#!/usr/bin/env python3
"""Every planted bug must be found, and no clean kernel reported.

    planted_bugs_test.py [--plain PROGRAM] [--address PROGRAM] [--thread PROGRAM]

runs the given builds of planted_kernel_bugs, each bug under every schedule, and prints the tools that
found it. Fails when a build does not show the sign that the bug's line in the program's --list
promises, or when a build reports a kernel that has no bug (its name begins with clean_).
"""

import argparse
import os
import re
import subprocess
import sys

SCHEDULES = ("forward", "reverse", "random:1")
BUILDS = ("plain", "address", "thread")
EXIT_WRONG_NUMBERS = 3
EXIT_REFUSED = 4
TIMEOUT_SECONDS = 120

# The pattern of a report on stderr, its sign, and a short name for the table.
REPORTS = (
    (re.compile(r"emulator error: (.*)"), "report"),
    (re.compile(r"ERROR: AddressSanitizer: ([\w-]+)"), "sanitizer"),
    (re.compile(r"runtime error: (.*)"), "sanitizer"),
    (re.compile(r"WARNING: ThreadSanitizer: ([\w -]+?)(?: \(|$)", re.MULTILINE), "sanitizer"),
)


class Finding:
    """The result of one run: a sign, and text for the table."""

    def __init__(self, sign, words):
        self.sign = sign
        self.words = words


def run(program, name, schedule):
    """The finding of one run, None when nothing was reported."""
    environment = dict(os.environ, TESSERA_EMULATOR_SCHEDULE=schedule)
    environment.setdefault("UBSAN_OPTIONS", "halt_on_error=1")
    environment.setdefault("TSAN_OPTIONS", "halt_on_error=1")
    try:
        result = subprocess.run(
            [program, name],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding("hang", f"hangs for {TIMEOUT_SECONDS} s")
    for pattern, sign in REPORTS:
        match = pattern.search(result.stderr)
        if match:
            return Finding(sign, match.group(1).strip())
    if result.returncode == EXIT_WRONG_NUMBERS:
        return Finding("numbers", "wrong numbers")
    if result.returncode == EXIT_REFUSED:
        return Finding("refused", "refused: " + result.stdout.partition(":")[2].strip())
    if result.returncode != 0:
        return Finding("crash", f"exit status {result.returncode}")
    return None


def expectations(program):
    """{bug: {build: sign}} as the program lists them."""
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    return {
        name: dict(zip(BUILDS, signs, strict=True))
        for name, *signs in (line.split() for line in listed.splitlines())
    }


def in_words(findings):
    """A cell of the table: the finding, and the number of schedules that found it."""
    found = [finding for finding in findings if finding is not None]
    if not found:
        return "-"
    words = []
    for text in dict.fromkeys(finding.words for finding in found):
        count = sum(finding.words == text for finding in found)
        short = text if len(text) <= 48 else text[:45] + "..."
        words.append(short if count == len(findings) else f"{short} ({count} of {len(findings)})")
    return "; ".join(words)


def judge(name, build, findings, expected):
    """The complaint about one bug in one build, or None."""
    signs = {finding.sign for finding in findings if finding is not None}
    if "hang" in signs:
        return f"{name}: the {build} build hangs"
    if name.startswith("clean_"):
        reported = f"{name}: the {build} build reports a clean kernel: {in_words(findings)}"
        return reported if signs else None
    if expected != "-" and expected not in signs:
        return f"{name}: the {build} build must show {expected}, and shows {in_words(findings)}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for build in BUILDS:
        parser.add_argument(f"--{build}", metavar="PROGRAM")
    arguments = vars(parser.parse_args())
    programs = {build: arguments[build] for build in BUILDS if arguments[build]}
    if not programs:
        parser.error("name at least one build")

    complaints = []
    print("bug | " + " | ".join(programs))
    print("--- | " + " | ".join("---" for _ in programs))
    for name, expected in expectations(next(iter(programs.values()))).items():
        cells = []
        for build, program in programs.items():
            findings = [run(program, name, schedule) for schedule in SCHEDULES]
            cells.append(in_words(findings))
            complaints.append(judge(name, build, findings, expected[build]))
        print(f"{name} | " + " | ".join(cells), flush=True)

    complaints = [complaint for complaint in complaints if complaint]
    for complaint in complaints:
        print("FAILED: " + complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
