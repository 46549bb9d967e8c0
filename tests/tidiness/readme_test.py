"""The README's C++ is what examples/ builds, and every file that the documents link to is there.

    python3 readme_test.py REPOSITORY
"""
import pathlib
import re
import sys


def main():
    root = pathlib.Path(sys.argv[1])
    readme = (root / "README.md").read_text(encoding="utf-8")
    example = (root / "examples/own_module.cpp").read_text(encoding="utf-8")
    faults = []
    blocks = re.findall(r"```cpp\n(.*?)```", readme, re.S)
    if not blocks:
        faults.append("README.md has no C++ example")
    for block in blocks:
        if block not in example:
            faults.append("README.md: a C++ block is not in examples/own_module.cpp word by word")
    for document in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            if "://" not in target and not (document.parent / target).exists():
                faults.append(f"{document.relative_to(root)}: links to {target}, which is not there")
    print("\n".join(faults) or "the documents hold")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
