"""The terminal: what goes to which stream, colour and progress, and leaving in good order."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from jax_pmap.model import Say


def write_stdout(text: str) -> None:
    """Write `text` as UTF-8, whatever the locale: redirected into a file it has to be valid Python or JSON.

    A reader that went away (``| head``) is no error.
    """
    try:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush has nothing to complain about."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def styled(stream: Any, options: dict[str, Any] | None = None) -> bool:
    """Whether colour and a live line are welcome on `stream`."""
    if options and options["no_color"]:
        return False
    if os.environ.get("NO_COLOR") or os.environ.get("CLAUDECODE") == "1" or os.environ.get("TERM") == "dumb":
        return False
    return bool(stream.isatty())


def width() -> int:
    """Columns of the terminal, 80 where there is none."""
    import shutil

    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80


@contextlib.contextmanager
def unwound() -> Iterator[None]:
    """Leave by way of every `finally` when told to end, so that the worker and its folder go too."""
    import signal
    import threading

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def progress(options: dict[str, Any], lines: Callable[[str], bool] = lambda note: False) -> Iterator[Say]:
    """Yield the function that shows progress: a live line on a terminal, lines under -v.

    Elsewhere (a pipe, a log) only the notes that `lines` picks out are printed.
    """
    if options["verbose"]:
        yield lambda note: click.echo(f"jax-pmap: {note}", err=True)
    elif options["quiet"]:
        yield lambda note: None
    elif not styled(sys.stderr, options):
        yield lambda note: click.echo(f"jax-pmap: {note}", err=True) if lines(note) else None
    else:
        from jax_pmap.report.console import live_line, make_console

        with live_line(make_console(sys.stderr, plain=False)) as say:
            yield say
