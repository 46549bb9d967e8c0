#!/usr/bin/env python3
"""Checks the source tree: includes go down the floors, never up; no path of somebody's machine; headers guarded.

Errors fail the test. Long files and lines, and files that do not open with a comment on their job, are
warnings: they are printed and counted, and a reviewer decides.

    tests/tidiness/tidiness.py [ROOT]
"""
import os
import re
import sys

# From the ground up. `tessera` is the one header that users include; bench and cli share the top floor.
FLOORS = {"kernels": 0, "engine": 1, "sharding": 2, "checkpoint": 3, "models": 4, "tessera": 5, "cli": 6,
          "bench": 6}
FREE = ("tests", "examples")  # may include any floor
LONGEST_FILE = 400
LONGEST_LINE = 100

CPP = (".h", ".cpp", ".cu", ".cuh")
TEXT = CPP + (".py", ".sh", ".cmake", ".txt", ".md", ".yaml", ".yml", ".json", ".in", "")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
# Written in two pieces, so that this file passes its own check.
MACHINE_PATH = re.compile(r"(?<![\w.$}~])/(?:work|root|home|Users)" + r"/[\w.-]+")


def files_of(root):
    """Paths relative to the root of what belongs to the project."""
    for folder, names, files in os.walk(root):
        inside = os.path.relpath(folder, root)
        top = inside == "."
        names[:] = sorted(name for name in names if name not in (".git", ".cache", "__pycache__")
                          and not (top and (name.startswith("build") or name == "out")))
        for name in sorted(files):
            if not os.path.islink(os.path.join(folder, name)):
                yield os.path.normpath(os.path.join(inside, name))


def include_error(root, path, quote, target):
    """What is wrong with this include, or None."""
    source_floor = path.split(os.sep)[0]
    target_floor = target.split("/")[0]
    if quote == '"':
        if target.startswith(".") or "/../" in target:
            return f'include "{target}" by its path from the repository root'
        # Highway is included in quotes by its own convention: hwy is no folder of ours.
        ours = "/" not in target or os.path.isdir(os.path.join(root, target_floor))
        beside = source_floor in FREE and os.path.exists(os.path.join(root, "tests", target))
        if ours and not beside and not os.path.exists(os.path.join(root, target)):
            return f'"{target}" is no file of the repository: name it by its path from the root'
    if target_floor not in FLOORS or source_floor not in FLOORS:
        return None
    if FLOORS[target_floor] > FLOORS[source_floor]:
        return (f"{source_floor} includes {target}, which is on a floor above "
                "(kernels < engine < sharding < checkpoint < models < cli, bench)")
    return None


def check_file(root, path, lines):
    """Lists (line number, message) of errors and of warnings."""
    errors, warnings = [], []
    is_cpp = path.endswith(CPP)
    for number, line in enumerate(lines, start=1):
        found = MACHINE_PATH.search(line)
        if found:
            errors.append((number, f"a path of one machine: {found.group(0)}"))
        if not is_cpp:
            continue
        if len(line) > LONGEST_LINE and not INCLUDE.match(line):
            warnings.append((number, f"{len(line)} columns, more than {LONGEST_LINE}"))
        include = INCLUDE.match(line)
        if include:
            message = include_error(root, path, include.group(1), include.group(2))
            if message:
                errors.append((number, message))
    if is_cpp:
        if path.endswith((".h", ".cuh")) and not path.endswith("-inl.h") \
                and not any(line.startswith("#pragma once") for line in lines):
            errors.append((1, "a header without #pragma once"))
        if not lines or not lines[0].startswith(("//", "/*")):
            warnings.append((1, "does not open with a comment on its job"))
        if len(lines) > LONGEST_FILE:
            warnings.append((len(lines), f"{len(lines)} lines, more than {LONGEST_FILE}"))
    return errors, warnings


def check_tree(root):
    """Returns ([(path, line, message)] of errors, the same of warnings, the number of files)."""
    errors, warnings, count = [], [], 0
    for path in files_of(root):
        if os.path.splitext(path)[1] not in TEXT:
            continue
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                lines = file.read().splitlines()
        except UnicodeDecodeError:
            errors.append((path, 1, "not UTF-8"))
            continue
        count += 1
        wrong, doubtful = check_file(root, path, lines)
        errors += [(path, *entry) for entry in wrong]
        warnings += [(path, *entry) for entry in doubtful]
    return errors, warnings, count


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else
                           os.path.join(os.path.dirname(__file__), "..", ".."))
    errors, warnings, count = check_tree(root)
    for path, line, message in warnings:
        print(f"{path}:{line}: warning: {message}")
    for path, line, message in errors:
        print(f"{path}:{line}: error: {message}")
    print(f"{count} files, {len(errors)} errors, {len(warnings)} warnings")
    return 1 if errors or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
