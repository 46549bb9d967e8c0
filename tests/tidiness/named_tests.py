"""The tests that documents name: each path below tests/ exists, and a file has the tests that stand in parentheses behind it:

    `tests/comm/record_test.cpp` (`RecordComm.SplitsByArithmetic`), `tests/judges/test_gguf.py` (`test_the_tokenizer`)
"""
import re

PATH = re.compile(r"`tests/([\w./-]+)`(?:\s+\(((?:`[\w.]+`(?:,\s+)?)+)\))?")  # <floor> and * stand for several
GOOGLE_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
SECTION = re.compile(r"^### (.*)\n((?:(?!#).*\n?)*)", re.MULTILINE)
SUFFIXES = ("", ".cpp", ".py")  # a document may leave the suffix out, as CTest does


def tests_of(path):
    text = path.read_text(encoding="utf-8")
    return {".".join(name) for name in GOOGLE_TEST.findall(text)} | set(PYTHON_TEST.findall(text))


def missing_tests(root, text):
    """Messages about the paths and tests in a document's text that the tree does not have."""
    for place, names in PATH.findall(text):
        found = next((root / "tests" / (place + suffix) for suffix in SUFFIXES
                      if (root / "tests" / (place + suffix)).exists()), None)
        if found is None:
            yield f"there is no tests/{place}"
            continue
        there = tests_of(found) if names else ()
        yield from (f"tests/{place} has no test {name}" for name in re.findall(r"`(.*?)`", names) if name not in there)


def sections_without_tests(text):
    """Headings of sections that name neither a test nor, with "**Tests**: none", the lack of one."""
    return [heading for heading, body in SECTION.findall(text)
            if not re.search(r"\*\*Tests\*\*:\s+(?:none\b|`tests/)", body)]
