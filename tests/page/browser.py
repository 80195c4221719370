"""Headless chromium, spoken to over its DevTools protocol. Tests are skipped where none is installed."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Tab:
    """One page. `complaints`: what its console said."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._asked = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        self._asked += 1
        self._socket.send(json.dumps({"id": self._asked, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(SECONDS))
            if told.get("id") == self._asked:
                assert "error" not in told, told
                return told["result"]
            if told["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.complaints.append(json.dumps(told["params"]))

    def open(self, url: str, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str) -> Any:
        """Its value, once it is true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if found := self.value(expression):
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}; console: {self.complaints}")

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowDown": 40, "ArrowLeft": 37}
        text = {"text": "\r"} if key == "Enter" else {}  # else no button is pressed by it
        for kind, more in (("keyDown", text), ("keyUp", {})):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """All of the page, down to its end."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser() -> Iterator[Tab]:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        child = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(_tab(Path(profile), child), max_size=None) as socket:
                yield Tab(socket)
        finally:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)
            child.kill()


def _tab(profile: Path, child: "subprocess.Popen[bytes]") -> str:
    """Address of the first tab, once the browser has started."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert child.poll() is None, "chromium ended at its start"
        with suppress(OSError, ValueError, IndexError, StopIteration):
            port = (profile / "DevToolsActivePort").read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=SECONDS) as answer:
                return next(str(tab["webSocketDebuggerUrl"]) for tab in json.load(answer) if tab["type"] == "page")
        time.sleep(0.05)
    raise AssertionError("chromium did not start")
