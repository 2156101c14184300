"""A real browser, without a window: Chromium, asked over its debugging pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

#: What the program is called on one system or another.
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
#: Seconds a page may take.
PATIENCE = 60.0


def find_browser() -> str | None:
    """The browser's program, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab of a browser; a context manager that ends it."""

    def __init__(self, program: str, folder: Path) -> None:
        to_read, self._commands = os.pipe()
        self._answers, to_write = os.pipe()

        # The protocol is spoken on descriptors 3 and 4, which may be those of the pipes. A shell puts them
        # there: Python code between fork and exec is not safe beside jax's threads.
        wired = f'exec 5<&{to_read} 6>&{to_write}; exec "$0" "$@" 3<&5 4>&6 5<&- 6>&-'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            ["bash", "-c", wired, program, *flags, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, to_write),
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._buffer = 0, b""
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)
        self._process.kill()
        self._process.wait()
        os.close(self._answers)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, path: Path, *, width: int = 1400, dark: bool = False, medium: str = "screen") -> None:
        """Show a file in a window of that many CSS pixels."""
        self.events.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=medium, features=[scheme])
        self.ask("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + PATIENCE
        while self.value("document.readyState") != "complete" or self.value("location.protocol") != "file:":
            assert time.monotonic() < deadline, f"{path} did not load"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point_at(self, selector: str) -> None:
        """Move the pointer to the middle of the first element that fits."""
        x, y = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const r = e.getClientRects()[0];"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[str]:
        """What the console was told, and what was loaded besides the page itself."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Log.entryAdded":
                found.append(parameters["entry"]["text"])
            elif event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                found.append(json.dumps(parameters))
            elif event.get("method") == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if parameters.get("type") != "Document":
                    found.append(f"asked for {url}")
        return found
