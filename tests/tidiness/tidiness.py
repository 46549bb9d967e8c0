#!/usr/bin/env python3
"""Checks the source tree: includes go down the floors and the rooms of a floor, never up, and files open the namespace of
their floor (rooms.py); no path of somebody's machine; headers guarded; the GPU stays where it belongs (launches, CUDA's
types, the emulator, a GPU kernel for every op); all that is printed is made harmless; no type of a test takes a name of the
library's or is seen by other tests.

Errors fail the test. Long files and lines, and files that do not open with a comment on their job, are
warnings: they are printed and counted, and a reviewer decides.

    tests/tidiness/tidiness.py [ROOT]
"""
import os
import re
import sys

from rooms import FLOORS, folder_errors, include_runs_up, namespace_errors

FREE = ("tests", "examples")  # may include any floor
# The emulated GPU belongs to the tests. Kernels reach it in two headers, where nvcc does not compile them.
EMULATOR_GATES = (os.path.join("kernels", "cuda", "device", "gpu.h"), os.path.join("kernels", "cuda", "device", "launch.h"))
LONGEST_FILE = 400
LONGEST_LINE = 100

# Words of docs/style.md's rules that are wrong wherever they stand. "there is no" is plain.
ODD_ENGLISH = re.compile(r"^\s*(?://|#) Of |(?<!there )(?<!There )\bis no\b(?! longer)|\bcannot be had\b|\bto be had\b"
                         r"|\bsays nothing\b|\b[Ww]hoever\b|\b[Nn]obody\b|\b[Ee]verybody\b|\b(?:is|are) told\b")
# The rules themselves, their test, and what was written before them.
ODD_ENGLISH_ALLOWED = ("docs/style.md", "CHANGELOG.md", "tests/tidiness/tidiness.py", "tests/tidiness/tidiness_test.py")

# Removal by name: it can follow a link that another process has put in a folder's place.
REMOVAL = re.compile(r"\bremove_all\(|\brmdir\(|\bunlink(?:at)?\(|\b(?:filesystem|fs)::remove\(|\bstd::remove\([^,;]*\);")
REMOVAL_FREE = ("tests", "examples", "emulator")
REMOVER = "checkpoint/io/removal.cpp"
# Each with its reason. A single name is removed there, and no folder.
REMOVAL_ALLOWED = {
    REMOVER: "removes through descriptors",
    "checkpoint/io/file.h": "the system call, which takes a descriptor",
    "checkpoint/io/file.cpp": "the system call, which takes a descriptor",
    "checkpoint/io/disk_watch.h": "the system call, which takes a descriptor",
    "checkpoint/io/disk_watch.cpp": "the system call, which takes a descriptor",
    "engine/storage/state_file.cpp": "below checkpoint; a file of mkostemp",
    "engine/storage/output_file.cpp": "below checkpoint; the partial file of this process",
    "engine/data/token_stream.cpp": "below checkpoint; its own files and locked ones of this user",
    "engine/data/corpus.cpp": "below checkpoint; a file of mkstemp",
    "comm/control/bootstrap.cpp": "below checkpoint; the file of rank 0's address",
}

CPP = (".h", ".cpp", ".cu", ".cuh")
TEXT = CPP + (".py", ".sh", ".cmake", ".txt", ".md", ".yaml", ".yml", ".json", ".in", "")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
# In two pieces, so that this file passes its own check.
MACHINE_PATH = re.compile(r"(?<![\w.$}~])/(?:work|root|home|Users)" + r"/[\w.-]+")
# The only file that starts kernels: the access checker would not see launches elsewhere.
LAUNCHER = os.path.join("kernels", "cuda", "device", "launch.h")
# Headers above the engine must not contain these: headers and types of CUDA and NCCL, and our own headers with them.
FLOORS_WITHOUT_CUDA = ("sharding", "checkpoint", "tokenizers", "models", "tasks", "trainer", "launch", "training",
                       "planner", "logs", "cli")
