"""The tests of a run that takes every second one: prints the numbers of those to run, as `ctest -I` takes them.

    tests_in_turn.py BUILD NUMBER [CTEST ARGUMENT ...]

Of the tests that the arguments select (-L, -LE, -R, -E), those with an even or an odd place run, in turn with NUMBER, and
all whose source is among the files that the last commits changed.
"""
import json
import pathlib
import subprocess
import sys

import passed


def names_of(build, arguments):
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *arguments],
                           stdout=subprocess.PIPE, text=True, check=True)
    return [test["name"] for test in json.loads(shown.stdout)["tests"]]


def in_turn(selected, number, changed):
    """`selected`: names as floor/file; `changed`: paths."""
    sources = {pathlib.PurePath(path).stem for path in changed if path.startswith("tests/")}
    return [name for place, name in enumerate(selected)
            if place % 2 == number % 2 or name.rpartition("/")[2] in sources]


def main():
    build, number, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    places = {name: place for place, name in enumerate(names_of(build, []), 1)}
    chosen = in_turn(names_of(build, arguments), number, passed.changed_lately())
    # Start, end and stride select no test.
    print(",".join(["0,0,1", *(str(places[name]) for name in chosen)]))


if __name__ == "__main__":
    main()
