"""Headless Chromium as a judge of pages: what it measures in a page's elements, and what it paints."""
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import zlib

import numpy as np
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

# Hears of errors from the first script on, and leaves what `measure` returns in the document when all is drawn.
PROBE = """<script nonce="page">
(() => {
  const faults = [];
  addEventListener("error", (event) => faults.push(String(event.message)), true);
  addEventListener("unhandledrejection", (event) => faults.push(String(event.reason)));
  addEventListener("securitypolicyviolation", (event) => faults.push(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  addEventListener("load", async () => {
    const result = { faults };
    try {
      await frame();
      await frame();
      const measure = async (frame) => { MEASURE };
      result.value = await measure(frame);
      result.width = innerWidth;
      result.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
    } catch (error) {
      faults.push(`the probe: ${error.stack}`);
    }
    const node = document.createElement("script");
    node.type = "application/json";
    node.id = "probe";
    node.textContent = JSON.stringify(result).replaceAll("<", "\\\\u003c");
    document.body.append(node);
  });
})();
</script>
"""


def find_chromium():
    named = os.environ.get("TESSERA_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: scripts/setup installs the package chromium, TESSERA_CHROMIUM names another")
    return found


def run(*arguments, width, height, dark=False):
    """What Chromium prints, and its own complaints about the page."""
    with tempfile.TemporaryDirectory(prefix="tessera-chromium-", ignore_cleanup_errors=True) as profile:
        command = [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-extensions",
                   "--hide-scrollbars", "--force-device-scale-factor=1", "--force-color-profile=srgb",
                   "--virtual-time-budget=5000", "--enable-logging=stderr", f"--user-data-dir={profile}",
                   f"--window-size={width},{height}", *(["--force-dark-mode"] if dark else []), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
                              env={**os.environ, "HOME": profile})
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert console == []
    return done.stdout


def measure(page, script, *, width=1100, height=2400, dark=False):
    """What the body of a function `script` returns in the page; no error, no refused access, no access to anything."""
    text = page.read_text(encoding="utf-8")
    probe = PROBE.replace("MEASURE", script)
    probed = page.with_name(f"probed-{page.name}")
    probed.write_text(text.replace("<title>", probe + "<title>", 1), encoding="utf-8")
    document = run("--dump-dom", probed.as_uri(), width=width, height=height, dark=dark)
    found = re.search(r'<script type="application/json" id="probe">(.*?)</script>', document, re.S)
    assert found, document[-500:]
    result = json.loads(found.group(1))
    assert result["faults"] == []
    assert result["resources"] == []
    assert result["width"] == width
    return result["value"]


def screenshot(page, *, width=1100, height=2400, dark=False):
    """The pixels [height, width, 3] of the page as it is painted."""
    path = page.with_name(f"{page.stem}-{width}-{'dark' if dark else 'light'}.png")
    run(f"--screenshot={path}", page.as_uri(), width=width, height=height, dark=dark)
    return read_png(path.read_bytes())


def read_png(data):
    """Eight bits a channel, not interlaced: what Chromium writes."""
    at, compressed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
        elif kind == b"IDAT":
            compressed += chunk
        at += 12 + length
    channels = {2: 3, 6: 4}[colours]
    assert (depth, interlaced) == (8, 0)
    lines = zlib.decompress(compressed)
    stride = width * channels
    above = bytearray(stride)
    rows = []
    for y in range(height):
        line = bytearray(lines[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        unfilter(lines[y * (stride + 1)], line, above, channels)
        rows.append(np.frombuffer(bytes(line), np.uint8))
        above = line
    return np.stack(rows).reshape(height, width, channels)[:, :, :3].astype(int)


def unfilter(kind, line, above, step):
    if kind == 1:
        for i in range(step, len(line)):
            line[i] = line[i] + line[i - step] & 255
    elif kind == 2:
        line[:] = (np.frombuffer(line, np.uint8) + np.frombuffer(above, np.uint8)).tobytes()
    elif kind == 3:
        for i in range(len(line)):
            left = line[i - step] if i >= step else 0
            line[i] = line[i] + (left + above[i]) // 2 & 255
    elif kind == 4:
        for i in range(len(line)):
            left, corner = (line[i - step], above[i - step]) if i >= step else (0, 0)
            guess = left + above[i] - corner
            distances = abs(guess - left), abs(guess - above[i]), abs(guess - corner)
            line[i] = line[i] + (left, above[i], corner)[distances.index(min(distances))] & 255
