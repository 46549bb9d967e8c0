"""The site of scripts/site in headless Chromium: it is built without a warning, its links lead somewhere, its search finds
words, it fits a narrow screen, follows the system's colours, and asks for nothing that is not on this machine.

scripts/site makes dead links and faults in comments errors; here the same rules meet planted faults."""
import contextlib
import functools
import http.server
import pathlib
import re
import subprocess
import sys
import threading

import chromium
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ROOT / "scripts/site_pages"
FIRST_PAGES = ["index.html", "docs/cpp-api.html", "docs/recipe.html", "docs/from-accelerate.html",
               "docs/reported-faults.html", "docs/benchmarks.html", "reference/index.html", "reference/names.html",
               "reference/tessera/engine/tensor.html", "reference/tessera/engine/ops.html",
               "reference/tessera/sharding/fully_shard.html", "examples/own_module.cpp.html"]

sys.path.insert(0, str(PARTS))
comments = __import__("comments")
links = __import__("links")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([ROOT / "scripts/site", "--output", folder], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=600, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    return folder


@pytest.fixture(scope="module")
def served(site):
    """The address of the site, and the paths that were asked for."""
    asked = []

    class Server(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *_):
            asked.append(self.path)

    handler = functools.partial(Server, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as one:
        yield one


@contextlib.contextmanager
def shown(browser, served, name, **options):
    """Opens a page; when it is closed, it must have had no errors, and must have asked only its own server."""
    with chromium.Page(browser, served[0] + name, **options) as page:
        yield page
        # Icons and drawings that the pages carry within themselves need no request.
        elsewhere = [url for url in page.requests() if not url.startswith((served[0], "data:", "blob:"))]
        assert elsewhere == []
        assert [text for text in page.complaints() if not text.startswith("asks for")] == []


def search(page, word, least=1):
    """What the search finds: (title, address)."""
    return page.value(f"""
      const field = document.querySelector("[data-md-component=search-query]");
      document.querySelector("[data-md-toggle=search]").click();
      field.focus();
      field.value = {word!r};
      const found = () => [...document.querySelectorAll(".md-search-result__item .md-search-result__link")];
      for (let i = 0; i < 200 && found().length < {least}; ++i) {{
        field.dispatchEvent(new KeyboardEvent("keyup", {{ bubbles: true }}));
        await new Promise((done) => setTimeout(done, 50));
      }}
      return found().map((link) => [link.innerText.split("\\n")[0], link.href]);""")


def test_every_guide_and_every_public_header_has_a_page(site):
    guides = [path.stem for path in (ROOT / "docs").glob("*.md")]
    assert [name for name in guides if not (site / f"docs/{name}.html").is_file()] == []
    navigation = (PARTS / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in guides if f"docs/{name}.md" not in navigation] == []
    pages = {path.relative_to(site / "reference").with_suffix(".h") for path in site.glob("reference/tessera/**/*.html")}
    assert pathlib.Path("tessera/tessera.h") in pages and pathlib.Path("tessera/engine/nn/module.h") in pages
    # The reference has none of the headers that cmake/write_public_headers.cmake calls internal.
    assert [path for path in pages if re.match(r"tessera/(kernels/cuda|emulator|cli)/", str(path))] == []
    index = (site / "reference/index.html").read_text(encoding="utf-8")
    assert f"{len(pages)} headers, each with a comment" in index


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a> <a href="b.html#here">2</a> <a href="c.html">3</a> '
                                     '<a href="https://example.org/x">4</a> <img src="https://example.org/y.png">'
                                     '<a href="../../outside.html">5</a>', encoding="utf-8")
    (tmp_path / "b.html").write_text('<h1 id="there">B</h1>', encoding="utf-8")
    assert sorted(links.faults_of(tmp_path)) == [
        "a.html loads https://example.org/y.png from elsewhere", "a.html: ../../outside.html is not a file of the site",
        "a.html: b.html#here is not an anchor of that page", "a.html: c.html is not a file of the site"]


def test_the_search_finds_words_of_guides_and_names_of_the_library(browser, served, site):
    with shown(browser, served, "index.html") as page:
        guides = search(page, "all-gather")
        page.open(served[0] + "docs/recipe.html")
        names = search(page, "register_forward_hook")
    for found in (guides, names):
        assert found
        for _, address in found:
            assert (site / address.removeprefix(served[0]).split("?")[0].split("#")[0]).is_file(), address
    assert any("/docs/" in address for _, address in guides)
    assert any("reference/tessera/engine/nn/module.html" in address for _, address in names)


def test_the_colours_are_the_systems_and_the_text_can_be_read(browser, served):
    paint = """const style = (node) => getComputedStyle(node);
      return [style(document.body).backgroundColor, style(document.querySelector("article p")).color].map(
        (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number));"""
    for dark in (False, True):
        with shown(browser, served, "index.html", dark=dark) as page:
            paper, ink = (sum(colour) / 3 for colour in page.value(paint))
        assert (paper < 50 and ink > 150) if dark else (paper > 230 and ink < 100), (dark, paper, ink)


def test_no_page_is_wider_than_a_narrow_screen(browser, served):
    wide = []
    # The search would read its index anew on every page.
    with chromium.Page(browser, served[0] + FIRST_PAGES[0], width=375, blocked=["*search_index.json"]) as page:
        for name in FIRST_PAGES:
            page.open(served[0] + name)
            width = page.value("return document.documentElement.scrollWidth;")
            if width > 375:
                wide.append((name, width))
    assert wide == []


def test_nothing_is_asked_of_other_machines(browser, served):
    with shown(browser, served, "reference/tessera/sharding/fully_shard.html"):
        pass
    assert any(path.startswith("/search/") for path in served[1])  # the search asks this server


def test_comments_become_documentation_of_what_they_stand_at():
    text = """// A file's comment, with <tags> and `code`.
//
//   int example = 1;  // of its use
#pragma once

// Not above a declaration.

// Two words.
int a();
int b = 0;  // behind it
            // and below
struct S {  // not a member
  // NOLINTNEXTLINE
  int c;
};  // namespace
"""
    assert comments.convert(text) == r"""/// \file
/// A file's comment, with \<tags\> and <code>code</code>.
/// 
/// \verbatim
/// int example = 1;  // of its use
/// \endverbatim
#pragma once

// Not above a declaration.

/// Two words.
int a();
int b = 0;  ///< behind it
            ///< and below
struct S {  // not a member
  // NOLINTNEXTLINE
  int c;
};  // namespace
"""


def test_what_doxygen_or_the_reference_refuses_is_an_error(site, tmp_path):
    doxygen = ["doxygen", PARTS / "Doxyfile"]
    header = tmp_path / "headers/tessera/x.h"
    header.parent.mkdir(parents=True)
    header.write_text("/// \\file\n/// About x.\n#pragma once\n/// \\param z is not its parameter\nint f(int y);\n",
                      encoding="utf-8")
    done = subprocess.run(doxygen, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "argument 'z'" in done.stderr
    header.write_text("#pragma once\nint f(int y);\n", encoding="utf-8")
    subprocess.run(doxygen, cwd=tmp_path, timeout=60, check=True)
    done = subprocess.run([sys.executable, "-B", PARTS / "reference.py", tmp_path / "xml", tmp_path / "headers",
                           tmp_path / "pages"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "tessera/x.h" in done.stderr