CUDA_HEADER = re.compile(r"^(?:cuda\w*\.h|cuda/.*|cublas\w*\.h|cudnn\w*\.h|nccl\w*\.h|nvtx3/.*"
                         r"|(?:kernels|engine)/cuda/.*)$")
CUDA_TYPE = re.compile(r"\b(?:(?:cuda|cublas|cudnn|nccl)[A-Z]\w*_t|CU(?:stream|event|device|context)|ncclUniqueId"
                       r"|cudaDeviceProp|__nv_bfloat16|__half)\b")
# The only file that writes to a terminal: it makes names of strangers' files harmless. Programs that are not delivered are free.
PRINTER = os.path.join("base", "text", "print.cpp")
PRINTS = re.compile(r"\bfmt::print(?:ln)?\(|\bstd::(?:cout|cerr|clog)\b|(?<!\w)v?f?printf\(|(?<!\w)(?:f?puts|putchar|perror)\("
                    r"|\bfwrite\([^;]*\bstd(?:out|err)\b|\bwrite\(STD(?:OUT|ERR)_FILENO, (?!\"\",)")
PRINTS_FREELY = ("emulator", os.path.join("bench", "programs"), os.path.join("bench", "kernels"))
OPS = re.compile(r"^ *X\((\w+), *\w+\)", re.MULTILINE)
# Declarations at the left margin, where clang-format puts those of a namespace. A handle is a type too.
NAMESPACE = re.compile(r"^(?:inline )?namespace\b *([\w:]*) *\{(?!.*\})")
NAMESPACE_END = re.compile(r"^\} *// *(?:inline )?namespace\b")
TYPE = re.compile(r"^(?:template <.*> )?(?:class|struct|union|enum(?: class| struct)?) (?:\w+\([^)]*\) )?(\w+)"
                  r"(?: final)?(?: *:| *\{|$)|^using (\w+) =|^TESSERA_MODULE\((\w+)\)")


def files_of(root):
    """The paths of the project's files, relative to the root."""
    for folder, names, files in os.walk(root):
        inside = os.path.relpath(folder, root)
        top = inside == "."
        names[:] = sorted(name for name in names
                          if name not in (".git", ".cache", "__pycache__", "fixtures", "corpus")
                          and not (top and (name.startswith("build") or name == "out")))
        for name in sorted(files):
            if name != ".git" and not os.path.islink(os.path.join(folder, name)):  # a worktree's is a file
                yield os.path.normpath(os.path.join(inside, name))


def include_error(root, path, quote, target):
    """The error in this include, or None."""
    source_floor = path.split(os.sep)[0]
    target_floor = target.split("/")[0]
    if quote == '"':
        if target.startswith(".") or "/../" in target:
            return f'include "{target}" by its path from the repository root'
        # Highway is included in quotes by its own convention: hwy is not one of our folders.
        ours = "/" not in target or os.path.isdir(os.path.join(root, target_floor))
        beside = source_floor in FREE and os.path.exists(os.path.join(root, "tests", target))
        if ours and not beside and not os.path.exists(os.path.join(root, target)):
            return f'"{target}" is not a file of the repository: name it by its path from the root'
    if target_floor not in FLOORS or source_floor not in FLOORS:
        return None
    if target_floor == "emulator" and source_floor != "emulator":
        allowed = path in EMULATOR_GATES
        return None if allowed else f"{target} is for tests: nothing that is delivered includes the emulator"
    return include_runs_up(path.replace(os.sep, "/"), target)


