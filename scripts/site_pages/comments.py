"""Writes the public headers for Doxygen: their plain comments become documentation comments.

    comments.py HEADERS DESTINATION

The headers keep the comments that people read. A comment directly above a declaration belongs to it, a comment behind a
declaration as well, and the first comment of a file to the file. All other comments stay as they are."""
import pathlib
import re
import sys

COMMENT = re.compile(r"^(\s*)//(?: (.*)|)$")
# Code that ends as a member, an enumerator or a parameter does, and a comment behind it.
BEHIND = re.compile(r"^(\s*(?![\s#}]).*?\S)(\s+)// (.*)$")
NO_TEXT = ("NOLINT", "clang-format")


def escape(text):
    """The text, without a meaning of its own for Doxygen. Words between backticks are code."""
    text = re.sub(r"([\\@&$#<>%\"])", r"\\\1", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def paragraphs(lines):
    """The lines of a comment for Doxygen. Lines that are indented are code, shown as they are."""
    code = False
    for line in lines:
        if line.startswith("  ") != code and line:
            code = not code
            yield r"\verbatim" if code else r"\endverbatim"
        yield line[2:] if code else escape(line)
    if code:
        yield r"\endverbatim"


def belongs_to(line):
    """True if a comment above this line speaks of it."""
    line = line.strip()
    return not (not line or line.startswith(("}", "//", "#")) and not line.startswith("#define")
                or line in ("public:", "private:", "protected:"))


def convert(text):
    lines = text.splitlines()
    out, at, behind = [], 0, None
    while at < len(lines):
        line = lines[at]
        comment = COMMENT.match(line)
        if comment is None:
            found = BEHIND.match(line)
            if found and not found[3].startswith(NO_TEXT) and not found[1].endswith(("{", ":", "(")):
                behind = len(found[1]) + len(found[2])
                line = f"{found[1]}{found[2]}///< {escape(found[3])}"
            else:
                behind = None
            out.append(line)
            at += 1
            continue
        end = at
        while end < len(lines) and (one := COMMENT.match(lines[end])) and one[1] == comment[1]:
            end += 1
        block = [COMMENT.match(line)[2] or "" for line in lines[at:end]]
        if behind is not None and len(comment[1]) == behind:
            out += [f"{comment[1]}///< {escape(text)}" for text in block]
        elif at == 0:
            out += [r"/// \file", *(f"/// {text}" for text in paragraphs(block))]
        elif end < len(lines) and belongs_to(lines[end]) and not block[0].startswith(NO_TEXT):
            out += [f"{comment[1]}/// {text}" for text in paragraphs(block)]
        else:
            out += lines[at:end]
        at, behind = end, None
    return "\n".join(out) + "\n"


def write(source, destination):
    for header in sorted(pathlib.Path(source).rglob("*.h")):
        copy = pathlib.Path(destination) / header.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(convert(header.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(*sys.argv[1:])
