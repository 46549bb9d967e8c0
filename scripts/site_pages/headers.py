"""The declarations of the public headers, from Doxygen's XML and the headers' own lines."""
import html
import pathlib
import re
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field

HANDLE = re.compile(r"^\s*TESSERA_MODULE\((\w+)\);")
SECTION = re.compile(r"^// ---- (.*)")
CLASSES = ("class", "struct", "union")
BEHIND = re.compile(r"\s*///<.*")


@dataclass
class Declaration:
    """A member, function, enumeration, macro or class, in the place where its header has it."""
    kind: str
    name: str
    line: int
    code: str
    docs: list                                   # Doxygen's elements
    refs: dict = field(default_factory=dict)     # words of `code` -> Doxygen's identifiers
    ids: tuple = ()                              # Doxygen's identifiers of it
    joined: bool = False                         # follows a declaration whose comment speaks of both
    protected: bool = False
    values: list = field(default_factory=list)   # of an enumeration: (name, docs)
    members: list = field(default_factory=list)  # of a class
    bases: list = field(default_factory=list)    # of a class: (name, identifier or None)
    derived: list = field(default_factory=list)


def docs_of(element):
    """What a comment says, as elements with text; none without a comment."""
    found = [element.find(name) for name in ("briefdescription", "detaileddescription")]
    return [one for one in found if one is not None and "".join(one.itertext()).strip()]


def refs_in(element):
    return {ref.text: ref.get("refid") for ref in element.iter("ref") if ref.text}


class Lines:
    """A header's lines, counted from 1."""

    def __init__(self, path):
        self.lines = path.read_text(encoding="utf-8").splitlines()

    def begin(self, line):
        """The first line of the declaration whose name is in this line."""
        while line > 1 and re.match(r"\s*(template\b|requires\b|\[\[)", self.lines[line - 2]) and not re.search(
                r"[;{}]\s*(///<.*)?$", self.lines[line - 2]):
            line -= 1
        return line

    def declaration(self, line):
        """(the declaration without its body, its last line)"""
        text, depth, at = "", 0, self.begin(line)
        while at <= len(self.lines):
            code = BEHIND.sub("", self.lines[at - 1])
            for position, char in enumerate(code):
                depth += (char in "([{") - (char in ")]}")
                before = (text + code[:position]).rstrip()
                body = char == "{" and depth == 1 and not before.endswith("=")
                starts = char == ":" and depth == 0 and re.search(r"\)\s*(noexcept)?$", before)
                if char == ";" and depth == 0 or body or starts:
                    return unindented(before), at
            text += code + "\n"
            at += 1
        return unindented(text), at

    def together(self, first, second):
        """True if no blank line is between the two lines."""
        return all(line.strip() for line in self.lines[first:second - 1])


def unindented(text):
    lines = text.rstrip().split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] if not line[:indent].strip() else line.lstrip() for line in lines)


@dataclass
class Header:
    path: str           # from the folder of includes: tessera/engine/tensor.h
    identifier: str
    docs: list
    includes: list      # (name, identifier) of the library's
    declarations: list = field(default_factory=list)


