"""The documents' C++ is what examples/ builds, and every file that they link to is there.

    python3 readme_test.py REPOSITORY
"""
import pathlib
import re
import sys

SHOW_CODE = ("README.md", "docs/cpp-api.md")


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
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            if "://" not in target and not (document.parent / target).exists():
                faults.append(f"{name}: links to {target}, which is not there")
    print("\n".join(faults) or "the documents hold")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
