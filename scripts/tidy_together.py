#!/usr/bin/env python3
"""Runs clang-tidy over several sources at a time: most of its time goes into shared headers.

    scripts/tidy_together.py --tool CLANG_TIDY --build FOLDER --jobs N [--quarter K] FILE ...

Sources that are compiled with the same options are joined into a file of FOLDER/tidy: joined and not included, because
some checks look at the main file only. If a joined file has findings, each half of its sources is checked in the same
way, and so on; only what a source by itself has counts, because two that are never compiled together may use one name.
Exit status 1 when there is a finding.

With --quarter K, every fourth group is checked, those with number K by a checksum of their names, and those with a file that
the last 10 commits changed.

With --passed FOLDER --compiler CLANG, joined files that were tidy before are not checked again (passed.py), and CLANG
lists what they include.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import zlib

from passed import Passed, changed_lately, files_of

# At most TOGETHER sources are joined, fewer where a checksum of a source's name says so: a new source then changes one
# joined file and not all that follow.
TOGETHER = 60
ENDS_AT_EVERY = 32
INCLUDED = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
# Checked alone: a vectorised kernel, which includes itself once for each instruction set (one is enough here), and
# sources that include yaml-cpp, which declares a class with the name of one of ours.
ALONE = re.compile(r"#\s*(define HWY_TARGET_INCLUDE|include <yaml-cpp/)")
# With warnings as errors of the compiler, warnings in headers that are not ours (CUDA's names in the emulator) would
# count.
OPTIONS = ["--quiet", "--extra-arg=-DHWY_COMPILE_ONLY_STATIC", "--extra-arg=-Wreserved-identifier", "--extra-arg=-Wno-error"]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def commands_by_source(build):
    """Source (relative to the root) -> (folder, command without the source's name). Sources that are compiled together
    have the command of their group; a source that two devices compile is checked in the first way."""
    root, commands = os.getcwd(), {}
    for entry in json.loads(read(os.path.join(build, "compile_commands.json"))):
        source = os.path.relpath(entry["file"], root)
        command = entry["command"].rsplit(" -o ", 1)[0]
        members = [source]
        if os.path.basename(os.path.dirname(source)) == "together":
            members = INCLUDED.findall(read(entry["file"]))
        for member in members:
            commands.setdefault(member, (entry["directory"], command))
    return commands


def groups_of(files, commands):
    """Lists of sources that are checked in one run."""
    by_command, alone = collections.defaultdict(list), []
    for file in files:
        if ALONE.search(read(file)):
            alone.append([file])
        else:
            by_command[commands[file]].append(file)
    groups = []
    for members in by_command.values():
        groups.append([])
        for member in members:
            groups[-1].append(member)
            if len(groups[-1]) == TOGETHER or zlib.crc32(member.encode()) % ENDS_AT_EVERY == 0:
                groups.append([])
    return sorted(filter(None, groups), key=len, reverse=True) + alone  # none of the longest is left for the end


def join(group, path):
    """Writes the group's text to `path`."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(read(member).rstrip("\n") + "\n" for member in group))


def remember(passed, arguments, command, directory, path, group):
    """Adds a tidy file to what passed."""
    options = [option.removeprefix("--extra-arg=") for option in OPTIONS[1:]]
    rule = subprocess.run([arguments.compiler, *shlex.split(command)[1:], *options, "-w", "-M", path], cwd=directory,
                          capture_output=True, text=True, check=False)
    if rule.returncode == 0:
        included = [os.path.join(directory, file) for file in files_of(rule.stdout)]
        passed.add([*group, *(file for file in included if file != path)], command, *group)


def check(place, group, commands, arguments, passed):
    """(True if it is tidy, clang-tidy's output)"""
    directory, command = commands[group[0]]
    if passed and passed.has(command, *group):
        return True, ""
    folder = os.path.join(arguments.build, "tidy", place)
    os.makedirs(folder, exist_ok=True)
    path = os.path.abspath(os.path.join(folder, "joined.cpp"))
    join(group, path)
    with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump([{"directory": directory, "command": f"{command} -c {path}", "file": path}], file)
    run = subprocess.run([arguments.tool, "-p", folder, *OPTIONS, path], capture_output=True, text=True, check=False)
    tidy, said = run.returncode == 0, ""
    if len(group) > 1 and not tidy:
        middle = len(group) // 2
        halves = [check(os.path.join(place, str(i)), half, commands, arguments, passed)
                  for i, half in enumerate([group[:middle], group[middle:]])]
        tidy, said = all(good for good, _ in halves), "\n".join(said.strip() for good, said in halves if not good)
    elif not tidy:
        said = run.stdout.replace(path, group[0]) or run.stderr
    if passed and tidy:
        remember(passed, arguments, command, directory, path, group)
    return tidy, said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quarter", type=int, choices=range(4))
    parser.add_argument("--passed", default="")
    parser.add_argument("--compiler", default="clang++")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    passed = None
    if arguments.passed:
        version = subprocess.run([arguments.tool, "--version"], capture_output=True, text=True, check=True).stdout
        passed = Passed(os.path.abspath(arguments.passed), version, read(".clang-tidy"), *OPTIONS)
    commands = commands_by_source(arguments.build)
    # Sources that this machine does not compile (the CUDA device without a toolkit) have no compile command.
    files = [file for file in map(os.path.normpath, arguments.files) if file in commands]
    groups = groups_of(files, commands)
    if arguments.quarter is not None:
        changed = changed_lately()
        groups = [group for group in groups
                  if zlib.crc32(group[0].encode()) % 4 == arguments.quarter or not changed.isdisjoint(group)]
    tidy = True
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for good, said in pool.map(lambda item: check(str(item[0]), item[1], commands, arguments, passed),
                                   enumerate(groups)):
            if not good:
                tidy = False
                print(said.strip(), flush=True)
    if not tidy:
        return 1
    print(f"{sum(map(len, groups))} of {len(files)} files are tidy", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
