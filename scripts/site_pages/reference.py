"""Writes the API reference as Markdown pages, one for each public header, from Doxygen's XML.

    reference.py XML HEADERS PAGES

A page has the declarations in the order of the header. Each public header must have a comment; a class without one is
described by its header's. The index counts both."""
import collections
import pathlib
import posixpath
import re
import sys

from headers import SECTION, Reader, escaped

FLOORS = {
    "tessera": "The whole library",
    "engine": "Tensors, operations, modules, optimizers, data",
    "sharding": "Sharding",
    "trainer": "Runs",
    "tasks": "Data sets, losses and evaluators",
    "models": "Models",
    "tokenizers": "Tokenizers",
    "checkpoint": "Checkpoints",
    "comm": "Ranks and collectives",
    "kernels": "Arguments of kernels",
    "base": "Errors, dtypes, threads",
}


class Pages:
    def __init__(self, reader):
        self.reader = reader
        self.places = {}  # Doxygen's identifier -> (page, anchor)
        self.called = {}  # Doxygen's identifier -> names, one of which is in a text that links to it
        self.calls = {}   # Doxygen's identifier -> whether it can be called
        self.counted = collections.Counter()
        for header in reader.headers.values():
            page = self.page_of(header)
            self.places[header.identifier] = (page, "")
            self.called[header.identifier] = {posixpath.basename(header.path)}
            self.place(header.declarations, page, "", collections.Counter())

    @staticmethod
    def page_of(header):
        return header.path.removesuffix(".h") + ".md"

    def place(self, declarations, page, within, used):
        for one in declarations:
            last = one.name.split("<")[0].split("::")[-1].strip()
            name = re.sub(r"\W+", "-", one.name.split("::")[-1]).strip("-") or "operator"
            if one.name.startswith("operator"):
                name = "operator"
            anchor = f"{within}-{name}" if within else name
            used[anchor] += 1
            if used[anchor] > 1:
                anchor += f"-{used[anchor]}"
            one.anchor = anchor
            for identifier in one.ids:
                self.places.setdefault(identifier, (page, anchor))
                self.called.setdefault(identifier, {last, *(name for name, _ in one.values)})
                self.calls[identifier] = one.kind not in ("enum", "variable")
            self.place(one.members, page, anchor, used)

    def link(self, identifier, page, text):
        """The address of what the text names, if it does: Doxygen 1.9.8 also links words to variables of other names, and
        calls to values of enumerations."""
        if identifier not in self.places or not any(name in text for name in self.called[identifier]):
            return None
        if text.endswith(")") and not self.calls.get(identifier, False):
            return None
        there, anchor = self.places[identifier]
        target = "" if there == page else posixpath.relpath(there, posixpath.dirname(page)).removesuffix(".md") + ".html"
        return target + (f"#{anchor}" if anchor else "") or None

    def code(self, one, page):
        """The declaration with links to the types in it."""
        def linked(word):
            for name in (word[0], *word[0].split("::")[-1:]):
                if target := self.link(one.refs.get(name), page, name):
                    return f'<a href="{target}">{word[0]}</a>'
            return word[0]
        return re.sub(r"[A-Za-z_]\w*(::\w+)*", linked, escaped(one.code))

    def prose(self, element, page):
        """The element's content as HTML."""
        out = escaped(element.text or "")
        for child in element:
            inner = self.prose(child, page)
            if child.tag == "ref":
                target = self.link(child.get("refid"), page, child.text or "")
                inner = f'<a href="{target}">{inner}</a>' if target else inner
            elif child.tag == "computeroutput":
                inner = f"<code>{inner}</code>"
            elif child.tag == "ulink":
                inner = f'<a href="{child.get("url")}">{inner}</a>'
            elif child.tag == "verbatim":
                inner = re.sub(r"^\s*/// ?", "", inner.strip(), flags=re.MULTILINE).strip()
                inner = f"<pre><code>{inner}</code></pre>"
            elif child.tag != "para":
                raise SystemExit(f"reference.py: {page}: no rule for Doxygen's element {child.tag}")
            out += inner + escaped(child.tail or "")
        return out

    def says(self, docs, page):
        paragraphs = [self.prose(para, page).strip() for one in docs for para in one.findall("para")]
        return "".join(f"<div>{text}</div>" for text in paragraphs)

    def groups(self, declarations):
        """Declarations that one comment speaks of."""
        group = []
        for one in declarations:
            if not one.joined and group:
                yield group
                group = []
            group.append(one)
        if group:
            yield group

    def entry(self, group, page, anchors=True):
        first = group[0]
        if first.kind == "handle":
            implementation, identifier = first.bases[0]
            target = self.link(identifier, page, implementation)
            name = f'<a href="{target}">{implementation}</a>' if target else implementation
            says = f"<div>The handle of {name}: <code>{first.name}(...)</code> makes one.</div>"
        else:
            says = self.says(first.docs, page)
        lines = "\n".join(self.span(one, page, anchors or one is not first) for one in group)
        if first.kind == "enum":
            says += self.values(first, page)
        # A short comment behind a field stands there here as well.
        kind = "entry field" if first.kind == "variable" and len(group) == 1 else "entry"
        return f'<div class="{kind}"><pre><code>{lines}</code></pre><div>{says}</div></div>'

    def span(self, one, page, anchored):
        anchor = f' id="{one.anchor}"' if anchored else ""
        return f"<span{anchor}>{self.code(one, page)}</span>"

    def values(self, one, page):
        if not any(docs for _, docs in one.values):
            return f"<div>{', '.join(f'<code>{name}</code>' for name, _ in one.values)}</div>"
        rows = "".join(f"<dt><code>{name}</code></dt><dd>{self.says(docs, page)}</dd>" for name, docs in one.values)
        return f"<dl>{rows}</dl>"

    def named(self, names, page):
        for name, identifier in names:
            shown, target = f"<code>{escaped(name.removeprefix('tessera::'))}</code>", self.link(identifier, page, name)
            yield f'<a href="{target}">{shown}</a>' if target else shown

    def class_page(self, one, page, level):
        self.counted["classes"] += 1
        self.counted["classes with a comment"] += bool(one.docs)
        yield f"{'#' * level} {escaped(one.name)} {{#{one.anchor}}}\n"
        yield f'<div class="entry"><pre><code>{self.span(one, page, False)}</code></pre><div>{self.says(one.docs, page)}</div></div>\n'
        if one.derived:
            yield f"Derived from it: {', '.join(self.named(one.derived, page))}\n"
        protected, inner = False, []
        for group in self.groups(one.members):
            if group[0].kind == "class":
                inner.append(group[0])
                continue
            self.counted["members"] += len(group)
            self.counted["members with a comment"] += len(group) if group[0].docs else 0
            if group[0].protected and not protected:
                yield "For classes that derive from it:\n"
            protected = group[0].protected
            yield self.entry(group, page) + "\n"
        for nested in inner:
            yield from self.class_page(nested, page, min(level + 1, 4))

    def header_page(self, header):
        page = self.page_of(header)
        up = "../" * page.count("/")
        yield f"---\ntitle: {header.path.removeprefix('tessera/')}\nhide: [navigation]\n---\n"
        yield f"# {header.path.removeprefix('tessera/')}\n"
        yield f'<div class="entry"><pre><code>#include &lt;{header.path}&gt;</code></pre><div>{self.says(header.docs, page)}</div></div>\n'
        sections = [(number, line) for number, text in enumerate(self.reader.lines[header.path].lines, 1)
                    if (line := SECTION.match(text))]
        for group in self.groups(header.declarations):
            first = group[0]
            while sections and sections[0][0] < first.line:
                number, title = sections.pop(0)
                yield self.section(self.reader.lines[header.path].lines, number)
            if first.kind == "class":
                yield from self.class_page(first, page, 2)
                continue
            self.counted["functions and types"] += len(group)
            self.counted["functions and types with a comment"] += len(group) if first.docs or first.kind == "handle" else 0
            names = list(dict.fromkeys(one.name for one in group))
            yield f"## {escaped(', '.join(names))} {{#{first.anchor}}}\n"
            yield self.entry(group, page, anchors=False) + "\n"
        if not header.declarations and header.includes:
            included = [one for one in header.includes if not one[0].endswith("/cpp20.h")]
            yield f"Includes {', '.join(self.named(included, page))}\n"
        yield f"[All headers]({up}index.md)\n"

    @staticmethod
    def section(lines, number):
        """A heading of the header: `// ---- Title. Text`, with the lines below it."""
        text = []
        while lines[number - 1].startswith("//"):
            text.append(lines[number - 1].removeprefix("//").strip(" -"))
            number += 1
        title, _, rest = re.sub(r"\.$", "", " ".join(text)).partition(": ")
        return f'<div class="part"><strong>{escaped(title)}</strong>{": " + escaped(rest) if rest else ""}</div>\n'

    def first_sentence(self, header):
        text = " ".join("".join(header.docs[0].itertext()).split()) if header.docs else ""
        return escaped(re.match(r"(.*?\.)(?:\s|$)|.*", text)[0].strip())

    def index(self):
        yield "# API reference\n"
        yield ("Every header that a program may include, from the headers' own comments, which Doxygen reads. "
               "`<tessera/tessera.h>` includes what a training program needs; namespace `tessera`, short `ts`. "
               "[C++ API](../docs/cpp-api.md) is the guide. [All names](names.md) lists classes and functions.\n")
        yield ("A comment speaks of all declarations below it. Where a class has none, the text at the top of its page "
               "describes it.\n")
        floors = collections.defaultdict(list)
        for header in self.reader.headers.values():
            parts = header.path.split("/")
            floors[parts[1] if len(parts) > 2 and parts[1] in FLOORS else "tessera"].append(header)
        for floor, title in FLOORS.items():
            yield f"## {title} {{#{floor}}}\n"
            yield "| header | subject |\n|---|---|"
            for header in sorted(floors[floor], key=lambda one: one.path):
                yield f"| [`{header.path.removeprefix('tessera/')}`]({self.page_of(header)}) | {self.first_sentence(header)} |"
            yield ""
        whole = ("classes", "members", "functions and types")
        yield f"{len(self.reader.headers)} headers, each with a comment. With a comment of their own or of their group: "
        yield ", ".join(f"{self.counted[f'{name} with a comment']} of {self.counted[name]} {name}" for name in whole) + ".\n"

    def names(self):
        yield "# All names\n"
        found = collections.defaultdict(list)
        for header in self.reader.headers.values():
            for one in header.declarations:
                if not one.name.startswith("operator"):
                    name = one.name.split("::")[-1]
                    found[name].append((header, one))
                    for inner in one.members:
                        if inner.kind == "class":
                            found["::".join(inner.name.split("::")[-2:])].append((header, inner))
        letter = None
        for name in sorted(found, key=lambda name: (name.lower(), name)):
            if name[0].upper() != letter:
                letter = name[0].upper()
                yield f"\n## {letter}\n"
            header, one = found[name][0]
            where = dict.fromkeys(f"[{header.path.removeprefix('tessera/')}]({self.page_of(header)}#{one.anchor})"
                                  for header, one in found[name])
            yield f"* `{name}`: {', '.join(where)}"


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(folder, headers, out):
    pages, out = Pages(Reader(folder, headers)), pathlib.Path(out)
    faults = [header.path for header in pages.reader.headers.values() if not header.docs]
    if faults:
        raise SystemExit(f"reference.py: these headers begin without a comment: {', '.join(faults)}")
    for header in pages.reader.headers.values():
        write(out / pages.page_of(header), pages.header_page(header))
    write(out / "index.md", pages.index())
    write(out / "names.md", pages.names())


if __name__ == "__main__":
    main(*sys.argv[1:])
