"""What went wrong in the worker, in the user's code: which exception, at which of the user's lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_pmap.config import project_root
from jax_pmap.model import Source, Span

#: What a worker answers.
Answer = dict[str, Any]
#: Folders of code that is not the user's.
INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<")


class WorkerProblem(Exception):
    """A failure in the user's code or inputs; the stage that asked knows which code it is."""

    def __init__(self, kind: str, message: str, data: Answer) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data

    @property
    def error(self) -> Answer:
        """The user's exception as the worker described it, or an empty dict."""
        error: Answer = self.data.get("error") or {}
        return error


def error_span(error: Answer, directory: Path, source: Source | None = None) -> Span | None:
    """The deepest frame in user code, or the deepest one in the target's own file.

    Args:
        error: the user's exception as the worker described it.
        directory: files below the project that `directory` is in are named from its root.
        source: the target, if its own file is the one to name.
    """
    frames: Sequence[Sequence[Any]] = error.get("frames", ())
    if source is not None:
        for file, line, _ in reversed(frames):
            if Path(file) == source.path:
                return Span(source.shown_path, int(line))
    for file, line, _ in reversed(frames):
        if not INSTALLED.search(file):
            return Span(shown_file(file, directory), int(line))
    if error.get("file") and not error["file"].startswith("<"):
        return Span(shown_file(error["file"], directory), int(error["line"] or 0))
    return None


def shown_file(file: str, directory: Path) -> str:
    """`file` as reports name it: from the project root, or absolute where it is outside."""
    root = project_root(directory.absolute())
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def error_details(error: Answer) -> tuple[str, ...]:
    """The user's own traceback, as one detail."""
    blocks = error.get("traceback", ())
    return ("Traceback (most recent call last):\n" + "".join(blocks).rstrip(),) if blocks else ()


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
