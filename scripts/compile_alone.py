#!/usr/bin/env python3
"""Lets the compiler read sources, one at a time, without making code.

    scripts/compile_alone.py --build FOLDER --jobs N [--quarter K] [--passed FOLDER] [FILE ...]

The commands are those of FOLDER/compile_commands.json: of FILEs, or of all sources of the library above the kernels and of
the program, or of every fourth of them, from number K on, and those that the last 10 commits changed. With --passed, those that
compiled before are not read again (passed.py). Exit status 1 when one does not compile.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

from passed import Passed, changed_lately, files_of

# The kernels are compiled one at a time in every build.
LEFT_OUT = re.compile(r"/tessera_kernels\.dir/")


def commands_by_source(build):
    """Source (relative to the root) -> (folder, command that reads it)."""
    root, commands = os.getcwd(), {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    for entry in entries:
        command, separator, output = entry["command"].rpartition(" -o ")
        if not separator or LEFT_OUT.search("/" + output):
            continue
        words = shlex.split(command)
        if os.path.basename(words[0]) == "ccache":  # it keeps objects, and there is none
            words = words[1:]
        source = os.path.relpath(entry["file"], root)
        if source.startswith(os.path.relpath(build, root) + os.sep):  # the build writes it, and nothing is built here
            continue
        commands[source] = (entry["directory"], [*words, "-fsyntax-only", entry["file"]])
    return commands


def compiles(source, folder, command, passed):
    if passed and passed.has(*command):
        return True
    with tempfile.NamedTemporaryFile("r", suffix=".d") as rule:
        run = subprocess.run([*command, "-MD", "-MF", rule.name], cwd=folder, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False)
        if passed and run.returncode == 0:
            passed.add([os.path.join(folder, file) for file in files_of(rule.read())], *command)
    if run.returncode != 0:
        print(f"{source} does not compile by itself:\n{run.stdout}", file=sys.stderr, flush=True)
    return run.returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--quarter", type=int, choices=range(4))
    parser.add_argument("--passed", default="")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    commands = commands_by_source(arguments.build)
    files = [os.path.relpath(file) for file in arguments.files] or sorted(commands)
    if arguments.quarter is not None:
        quarter, changed = set(files[arguments.quarter::4]), changed_lately()
        files = [file for file in files if file in quarter or file in changed]
    unknown = [file for file in files if file not in commands]
    if unknown or not files:
        sys.exit(f"no source of {arguments.build}'s library or program: {', '.join(unknown) or 'none is listed there'}")
    passed = None
    if arguments.passed:
        version = subprocess.run([commands[files[0]][1][0], "--version"], capture_output=True, text=True, check=True).stdout
        passed = Passed(os.path.abspath(arguments.passed), version)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        good = list(pool.map(lambda file: compiles(file, *commands[file], passed), files))
    print(f"{sum(good)} of {len(files)} sources compile by themselves")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
