"""Copies the guides for the site, and makes a page of each other file that a guide links to.

    guides.py REPOSITORY PAGES

The guides link to each other, and to sources, as files of the repository; that must stay so, because people also read
them there. In the site a link to a source leads to a page with its text, a link to a folder to a list of its files."""
import pathlib
import re
import shutil
import subprocess
import sys

GUIDES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md")
# Without code in fences and between backticks.
LINK = re.compile(r"(```.*?^\s*```|`[^`\n]*`)|(?<=\]\()([^)#\s]+)(?=[)#])", re.MULTILINE | re.DOTALL)
FOR_TESTS = re.compile(r"^ *<!-- run: .*? -->\n", re.MULTILINE | re.DOTALL)
PICTURES = {".png", ".svg"}
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".yaml": "yaml", ".json": "json", ".py": "python"}


class Guides:
    def __init__(self, root, out):
        self.root, self.out = pathlib.Path(root).resolve(), pathlib.Path(out)
        self.pages = set()

    def write(self):
        for pattern in GUIDES:
            for guide in sorted(self.root.glob(pattern)):
                text = FOR_TESTS.sub("", guide.read_text(encoding="utf-8"))
                text = LINK.sub(lambda found, guide=guide: found[1] or self.target(guide, found[2]), text)
                self.page(guide.relative_to(self.root), text)

    def page(self, name, text):
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def target(self, guide, link):
        """What a guide's link to a file is in the site."""
        if "://" in link or link.startswith("mailto:"):
            return link
        path = (guide.parent / link).resolve()
        if not path.exists() or not path.is_relative_to(self.root):
            raise SystemExit(f"guides.py: {guide.relative_to(self.root)}: {link} is not a file of the repository")
        name = path.relative_to(self.root)
        if path.suffix == ".md":
            return link
        if path.suffix in PICTURES:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.out / name)
            return link
        if path.is_dir():
            self.folder(path, name)
            return f"{link.rstrip('/')}/index.md"
        self.source(path, name)
        return f"{link}.md"

    def source(self, path, name):
        if name in self.pages:
            return
        self.pages.add(name)
        text = path.read_text(encoding="utf-8").rstrip("\n")
        fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
        self.page(f"{name}.md", f"---\ntitle: {name}\n---\n\n# {name}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n"
                                f"{text}\n{fence}\n")

    def folder(self, path, name):
        if name in self.pages:
            return
        self.pages.add(name)
        kept = subprocess.run(["git", "-C", self.root, "ls-files", "-z", "--", path], capture_output=True, text=True,
                              check=True).stdout.split("\0")
        files = sorted(one for one in kept if one)
        rows = "".join(f"| `{pathlib.Path(one).relative_to(name)}` | {(self.root / one).stat().st_size:,} |\n" for one in files)
        self.page(name / "index.md", f"---\ntitle: {name}\n---\n\n# {name}\n\nA folder of the repository.\n\n"
                                     f"| file | bytes |\n|---|---|\n{rows}")


if __name__ == "__main__":
    Guides(*sys.argv[1:]).write()
