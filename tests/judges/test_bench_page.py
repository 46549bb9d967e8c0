"""The page of `tessera bench --html` and `plan --html` in headless Chromium: it shows the numbers of the report.

The program's own code makes pages from the reports in tests/cli/fixtures. Lengths are measured twice: from the
elements, and from the pixels of a screenshot."""
import contextlib
import http.server
import json
import os
import pathlib
import re
import subprocess
import threading

import chromium
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/cli/fixtures"
RENDER = pathlib.Path(os.environ.get("TESSERA_PROGRAM", ROOT / "build/tessera")).parent / "tests/render_page"
GOOD = ("measured", "predicted")

MEASURE = """
const box = (node) => {
  const { left, top, width, height } = node.getBoundingClientRect();
  return { left, top, width, height };
};
const paint = (node) => getComputedStyle(node);
const textIn = (node, selector) => (node.querySelector(selector) ? node.querySelector(selector).innerText : null);
const trackOf = (track) => {
  const bar = track.querySelector(".bar");
  const spread = track.querySelector(".spread");
  return { of: track.dataset.memory || "", box: box(track), bar: box(bar), value: Number(bar.dataset.value),
    paint: paint(bar).backgroundColor, spread: spread ? box(spread) : null,
    parts: [...bar.querySelectorAll(".part")].map((part) => [part.dataset.part, box(part).width]) };
};
const plots = {};
for (const list of document.querySelectorAll("[data-bars]")) {
  const rows = [...list.querySelectorAll(".bar-row")].map((row) => ({
    row: Number(row.dataset.row), text: row.innerText, fault: textIn(row, ".fault"),
    dot: paint(row.querySelector(".dot")).backgroundColor, tracks: [...row.querySelectorAll(".track")].map(trackOf) }));
  plots[list.dataset.bars] = (plots[list.dataset.bars] || []).concat(rows);
}
const outside = [...document.querySelectorAll("body *")]
  .filter((node) => !node.closest(".scroll, .skip, .unseen, [hidden]"))
  .filter((node) => box(node).left + box(node).width > innerWidth + 0.5)
  .map((node) => `${node.tagName}.${node.className.baseVal ?? node.className}`);
const nameOf = (node) => node.getAttribute("aria-label") || node.innerText ||
  [...(node.labels || [])].map((label) => label.innerText).join("");
const all = (selector) => [...document.querySelectorAll(selector)];
return {
  plots, outside, title: document.title, scrollWidth: document.documentElement.scrollWidth,
  paper: paint(document.body).backgroundColor, ink: paint(document.body).color,
  soft: paint(document.querySelector(".note")).color, lead: document.querySelector(".lead").innerText,
  hacked: window.hacked ?? null, elements: all("body *").length,
  strange: all("img, iframe, object, embed, base, form, [onerror], [onload]").length,
  sections: all("main section").map((node) => node.id),
  table: all(".all-rows tbody tr").map((row) => ({ status: row.dataset.status,
    cells: [...row.children].map((cell) => cell.innerText) })),
  head: all(".all-rows thead th").map((cell) => cell.innerText.replaceAll("\\u00ad", "")),
  points: all(".point[data-row]").map((point) => ({ plot: point.closest("[data-plot]").dataset.plot,
    row: Number(point.dataset.row), value: Number(point.dataset.value), x: Number(point.getAttribute("cx")),
    y: Number(point.getAttribute("cy")), fill: paint(point).fill })),
  spans: all("[data-timeline] .span").map((span) => ({ seconds: Number(span.dataset.seconds),
    width: box(span).width })),
  nameless: all("button, select, a[href], [tabindex='0']").filter((node) => !nameOf(node)).length,
  unlabelled: all("svg[width]:not([aria-label]), section:not([aria-labelledby]):not([aria-label])").length,
};
"""


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as one:
        yield one


