#!/usr/bin/env python3
"""Checks that each floor can be linked with only the floors below it: a symbol that a floor uses is defined in it, below
it, or outside the project. Includes cannot show this: a function may be declared on one floor and defined above.

    link_order.py FILE    a line for each floor, from the ground up: its name and its object files
"""
import subprocess
import sys


def symbols_of(objects):
    """The external names that the object files define, and those that they use."""
    listing = subprocess.run(["nm", "--format=posix", "--extern-only", *objects], capture_output=True, text=True,
                             check=True).stdout
    defined, used = set(), set()
    for line in listing.splitlines():
        words = line.split()
        if len(words) < 2 or len(words[1]) != 1:
            continue  # the name of a file
        # "w" and "v" are weak names that an object uses without defining them.
        (used if words[1] in "Uwv" else defined).add(words[0])
    return defined, used


def faults(floors):
    """`floors` is a list of (name, defined, used) from the ground up. Lists (floor, symbol, floor that defines it)."""
    found, below = [], set()
    for index, (name, defined, used) in enumerate(floors):
        below |= defined
        for symbol in sorted(used - below):
            above = [other for other, names, _ in floors[index + 1:] if symbol in names]
            if above:
                found.append((name, symbol, above[0]))
    return found


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = [line.split() for line in file if line.strip()]
    found = faults([(name, *symbols_of(objects)) for name, *objects in rows])
    names = subprocess.run(["c++filt"], input="\n".join(symbol for _, symbol, _ in found), capture_output=True,
                           text=True, check=True).stdout.splitlines()
    for (floor, _, above), name in zip(found, names):
        print(f"{floor} uses {name}, which {above} defines: the floor is above ({' < '.join(row[0] for row in rows)})")
    print(f"{sum(len(row) - 1 for row in rows)} objects of {len(rows)} floors, {len(found)} errors")
    return 1 if found or len(rows) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
