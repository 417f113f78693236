"""Headless Chromium, driven through its DevTools pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Offline, as root, without a first-run page; an own folder keeps it apart from a person's browser.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)


def chromium() -> str | None:
    """The browser: ``KNOCKGRAPH_CHROMIUM``, or the first that is on the PATH; None where there is none."""
    return os.environ.get("KNOCKGRAPH_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One browser; messages are JSON ended by a zero byte.

    Args:
        program: The browser's program.
        folder: An empty one, for its profile.
    """

    def __init__(self, program: str, folder: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        wired = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        words = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", wired, "bash", *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(10)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number = self._number
        answer = self._wait(lambda m: m.get("id") == number)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str, session: str) -> None:
        """Until this event has come, now or before."""
        wanted = {"method": method, "sessionId": session}
        if not any(wanted.items() <= e.items() for e in self.events):
            self._wait(lambda m: wanted.items() <= m.items())

    def _wait(self, fits: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                message: dict[str, Any] = json.loads(text)
                if "method" in message:
                    self.events.append(message)
                if fits(message):
                    return message
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            received = os.read(self._in, 1 << 20)
            assert received, "the browser has ended"
            self._buffer += received


class Tab:
    """One page in one size and colour scheme.

    Args:
        browser: Its browser.
        page: The file to open.
        width: Of the window, in CSS pixels.
        scheme: ``light`` or ``dark``.
    """

    def __init__(self, browser: Browser, page: Path, width: int, scheme: str) -> None:
        self.browser = browser
        self._target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1 + phone, mobile=phone
        )
        browser.events.clear()
        self.url = page.resolve().as_uri()
        self.send("Page.navigate", url=self.url)
        browser.wait_for("Page.loadEventFired", self.session)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol, for this page."""
        return self.browser.send(method, self.session, **parameters)

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console shows: messages, exceptions, warnings of the browser."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.browser.events if e["method"] in kinds]

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself left out."""
        sent = [
            e["params"]["request"]["url"] for e in self.browser.events if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if url != self.url]

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Close it."""
        self.browser.send("Target.closeTarget", targetId=self._target)