@pytest.fixture(scope="module")
def show(browser):
    """Opens a page; when it is closed, it must have had no errors."""
    @contextlib.contextmanager
    def opened(path, **options):
        with chromium.Page(browser, path, **options) as page:
            yield page
            assert page.complaints() == []
    return opened


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    """A function from the name of a fixture, or from a report, to (report, page)."""
    assert os.access(RENDER, os.X_OK), f"{RENDER} is not a program: scripts/judges builds the target render_page"

    def make(source):
        folder = tmp_path_factory.mktemp("page")
        report = source if isinstance(source, dict) else json.loads((FIXTURES / source).read_text(encoding="utf-8"))
        (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
        subprocess.run([RENDER, folder / "report.json", folder / "page.html"], check=True, timeout=60)
        return report, folder / "page.html"
    return make


@pytest.fixture(scope="module")
def measure(show):
    def take(path, **options):
        with show(path, **options) as page:
            return page.value(MEASURE)
    return take


@pytest.fixture(scope="module")
def measured(page_of, measure):
    """(report, page, measurements) of the strategies' fixture by width and darkness, each measured once."""
    report, page = page_of("bench_strategies.json")
    kept = {}

    def get(width=1100, dark=False):
        if (width, dark) not in kept:
            kept[width, dark] = measure(page, width=width, dark=dark)
        return report, page, kept[width, dark]
    return get


def rgb(text):
    return np.array([float(number) for number in re.findall(r"[\d.]+", text)[:3]])


def expected_lengths(report, plot):
    """{(row, track): number}, the numbers that the bars of a plot show."""
    numbers = {}
    for index, row in enumerate(report["rows"]):
        if plot == "tokens" and row["status"] in GOOD and row.get("tokens_per_s"):
            numbers[index, ""] = row["tokens_per_s"]["median"]
        if plot == "memory":
            for track in ("measured", "planned", "resident"):
                if (row.get("memory") or {}).get(track) is not None:
                    numbers[index, track] = row["memory"][track]
        if plot == "exposed" and row["status"] in GOOD and row.get("exposed_s"):
            numbers[index, ""] = sum(row["exposed_s"].values())
    return numbers


@pytest.mark.parametrize("width", [1100, 360])
@pytest.mark.parametrize("plot", ["tokens", "memory", "exposed"])
def test_elements_of_bars_are_as_long_as_the_numbers(measured, plot, width):
    report, _, page = measured(width)
    bars = {(row["row"], track["of"]): track for row in page["plots"][plot] for track in row["tracks"]}
    numbers = expected_lengths(report, plot)
    assert set(bars) == set(numbers)
    longest = max(numbers, key=numbers.get)
    scale = bars[longest]["bar"]["width"] / numbers[longest]
    assert bars[longest]["bar"]["width"] > 0.9 * bars[longest]["box"]["width"]
    for key, number in numbers.items():
        assert bars[key]["value"] == pytest.approx(number)
        assert abs(bars[key]["bar"]["width"] - number * scale) <= 0.5, key
        assert bars[key]["bar"]["left"] == bars[longest]["bar"]["left"], key
        if bars[key]["parts"]:
            assert sum(part[1] for part in bars[key]["parts"]) == pytest.approx(bars[key]["bar"]["width"], abs=0.5)


@pytest.mark.parametrize("dark", [False, True])
def test_painted_bars_are_as_long_as_the_numbers(measured, show, dark):
    report, path, elements = measured(dark=dark)
    paper = rgb(elements["paper"])
    for plot in ("tokens", "memory", "exposed"):
        numbers = expected_lengths(report, plot)
        boxes = {(row["row"], track["of"]): track["box"] for row in elements["plots"][plot] for track in row["tracks"]}
        top, left = (int(min(box[side] for box in boxes.values())) for side in ("top", "left"))
        height = int(max(box["top"] + box["height"] for box in boxes.values())) + 1 - top
        width = int(max(box["left"] + box["width"] for box in boxes.values())) + 2 - left
        with show(path, dark=dark) as page:
            pixels = page.screenshot({"left": left, "top": top, "width": width, "height": height})
        painted = {}
        for key, box in boxes.items():
            y = round(box["top"] - top + box["height"] * 0.1)  # above the line that shows the spread
            begin = round(box["left"]) - left
            drawn = np.abs(pixels[y, begin:] - paper).max(axis=1) > 6
            painted[key] = int(np.flatnonzero(drawn).max()) + 1
        scale = max(painted.values()) / max(numbers.values())
        for key, number in numbers.items():
            assert abs(painted[key] - number * scale) <= 1.5, (plot, key)  # each end is rounded to a pixel


def test_spreads_reach_from_the_lowest_round_to_the_highest(measured):
    report, _, page = measured()
    seen = 0
    for row in page["plots"]["tokens"]:
        rate = report["rows"][row["row"]].get("tokens_per_s")
        for track in row["tracks"]:
            if rate["low"] is None:
                assert track["spread"] is None
                continue
            scale = track["bar"]["width"] / rate["median"]
            assert abs(track["spread"]["left"] - track["bar"]["left"] - rate["low"] * scale) <= 0.5
            assert abs(track["spread"]["width"] - (rate["high"] - rate["low"]) * scale) <= 0.5
            seen += 1
    assert seen >= 8


def test_memory_is_by_kind(measured):
    report, _, page = measured()
    for row in page["plots"]["memory"]:
        kinds = (report["rows"][row["row"]]["memory"] or {}).get("kinds")
        for track in row["tracks"]:
            if track["of"] != "measured" or not kinds:
                assert track["parts"] == []
                continue
            scale = track["bar"]["width"] / track["value"]
            assert {name for name, _ in track["parts"]} == {kind for kind, size in kinds.items() if size > 0}
            for name, width in track["parts"]:
                assert abs(width - kinds[name] * scale) <= 0.5


def test_rows_without_a_result_say_why_and_have_no_bar(measured):
    report, _, page = measured()
    shown = {row["row"]: row for row in page["plots"]["tokens"]}
    assert sorted(shown) == list(range(len(report["rows"])))
    words = {"failed": "failed", "timed_out": "timed out", "does_not_fit": "does not fit"}
    for index, row in enumerate(report["rows"]):
        line = page["table"][index]
        assert line["status"] == row["status"]
        if row["status"] in GOOD:
            assert shown[index]["fault"] is None and len(shown[index]["tracks"]) == 1
            continue
        assert shown[index]["tracks"] == []
        for text in (shown[index]["fault"], line["cells"][1]):
            assert words[row["status"]] in text and row["reason"] in text
        speed = [cell for title, cell in zip(page["head"], line["cells"]) if title in ("Tokens/s", "Samples/s", "Step")]
        assert speed == ["–"] * 3
    assert "3 of 12 rows have no result" in page["lead"]


def test_the_table_has_the_numbers(measured):
    report, _, page = measured()
    column = {title: [line["cells"][place] for line in page["table"]] for place, title in enumerate(page["head"])}
    for index, row in enumerate(report["rows"]):
        if row["status"] not in GOOD:
            continue
        assert column["Tokens/s"][index] == f"{round(row['tokens_per_s']['median']):,}"
        if row.get("speedup"):
            assert column["Speed-up"][index] == f"{row['speedup']:.2f}×"
        if row.get("mfu") is None:
            assert column["MFU"][index] == "–"
        assert column["Launcher"][index] == row.get("launcher", "–")


def test_the_scaling_curve_stands_where_the_speed_ups_are(measured):
    report, _, page = measured()
    points = [point for point in page["points"] if point["plot"] == "Speed-up"]
    rows = {index: row for index, row in enumerate(report["rows"]) if row["status"] in GOOD and row.get("speedup")}
    assert {point["row"] for point in points} == set(rows)
    first, last = (choice(points, key=lambda point: point["value"]) for choice in (min, max))
    slope = (last["y"] - first["y"]) / (last["value"] - first["value"])
    assert slope < 0
    for point in points:
        assert point["value"] == pytest.approx(rows[point["row"]]["speedup"])
        assert abs(point["y"] - first["y"] - slope * (point["value"] - first["value"])) <= 0.1
    at = {rows[point["row"]]["world_size"]: point["x"] for point in points}
    assert at[2] > at[1]


def test_spans_of_the_time_line_are_as_long_as_they_took(measured):
    report, _, page = measured()
    row = next(row for row in report["rows"] if row.get("timeline"))
    spans = [span for rank in row["timeline"]["ranks"] for lane in rank["lanes"] for span in lane["spans"]]
    assert len(page["spans"]) == len(spans)
    longest = max(page["spans"], key=lambda span: span["seconds"])
    scale = longest["width"] / longest["seconds"]
    for span in page["spans"]:
        assert abs(span["width"] - span["seconds"] * scale) <= 1
    seconds = sum(span["end_s"] - span["start_s"] for span in spans)
    assert sum(span["seconds"] for span in page["spans"]) == pytest.approx(seconds)


def test_a_narrow_screen_needs_no_sideways_scrolling(measured, measure, page_of):
    _, _, page = measured(360)
    assert page["scrollWidth"] == 360
    assert page["outside"] == []
    for fixture in ("bench_hostile.json", "bench_plan.json"):
        elements = measure(page_of(fixture)[1], width=360)
        assert (elements["scrollWidth"], elements["outside"]) == (360, []), fixture


def luminance(colour):
    linear = np.where(colour / 255 <= 0.04045, colour / 255 / 12.92, ((colour / 255 + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_can_be_read(measured, dark):
    _, _, page = measured(dark=dark)
    paper = rgb(page["paper"])
    assert (luminance(paper) < 0.05) if dark else (luminance(paper) > 0.9)
    assert contrast(rgb(page["ink"]), paper) >= 7
    assert contrast(rgb(page["soft"]), paper) >= 4.5
    for row in page["plots"]["tokens"]:
        for track in row["tracks"]:
            assert contrast(rgb(track["paint"]), paper) >= 3, row["text"]


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as people with the deficiency see it.
COLOUR_BLIND = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def lab(colour, sight=None):
    linear = np.where(colour / 255 <= 0.04045, colour / 255 / 12.92, ((colour / 255 + 0.055) / 1.055) ** 2.4)
    if sight is not None:
        linear = np.clip(np.array(sight) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 1e-6))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("dark", [False, True])
def test_a_strategy_has_one_colour_that_no_other_has(measured, dark):
    report, _, page = measured(dark=dark)
    colours = {}
    for row in page["plots"]["tokens"]:
        strategy = report["rows"][row["row"]]["strategy"]
        if not report["rows"][row["row"]].get("peer"):  # whose dots are rings
            colours.setdefault(strategy, set()).add(row["dot"])
        for track in row["tracks"]:
            colours[strategy].add(track["paint"])
    for point in page["points"]:
        row = report["rows"][point["row"]]
        if not row.get("peer"):
            colours[row["strategy"]].add(point["fill"])
    assert {len(one) for one in colours.values()} == {1} and len(colours) == 8
    each = {strategy: rgb(one.pop()) for strategy, one in colours.items()}
    for sight in (None, *COLOUR_BLIND.values()):
        for one in each:
            for other in each:
                apart = np.linalg.norm(lab(each[one], sight) - lab(each[other], sight))
                assert one == other or apart >= 15, (one, other, apart)


def test_the_toggle_changes_colours_and_nothing_else(measured, show):
    _, path, elements = measured()
    with show(path) as page:
        seen = page.value("""
          const button = document.getElementById("theme");
          const seen = [];
          for (let i = 0; i < 4; ++i) {
            seen.push([button.innerText, getComputedStyle(document.body).backgroundColor, document.body.scrollHeight]);
            button.click();
          }
          return seen;""")
    assert [name for name, _, _ in seen] == ["Colours: system", "Colours: light", "Colours: dark", "Colours: system"]
    light, dark = elements["paper"], measured(dark=True)[2]["paper"]
    assert [paper for _, paper, _ in seen] == [light, light, dark, light] and light != dark
    assert len({height for _, _, height in seen}) == 1


def test_two_rows_are_compared_by_choosing_and_by_pointing(measured, show):
    report, path, _ = measured()
    names = {row["name"]: index for index, row in enumerate(report["rows"])}
    first, second = (names[name] for name in ("NO_SHARD, 2 ranks, fp32", "FULL_SHARD, 2 ranks, fp32"))
    button = """document.querySelector('[data-bars=tokens] [data-row="%d"] .name')"""
    tip = "const tip = document.getElementById('tip'); return [tip.hidden, tip.innerText];"
    with show(path) as page:
        page.value(f"{button % first}.click();")
        x, y = page.value(f"const box = {button % second}.getBoundingClientRect(); return [box.left + 5, box.top + 5];")
        page.move(x, y)
        hidden, pointed = page.value(tip)
        page.press("Escape", 27)
        away = page.value(tip)[0]
        page.value(f"{button % second}.click();")
        difference, pressed = page.value("""return [document.getElementById("difference").innerText,
          [...document.querySelectorAll("[data-bars=tokens] [aria-pressed=true]")].map((node) => node.innerText)];""")
    assert not hidden and away
    assert "against NO_SHARD, 2 ranks, fp32" in pointed
    assert pressed == ["NO_SHARD, 2 ranks, fp32", "FULL_SHARD, 2 ranks, fp32"]
    speed = report["rows"][second]["tokens_per_s"]["median"] / report["rows"][first]["tokens_per_s"]["median"]
    for text in (pointed, difference):
        assert "strategy" in text and "FULL_SHARD" in text
        assert f"{speed:.2f}×" in text
    assert "precision fp32" in difference.split("The same in both:")[1]


def test_the_keyboard_reaches_everything(measured, show):
    report, path, _ = measured()
    with show(path) as page:
        wanted = page.value("""return [...document.querySelectorAll("button, select, a[href], [tabindex='0']")]
          .filter((node) => node.checkVisibility()).length;""")
        reached = []
        for _ in range(wanted + 1):
            page.press("Tab", 9)
            reached.append(page.value("""const node = document.activeElement; node.dataset.reached = "yes";
              const outline = getComputedStyle(node).outlineStyle;
              return [node.tagName, outline, document.querySelectorAll("[data-reached]").length];"""))
        assert reached[wanted - 1][2] == wanted
        assert all(outline != "none" for _, outline, _ in reached[:wanted])
        reading = "return document.querySelector('.reading').innerText;"
        read = [page.value(f"document.querySelector('[data-timeline]').focus(); {reading}")]
        for key, code in (("ArrowRight", 39), ("ArrowDown", 40), ("End", 35)):
            page.press(key, code)
            read.append(page.value(reading))
    lanes = next(row for row in report["rows"] if row.get("timeline"))["timeline"]["ranks"][0]["lanes"]
    assert len(set(read)) == 4
    assert all(lane in text for text, lane in zip(read, ("compute", "compute", "reduce", "reduce")))
    assert lanes[0]["spans"][0]["name"] in read[0]


def test_everything_has_a_name(measured):
    _, _, page = measured()
    assert (page["nameless"], page["unlabelled"]) == (0, 0)


def test_names_from_files_never_become_markup(page_of, measure):
    report, page = page_of("bench_hostile.json")
    elements = measure(page)
    assert elements["hacked"] is None and elements["strange"] == 0
    rows = [row for row in report["rows"] if isinstance(row, dict)]
    assert len(elements["table"]) == len(rows)
    assert rows[0]["name"] in elements["table"][0]["cells"][0]
    assert rows[1]["reason"].split("\u2028")[0].strip() in elements["table"][1]["cells"][1]
    harmless = json.loads(json.dumps(report).replace("<", "(").replace(">", ")"))
    assert measure(page_of(harmless)[1])["elements"] == elements["elements"]


def test_nothing_is_fetched(page_of, measure):
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        report = json.loads((FIXTURES / "bench_strategies.json").read_text(encoding="utf-8"))
        for row in report["rows"]:
            row["name"] += f'<img src="{address}img"><link rel=stylesheet href={address}css>'
            row["strategy"] += f"; background: url({address}background)"
        report["recipe"] = f"<script src={address}script></script>"
        measure(page_of(report)[1])
        server.shutdown()
    assert asked == []


def test_missing_figures_are_shown_as_unknown(page_of, measure, show):
    report = {"format": "tessera-bench", "rows": [{"name": "nothing known", "strategy": "none", "status": "measured"}]}
    elements = measure(page_of(report)[1])
    assert elements["plots"]["tokens"][0]["tracks"] == []
    assert "not known" in elements["plots"]["tokens"][0]["text"]
    assert not re.search(r"NaN|undefined|null|Infinity", json.dumps(elements["table"]) + elements["lead"])
    with show(page_of({"format": "tessera-plan"})[1]) as page:
        assert "The report has no rows." in page.value("return document.body.innerText;")


def test_a_plan_has_the_same_plots_and_its_sweep(page_of, measure):
    report, page = page_of("bench_plan.json")
    elements = measure(page)
    assert {"throughput", "memory", "exposed", "sweep", "rows"} <= set(elements["sections"])
    assert "recommended" in elements["sections"]
    assert [line["status"] for line in elements["table"]] == [
        "refused" if "refused" in row else "predicted" if row["fits"] else "does_not_fit" for row in report["rows"]]
    good = {index: row for index, row in enumerate(report["rows"]) if row.get("fits") and row["predicted"]}
    for plot, number in {"Time of a step": lambda row: row["predicted"]["step_s"],
                         "Memory of a rank": lambda row: row["memory"]["planned"]}.items():
        points = {point["row"]: point for point in elements["points"] if point["plot"] == plot and point["row"] in good}
        assert set(points) == set(good)
        # Both scales are logarithmic: equal ratios are equal distances.
        values = np.log([number(good[index]) for index in points])
        worlds = np.log([good[index]["world_size"] for index in points])
        for axis, logs in (("y", values), ("x", worlds)):
            at = np.array([points[index][axis] for index in points])
            slope, start = np.polyfit(logs, at, 1)
            assert np.abs(slope * logs + start - at).max() < 0.1
            assert (slope < 0) == (axis == "y")


def test_it_prints(measured, show):
    _, path, _ = measured(dark=True)
    with show(path, dark=True) as page:
        page.emulate(dark=True, media="print")
        ink, shown = page.value("""
          const controls = [...document.querySelectorAll("button.quiet, select, .tray")];
          return [getComputedStyle(document.body).color, controls.filter((node) => node.checkVisibility()).length];""")
        data = page.pdf()
    assert luminance(rgb(ink)) < 0.1 and shown == 0  # dark ink; nothing to press
    assert data.startswith(b"%PDF-")
    assert 1 < len(re.findall(rb"/Type\s*/Page\b", data)) < 12
