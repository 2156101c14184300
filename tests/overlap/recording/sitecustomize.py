"""Writes down which lines of jax-pmap each test runs, in every process that has this folder on PYTHONPATH.

A line is told once for each test: `sys.monitoring` forgets it afterwards, so the tests take hardly longer.
Processes learn which test they work for from a file that the plugin beside this module writes; a worker that
several tests share looks at it with each request.
"""

import atexit
import contextlib
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

TOOL = 4
FOLDER = Path(os.environ["JAX_PMAP_OVERLAP"])
CODE = tuple(f"{Path(__file__).resolve().parents[3] / part}/" for part in ("generator/jax_pmap", "templates"))
#: The function of `worker/server.py` that answers one request.
ANSWERS = "answered"
#: Lines that are kept before they are written: what a process that is killed may lose.
KEPT = 200


def current() -> Path:
    """The file that names the test of this process, one for each process that pytest-xdist starts."""
    return FOLDER / f"current-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


class Recorder:
    """Where this process writes its lines."""

    def __init__(self) -> None:
        self.test = ""
        self.lines: list[str] = []

    def write(self) -> None:
        if self.lines:
            text = "\n".join([f"test {self.test}", *self.lines, ""])
            self.lines = []
            with (FOLDER / f"lines-{os.getpid()}").open("a") as out:
                out.write(text)

    def look(self) -> None:
        """Turn to the test that is run now."""
        self.write()
        with contextlib.suppress(OSError):
            self.test = current().read_text()
        monitoring.restart_events()

    def forked(self) -> None:
        self.lines = []
        self.look()

    def on_start(self, code: CodeType, _: int) -> Any:
        if not code.co_filename.startswith(CODE):
            return monitoring.DISABLE
        monitoring.set_local_events(TOOL, code, monitoring.events.LINE)
        if code.co_name != ANSWERS:
            return monitoring.DISABLE
        if current().read_text() != self.test:
            self.look()
        return None

    def on_line(self, code: CodeType, line: int) -> Any:
        self.lines.append(f"{code.co_filename}:{line}")
        if len(self.lines) >= KEPT:
            self.write()
        return monitoring.DISABLE


def leave(status: int) -> None:
    """Stands for `os._exit`, which runs no exit handlers."""
    RECORDER.write()
    really_leave(status)


monitoring = sys.monitoring
RECORDER = Recorder()
really_leave, os._exit = os._exit, leave
os.register_at_fork(before=RECORDER.write, after_in_child=RECORDER.forked)
atexit.register(RECORDER.write)
monitoring.use_tool_id(TOOL, "jax-pmap overlap")
monitoring.register_callback(TOOL, monitoring.events.PY_START, RECORDER.on_start)
monitoring.register_callback(TOOL, monitoring.events.LINE, RECORDER.on_line)
monitoring.set_events(TOOL, monitoring.events.PY_START)
