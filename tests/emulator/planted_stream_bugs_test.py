#!/usr/bin/env python3
"""Runs planted_stream_bugs under every schedule and checker, and prints which of them finds which bug.

planted_stream_bugs_test.py [--plain PROGRAM] [--thread PROGRAM]

PROGRAM is planted_stream_bugs, built plainly and with the thread sanitizer. Prints a table of how
many runs found each bug, and fails unless
  - the pipeline without a bug is silent everywhere,
  - the access checker finds every bug in one run, and the schedule `inline` none by its numbers
    (so that the checker's finds are its own),
  - every bug that can spoil numbers shows under `lazy` or within a few seeds of `seeded`,
  - the thread sanitizer, if built, finds every bug within a few runs.
"""
import argparse
import os
import subprocess
import sys

SEEDS = 10
THREAD_RUNS = 5
SANITIZED_RUNS = 4
SECONDS = 120
SANITIZER_EXIT = 66
# No operation reads the freed memory: the numbers cannot show it, and the heap need not detect it.
SHOWN_BY_NO_SCHEDULE = {"freed_while_in_use"}


class Run:
    """One run of the program: how it ended and what it wrote."""

    def __init__(self, program, bug, streams, check="0"):
        environment = dict(os.environ)
        environment.update(
            TESSERA_EMULATOR_STREAMS=streams,
            TESSERA_EMULATOR_CHECK=check,
            TESSERA_EMULATOR_RACES="streams",
            TSAN_OPTIONS=f"exitcode={SANITIZER_EXIT} halt_on_error=1 "
            + os.environ.get("TSAN_OPTIONS", ""),
        )
        result = subprocess.run([program, bug], env=environment, capture_output=True, text=True,
                                timeout=SECONDS, errors="replace")
        self.code = result.returncode
        self.output = result.stdout + result.stderr

    @property
    def sanitizer_found(self):
        return self.code == SANITIZER_EXIT and "ThreadSanitizer" in self.output

    @property
    def checker_found(self):
        return ("unordered accesses: 0" not in self.output
                and "with nothing that orders" in self.output)

    @property
    def went_wrong(self):
        """Wrong numbers, or a crash because freed memory was used."""
        return self.code != 0


def list_bugs(program):
    return subprocess.run([program, "--list"], check=True, capture_output=True,
                          text=True).stdout.split()


def examine(bug, plain, thread):
    """The table's cells of one bug: (found, runs) for each column; None where it was not run."""
    cells = dict.fromkeys(["inline", "lazy", "seeded", "threads", "checker", "TSan"])
    if thread:
        sanitized = [Run(thread, bug, "threads").sanitizer_found for _ in range(SANITIZED_RUNS)]
        cells["TSan"] = (sum(sanitized), SANITIZED_RUNS)
    if not plain:
        return cells
    seeded = [Run(plain, bug, f"seeded:{seed}").went_wrong for seed in range(1, SEEDS + 1)]
    threads = [Run(plain, bug, "threads").went_wrong for _ in range(THREAD_RUNS)]
    cells.update({
        "inline": (int(Run(plain, bug, "inline").went_wrong), 1),
        "lazy": (int(Run(plain, bug, "lazy").went_wrong), 1),
        "seeded": (sum(seeded), SEEDS),
        "threads": (sum(threads), THREAD_RUNS),
        "checker": (int(Run(plain, bug, "inline", check="1").checker_found), 1),
    })
    return cells


def complaints(bug, cells):
    """The errors in these cells."""
    def found(column):
        return cells[column][0] if cells[column] else 0

    if bug == "none":
        return [f"{column} finds a bug where there is none" for column in cells if found(column)]
    problems = []
    if cells["checker"] and not found("checker"):
        problems.append("the access checker misses it")
    if found("inline"):
        problems.append("it shows without the checker even where nothing runs at the same time")
    if cells["lazy"] and bug not in SHOWN_BY_NO_SCHEDULE and not found("lazy") and not found("seeded"):
        problems.append("no schedule shows it")
    if cells["TSan"] and not found("TSan"):
        problems.append("the thread sanitizer misses it")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain")
    parser.add_argument("--thread")
    arguments = parser.parse_args()
    if not arguments.plain and not arguments.thread:
        parser.error("give a build")

    bugs = list_bugs(arguments.plain or arguments.thread)
    failures = []
    columns = ["inline", "lazy", "seeded", "threads", "checker", "TSan"]
    print(" | ".join([f"{'bug':30}"] + [f"{column:>7}" for column in columns]))
    for bug in bugs:
        cells = examine(bug, arguments.plain, arguments.thread)
        texts = [f"{cells[c][0]}/{cells[c][1]}" if cells[c] else "-" for c in columns]
        print(" | ".join([f"{bug:30}"] + [f"{text:>7}" for text in texts]), flush=True)
        failures += [f"{bug}: {problem}" for problem in complaints(bug, cells)]
    if len(bugs) != 8 or bugs[0] != "none":
        failures.append(f"the program lists {bugs}, not `none` and seven bugs")
    for failure in failures:
        print(f"FAIL {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
