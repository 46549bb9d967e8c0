"""Checks that the documents' C++ is that of examples/, that quoted messages are the program's, and that linked files and
named tests exist.

    python3 readme_test.py REPOSITORY
"""
import pathlib
import re
import sys

from named_tests import missing_tests, sections_without_tests
from rooms import FLOORS

SHOW_CODE = ("README.md", "docs/cpp-api.md")
QUOTES_MESSAGES = "docs/troubleshooting.md"
NAMES_TESTS = "docs/reported-faults.md"


def unsaid(root):
    """Messages in the first column of the tables that no source has; "..." stands for variable parts."""
    sources = []
    for floor in FLOORS:
        for path in sorted((root / floor).rglob("*.cpp")):
            sources.append(re.sub(r'"\s*"', "", path.read_text(encoding="utf-8")))
    said = "\n".join(sources)
    for line in (root / QUOTES_MESSAGES).read_text(encoding="utf-8").splitlines():
        for message in re.findall(r"`(.*?)`", line.split("|")[1]) if line.startswith("| ") else ():
            parts = [part.strip() for part in message.split("...")]
            if not all(part in said for part in parts):
                yield message


def rows_without_table(prose):
    """Lines that begin with "|" outside a table: a row after an empty line is shown as text."""
    lines = prose.splitlines()
    for before, line, after in zip([""] + lines, lines, lines[1:] + [""]):
        if line.startswith("|") and not before.startswith("|") and not re.match(r"\|[ :-]+\|", after):
            yield line


def main():
    root = pathlib.Path(sys.argv[1])
    examples = [path.read_text(encoding="utf-8") for path in sorted((root / "examples").glob("*.cpp"))]
    faults = []
    for document in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]:
        name = document.relative_to(root).as_posix()
        text = document.read_text(encoding="utf-8")
        blocks = re.findall(r"```cpp\n(.*?)```", text, re.S)
        if name in SHOW_CODE and not blocks:
            faults.append(f"{name} has no C++ example")
        for block in blocks:
            if not any(block in example for example in examples):
                faults.append(f"{name}: this block is in no program of examples/ word by word:\n{block}")
        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        faults += [f"{name}: {missing}" for missing in missing_tests(root, prose)]
        faults += [f"{name}: this is not a row of a table: {row}" for row in rows_without_table(prose)]
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            if "://" not in target and not (document.parent / target).exists():
                faults.append(f"{name}: links to {target}, which is not there")
    faults += [f"{QUOTES_MESSAGES}: no source says \"{message}\"" for message in unsaid(root)]
    faults += [f"{NAMES_TESTS}: this section names no test: {heading}"
               for heading in sections_without_tests((root / NAMES_TESTS).read_text(encoding="utf-8"))]
    print("\n".join(faults) or "the documents hold")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