def lines_of_nvcc(lines):
    """The numbers of the lines that nvcc compiles; `#if defined(__CUDACC__)`, its negation and `#else` are known."""
    seen, conditions = set(), []
    for number, line in enumerate(lines, start=1):
        words = line.strip()
        if words.startswith("#if"):
            # For other conditions (None) both branches count as nvcc's.
            negated = words.startswith("#ifndef") or "!defined" in words
            conditions.append(not negated if "__CUDACC__" in words else None)
        elif words.startswith(("#else", "#elif")) and conditions and conditions[-1] is not None:
            conditions[-1] = not conditions[-1]
        elif words.startswith("#endif") and conditions:
            conditions.pop()
        elif False not in conditions:
            seen.add(number)
    return seen


def gpu_errors(path, lines):
    """Lists (line number, message): launches, CUDA's types and the emulator where they do not belong."""
    errors = []
    floor = path.split(os.sep)[0]
    hides_cuda = floor in FLOORS_WITHOUT_CUDA and path.endswith((".h", ".cuh"))
    nvcc = lines_of_nvcc(lines) if path in EMULATOR_GATES else ()
    for number, line in enumerate(lines, start=1):
        code = line.split("//")[0]
        include = INCLUDE.match(line)
        if "<<<" in code and path != LAUNCHER:
            errors.append((number, "a kernel is launched by launch() of kernels/cuda/device/launch.h, not by <<< >>>"))
        if hides_cuda and include and CUDA_HEADER.match(include.group(2)):
            errors.append((number, f"a header of {floor} shows CUDA: {include.group(2)}"))
        if hides_cuda and not include and CUDA_TYPE.search(code):
            errors.append((number, f"a header of {floor} names a CUDA type: {CUDA_TYPE.search(code).group(0)}"))
        if number in nvcc and include and include.group(2).startswith("emulator/"):
            errors.append((number, f"{include.group(2)} must be out of nvcc's sight, under #if !defined(__CUDACC__)"))
    return errors


def missing_gpu_kernels(root):
    """Lists (path, line, message): an op of kernels/registry.h that no file of kernels/cuda defines. The linker would
    report it too, but not in a build without CUDA."""
    registry = os.path.join("kernels", "registry.h")
    folder = os.path.join(root, "kernels", "cuda")
    if not os.path.exists(os.path.join(root, registry)):
        return []
    with open(os.path.join(root, registry), encoding="utf-8") as file:
        text = file.read()
    sources = ""
    for name in files_of(folder):
        if name.endswith((".cu", ".cpp")):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                sources += file.read()
    return [(registry, text.count("\n", 0, op.start(1)) + 1, f"kernels/cuda has no `void {op.group(1)}(const ...)`")
            for op in OPS.finditer(text)
            if not re.search(rf"^void {op.group(1)}\(const ", sources, re.MULTILINE)]


def types_of(lines):
    """Lists (line number, namespaces around it, name) of the types that namespaces hold; an anonymous one is ""."""
    types, around = [], []
    for number, line in enumerate(lines, start=1):
        opened, named = NAMESPACE.match(line), TYPE.match(line)
        if opened:
            around.append(opened.group(1))
        elif NAMESPACE_END.match(line):
            del around[-1:]
        elif named:
            types.append((number, tuple(around), next(name for name in named.groups() if name)))
    return types


def hidden_types(library, tests):
    """Lists (path, line, message) of the types in tests that hide one of a library header, or that two tests could
    both define; any tests may be compiled together. Both arguments are lists of
    (path, types_of)."""
    homes = {}
    for path, types in library:
        for _, around, name in types:
            homes.setdefault(name, []).append(("::".join(around), path))
    errors = []
    for path, types in tests:
        for number, around, name in types:
            if "" not in around and not path.endswith((".h", ".cuh")):
                errors.append((path, number, f"{name} is not in an anonymous namespace: another test may have one"))
            inside = "::".join(filter(None, around)) + "::"
            hidden = [header for home, header in homes.get(name, ()) if not home or inside.startswith(home + "::")]
            if hidden:
                errors.append((path, number, f"{name} hides that of {hidden[0]} from tests compiled with this one: "
                               "give it another name"))
    return errors


