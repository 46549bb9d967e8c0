"""Headless Chromium as a judge of pages: the sizes of a page's elements, its pixels, and its errors.

Controlled by DevTools' protocol over a pair of pipes, which needs no package."""
import base64
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib

import numpy as np
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SECONDS = 60  # for the longest answer


def find_chromium():
    found = os.environ.get("TESSERA_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium is not installed: scripts/setup --judges installs it, TESSERA_CHROMIUM names another")
    return found


class Chromium:
    """A browser with a profile of its own, as a context."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="tessera-chromium-", ignore_cleanup_errors=True)
        self.log = open(os.path.join(self.profile.name, "log"), "w+", encoding="utf-8", errors="replace")
        theirs_in, self.out = os.pipe()
        self.back, theirs_out = os.pipe()
        command = [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", "--disable-background-networking", "--disable-component-update",
                   "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb",
                   f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", "about:blank"]
        # It reads descriptor 3 and writes descriptor 4.
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
                                        pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env={**os.environ, "HOME": self.profile.name})
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.bytes, self.events = 0, b"", []
        return self

    def __exit__(self, *_):
        os.close(self.out)
        os.close(self.back)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.profile.cleanup()

    def receive(self, until):
        while b"\0" not in self.bytes:
            ready, _, _ = select.select([self.back], [], [], max(0, until - time.monotonic()))
            more = os.read(self.back, 1 << 20) if ready else b""
            if not more:
                self.log.seek(0)
                raise RuntimeError(f"Chromium {'ended' if ready else 'does not answer'}: {self.log.read()[-2000:]}")
            self.bytes += more
        message, self.bytes = self.bytes.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        until = time.monotonic() + SECONDS
        while (answer := self.receive(until)).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def wait_for(self, method, session):
        until = time.monotonic() + SECONDS
        while not any(event["method"] == method and event.get("sessionId") == session for event in self.events):
            self.events.append(self.receive(until))


class Page:
    """A file, or an address, in a window of its own, of the given size, dark or light."""

    def __init__(self, browser, path, *, width=1100, height=900, dark=False, blocked=()):
        self.browser, self.address = browser, path if isinstance(path, str) else path.as_uri()
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if blocked:
            self.call("Network.setBlockedURLs", urls=list(blocked))
        self.emulate(dark=dark)
        self.open(self.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def open(self, address):
        self.address = address
        self.browser.events = [event for event in self.browser.events if event.get("sessionId") != self.session]
        self.call("Page.navigate", url=address)
        self.browser.wait_for("Page.loadEventFired", self.session)
        self.settle()

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def emulate(self, *, dark=False, media=""):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def settle(self):
        """Waits until the page is drawn."""
        frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        for _ in range(2):
            self.call("Runtime.evaluate", expression=frame, awaitPromise=True)

    def value(self, body):
        """The result of a function with this body in the page."""
        answer = self.call("Runtime.evaluate", expression=f"(async () => {{ {body} }})()", awaitPromise=True,
                           returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code or 0)

    def screenshot(self, box):
        """The pixels [height, width, 3] of a part of the page, {left, top, width, height} in whole pixels."""
        clip = {"x": box["left"], "y": box["top"], "width": box["width"], "height": box["height"], "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return read_png(base64.b64decode(answer["data"]))

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def requests(self):
        """The addresses that this page asked for."""
        return [event["params"]["request"]["url"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """Errors of scripts, requests that the page's own policy refused, and all requests for other files."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            what = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = what["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
                found.append(str(what["args"]))
            elif event["method"] == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                found.append(what["entry"]["text"])
            elif event["method"] == "Network.requestWillBeSent" and what["request"]["url"] != self.address:
                if not what["request"]["url"].startswith("data:"):
                    found.append(f"asks for {what['request']['url']}")
        return found


def read_png(data):
    """Eight bits per channel, not interlaced, as Chromium writes it."""
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
