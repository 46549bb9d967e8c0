"""Checks the links of built pages: each leads to a file of the site and to an anchor in it, and what a page loads is in the
site as well.

    links.py SITE"""
import html.parser
import pathlib
import sys
import urllib.parse

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# What a <link> names without loading it.
NAMED = {"canonical", "next", "prev", "alternate"}


class Page(html.parser.HTMLParser):
    """The anchors of a page, the addresses that it links to, and those that it loads."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors.update(attrs[name] for name in ("id", "name") if attrs.get(name))
        if tag == "a" and attrs.get("href"):
            self.links.add(attrs["href"])
        elif attrs.get(LOADED.get(tag)):
            (self.links if attrs.get("rel") in NAMED else self.loads).add(attrs[LOADED[tag]])


def faults_of(site):
    """One line for each link that leads nowhere."""
    site = pathlib.Path(site)
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in sorted(page.links | page.loads):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    yield f"{path.relative_to(site)} loads {link} from elsewhere"
                continue
            # The page for wrong addresses is shown in every folder, so its links begin at the site's.
            start = site if parts.path.startswith("/") else path.parent
            target = (start / urllib.parse.unquote(parts.path).lstrip("/")).resolve() if parts.path else path.resolve()
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(parts.fragment)
            there = pages.get(site / target.relative_to(site.resolve())) if target.is_relative_to(site.resolve()) else None
            if not target.is_file() or not target.is_relative_to(site.resolve()):
                yield f"{path.relative_to(site)}: {link} is not a file of the site"
            elif anchor and there is not None and anchor not in there.anchors:
                yield f"{path.relative_to(site)}: {link} is not an anchor of that page"


if __name__ == "__main__":
    faults = list(faults_of(sys.argv[1]))
    if faults:
        raise SystemExit("\n".join(faults))