def print_errors(path, lines):
    """Lists (line number, message): the product prints through base/text/print.h."""
    if path.split(os.sep)[0] not in FLOORS or path.startswith(PRINTS_FREELY) or path == PRINTER:
        return []
    return [(number, "printed by print_out(), print_err() or their neighbours of base/text/print.h: names may hold escapes")
            for number, line in enumerate(lines, start=1) if PRINTS.search(line.split("//")[0])]


def check_file(root, path, lines):
    """Lists (line number, message) of errors and of warnings."""
    errors, warnings = [], []
    is_cpp = path.endswith(CPP)
    for number, line in enumerate(lines, start=1):
        found = MACHINE_PATH.search(line)
        if found:
            errors.append((number, f"a path of one machine: {found.group(0)}"))
        odd = ODD_ENGLISH.search(line)
        if odd and path.replace(os.sep, "/") not in ODD_ENGLISH_ALLOWED:
            errors.append((number, f"odd English (docs/style.md): {odd.group(0).strip()}"))
        if not is_cpp:
            continue
        place = path.replace(os.sep, "/")
        removal = REMOVAL.search(line.split("//")[0])
        if removal and place.split("/")[0] not in REMOVAL_FREE and place not in REMOVAL_ALLOWED:
            errors.append((number, f"{removal.group(0)} removes by a name that others can exchange: "
                           "use remove_tree() of checkpoint/io/removal.h"))
        if len(line) > LONGEST_LINE and not INCLUDE.match(line):
            warnings.append((number, f"{len(line)} columns, more than {LONGEST_LINE}"))
        include = INCLUDE.match(line)
        if include:
            message = include_error(root, path, include.group(1), include.group(2))
            if message:
                errors.append((number, message))
    if is_cpp:
        errors += gpu_errors(path, lines)
        errors += print_errors(path, lines)
        errors += namespace_errors(path.replace(os.sep, "/"), lines)
        if path.endswith((".h", ".cuh")) and not path.endswith("-inl.h") \
                and not any(line.startswith("#pragma once") for line in lines):
            errors.append((1, "a header without #pragma once"))
        if not lines or not lines[0].startswith(("//", "/*")):
            warnings.append((1, "does not open with a comment on its job"))
        if len(lines) > LONGEST_FILE:
            warnings.append((len(lines), f"{len(lines)} lines, more than {LONGEST_FILE}"))
    return errors, warnings


def tests_that_nobody_runs(root, paths):
    """Lists (path, line, message): a Python test that no CMake file names."""
    cmake = ""
    for path in paths:
        if os.path.basename(path) == "CMakeLists.txt" or path.endswith(".cmake"):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                cmake += file.read()
    return [(path, 1, "no CMake file runs this test") for path in paths
            if path.startswith("tests" + os.sep) and path.endswith("_test.py") and os.path.basename(path) not in cmake]


def check_tree(root):
    """Returns ([(path, line, message)] of errors, the same of warnings, the number of files)."""
    errors, warnings, count = [], [], 0
    library, tests = [], []  # their types
    sources = []
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
        if path.endswith(CPP):
            sources.append(path.replace(os.sep, "/"))
        if lines and lines[0].startswith("#!") and not os.access(os.path.join(root, path), os.X_OK):
            errors.append((path, 1, "begins with #! and may not be executed: chmod +x"))
        wrong, doubtful = check_file(root, path, lines)
        errors += [(path, *entry) for entry in wrong]
        warnings += [(path, *entry) for entry in doubtful]
        floor = path.split(os.sep)[0]
        if floor == "tests" and path.endswith(CPP):
            tests.append((path, types_of(lines)))
        elif floor in FLOORS and path.endswith((".h", ".cuh")):
            library.append((path, types_of(lines)))
    errors += hidden_types(library, tests)
    errors += folder_errors(sources)
    errors += missing_gpu_kernels(root)
    errors += tests_that_nobody_runs(root, list(files_of(root)))
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
