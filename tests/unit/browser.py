"""A headless Chromium, driven over a pipe by Chrome's DevTools protocol: it loads pages, hovers, clicks and looks."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "hide-scrollbars",
    "no-first-run",
    "remote-debugging-pipe",
)


class Browser:
    """A browser with one tab. `errors` has the messages of scripts that failed."""

    def __init__(self, to: IO[bytes], of: IO[bytes]) -> None:
        self._to, self._from = to, of
        self._buffer, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol, and returns its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = self._from.read(1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        method = message.get("method")
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"]))
        elif method == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        return message

    def open(self, path: Path | str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Opens a page, a file or an address, in a window of this size, and waits until it is drawn."""
        self.window(width, height, dark=dark)
        self._loaded = False
        self.send("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        while not self._loaded:
            self._next()
        self.evaluate("typeof started === 'undefined' || started")  # the pages of steps take a while
        self.frame()

    def window(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Sets the size and the colours of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, script: str) -> Any:
        """Returns the value of an expression of JavaScript, as soon as it is there if it is a promise."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> Any:
        """Returns the value of a condition of JavaScript as soon as it is true; fails after a minute."""
        script = f"""new Promise((done) => {{
            const until = Date.now() + 60000;
            const look = () => {{
                const found = {condition};
                if (found || Date.now() > until) done(found);
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        found = self.evaluate(script)
        assert found, (condition, self.evaluate("document.body.innerText"), self.errors)
        return found

    def frame(self) -> None:
        """Waits until the next frame is drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def hover(self, x: float, y: float) -> None:
        """Moves the pointer."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.frame()

    def click(self, x: float, y: float) -> None:
        """Presses and releases the left button."""
        self._button("mousePressed", x, y)
        self.release(x, y)

    def drag(self, *places: tuple[float, float]) -> None:
        """Presses the left button at the first place, and moves the pointer to the others."""
        self._button("mousePressed", *places[0])
        for place in places[1:]:
            self._button("mouseMoved", *place)
            self.frame()

    def release(self, x: float, y: float) -> None:
        """Releases the left button."""
        self._button("mouseReleased", x, y)
        self.frame()

    def type(self, text: str) -> None:
        """Presses and releases the keys of a text, letter by letter."""
        for letter in text:
            for kind in ("keyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, key=letter, text=letter if kind == "keyDown" else "")

    def _button(self, kind: str, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def picture(self) -> bytes:
        """Returns the window as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])


@contextlib.contextmanager
def browser() -> Generator[Browser]:
    """Starts a browser, and ends it. Without one the test is skipped, but not in CI."""
    missing = "tests of pages need a browser: apt-get install chromium"
    if PROGRAM is None:
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shell = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        line = ["bash", "-c", shell, "bash", PROGRAM, *(f"--{each}" for each in FLAGS), f"--user-data-dir={folder}"]
        process = subprocess.Popen(line, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        with os.fdopen(ours_out, "wb", buffering=0) as to, os.fdopen(ours_in, "rb", buffering=0) as of:
            try:
                made = Browser(to, of)
                yield made
                made.send("Browser.close")
            finally:
                process.kill()
                process.wait()