class Reader:
    """Reads all headers; `headers` has them by name."""

    def __init__(self, folder, sources):
        self.folder, self.sources = pathlib.Path(folder), pathlib.Path(sources)
        self.headers, self.lines, self.compounds = {}, {}, {}
        for file in sorted(self.folder.glob("*.xml")):
            if file.name in ("index.xml", "Doxyfile.xml"):
                continue
            for compound in xml.parse(file).getroot().findall("compounddef"):
                self.compounds[compound.get("id")] = compound
        for identifier, compound in self.compounds.items():
            if compound.get("kind") == "file":
                path = compound.find("location").get("file")
                includes = [(one.text, one.get("refid")) for one in compound.findall("includes") if one.get("refid")]
                self.headers[path] = Header(path, identifier, docs_of(compound), includes)
                self.lines[path] = Lines(self.sources / path)
        for compound in self.compounds.values():
            if compound.get("kind") in ("file", "namespace"):
                self.read_members(compound, lambda path: self.headers[path].declarations)
        nested = {inner.get("refid") for compound in self.compounds.values()
                  if compound.get("kind") in CLASSES for inner in compound.findall("innerclass")}
        for identifier, compound in self.compounds.items():
            if compound.get("kind") in CLASSES and identifier not in nested:
                path = compound.find("location").get("file")
                self.headers[path].declarations += [one for one in [self.class_of(compound, "public")] if one]
        for path, header in self.headers.items():
            header.declarations.sort(key=lambda one: one.line)
            self.join(header.declarations, self.lines[path])

    def read_members(self, compound, into):
        seen = set()
        for member in compound.findall("sectiondef/memberdef"):
            path = member.find("location").get("file")
            # In a namespace Doxygen 1.9.8 gives members the protection of the class before them.
            protection = member.get("prot") if compound.get("kind") in CLASSES else "public"
            declaration = self.member(member, path, protection)
            if declaration and (path, declaration.line, declaration.name) not in seen:
                seen.add((path, declaration.line, declaration.name))
                into(path).append(declaration)

    def member(self, member, path, protection):
        kind, name = member.get("kind"), member.findtext("name")
        line = int(member.find("location").get("line"))
        lines = self.lines[path]
        if protection == "private" and kind != "friend" or path not in self.headers:
            return None
        if kind == "friend" and "operator" not in name:
            return None
        if kind == "define":
            if f"#undef {name}" in lines.lines or name.endswith(("_ENUMERATOR", "_CASE")):
                return None
            parameters = [one.findtext("defname") or "" for one in member.findall("param")]
            code = f"#define {name}" + (f"({', '.join(parameters)})" if parameters else "")
            end = line
        else:
            code, end = lines.declaration(line)
            code += "" if kind == "enum" else ";"
        found = Declaration(kind, name, lines.begin(line), code, docs_of(member), refs_in(member), (member.get("id"),),
                            protected=protection == "protected")
        found.end = max(end, int(member.find("location").get("bodyend") or 0))
        if kind == "enum":
            found.values = [(value.findtext("name"), docs_of(value)) for value in member.findall("enumvalue")]
            found.ids += tuple(value.get("id") for value in member.findall("enumvalue") if value.get("id"))
        return found

    def class_of(self, compound, protection):
        path, name = compound.find("location").get("file"), compound.findtext("compoundname")
        if protection == "private" or "@" in name:
            return None
        line = int(compound.find("location").get("line"))
        lines = self.lines[path]
        if handle := HANDLE.match(lines.lines[line - 1]):
            found = Declaration("handle", handle[1], line, f"TESSERA_MODULE({handle[1]});", [], {},
                                (compound.get("id"),))
            found.end = line
            found.bases = [(f"{handle[1]}Impl", self.identifier_of(f"{name}Impl"))]
            return found
        code, _ = lines.declaration(line)
        found = Declaration("class", re.sub(r"^tessera::", "", name), lines.begin(line), code + ";", docs_of(compound),
                            {}, (compound.get("id"),), protected=protection == "protected")
        found.end = int(compound.find("location").get("bodyend") or line)
        found.bases = [(one.text, one.get("refid")) for one in compound.findall("basecompoundref")
                       if one.get("prot") == "public"]
        found.derived = [(one.text, one.get("refid")) for one in compound.findall("derivedcompoundref")]
        found.refs = dict(found.bases)
        self.read_members(compound, lambda _: found.members)
        for inner in compound.findall("innerclass"):
            found.members += [one for one in [self.class_of(self.compounds[inner.get("refid")], inner.get("prot"))] if one]
        found.members.sort(key=lambda one: one.line)
        self.join(found.members, lines)
        return found

    def identifier_of(self, name):
        return next((key for key, one in self.compounds.items() if one.findtext("compoundname") == name), None)

    @staticmethod
    def join(declarations, lines):
        """A comment speaks of all declarations below it, up to a blank line or the next comment."""
        before = None
        for one in declarations:
            behind = "///<" in "".join(lines.lines[one.line - 1:one.end])
            one.joined = (before is not None and not one.docs and not before.behind and one.kind == before.kind
                          and one.kind not in ("class", "enum") and one.protected == before.protected
                          and lines.together(before.end, one.line))
            one.behind = behind
            before = one


def escaped(text):
    return html.escape(text, quote=False)
