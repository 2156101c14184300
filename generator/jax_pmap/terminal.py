"""The terminal: what goes to which stream, colour and progress, and leaving in good order."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from jax_pmap.model import Say, Stage


def write_stdout(text: str) -> None:
    """Write `text` as UTF-8, whatever the locale: redirected into a file it has to be valid Python or JSON.

    A reader that went away (``| head``) is no error.
    """
    try:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def open_closed_streams() -> None:
    """Open the standard streams that were closed when the process began (``>&-``).

    Python has None for these, and the next file or pipe that is opened would get their numbers. What is
    written to stdout then fails, as it would have; nobody reads stderr.
    """
    ways = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    for number, (name, mode, how) in enumerate(ways):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, how)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def is_of_printing(error: OSError) -> bool:
    """Whether an error was raised where something is printed: a full disk, a stream that is closed."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == click.echo.__module__


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


class Progress:
    """Shows what is going on, and keeps how long every stage of it takes."""

    def __init__(self) -> None:
        self._started = self._since = time.monotonic()
        self._stage = "starting"
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._show: Say = lambda note: None

    def say(self, note: str) -> None:
        """Show a note, ``"STAGE: what"``; its stage goes on until another one is named."""
        with self._lock:
            self._turn_to(note.partition(":")[0])
            self._show(note)

    def _turn_to(self, stage: str) -> None:
        now = time.monotonic()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    def stages(self) -> tuple[Stage, ...]:
        """Every stage so far, in the order in which they began."""
        from jax_pmap.model import Stage

        with self._lock:
            self._turn_to(self._stage)
            return tuple(Stage(name, seconds) for name, seconds in self._seconds.items())

    @contextlib.contextmanager
    def shown(
        self, options: dict[str, Any], lines: Callable[[str], bool] = lambda note: False
    ) -> Iterator[Say]:
        """Yield `say` while notes are shown: on a live line of a terminal, one below the other under -v.

        Elsewhere (a pipe, a log) only the notes that `lines` picks out are printed.
        """
        if options["verbose"]:
            self._show = lambda note: click.echo(f"jax-pmap: {self.elapsed:5.1f} s  {note}", err=True)
            yield self.say
        elif options["quiet"]:
            yield self.say
        elif not styled(sys.stderr, options):
            self._show = lambda note: click.echo(f"jax-pmap: {note}", err=True) if lines(note) else None
            yield self.say
        else:
            from jax_pmap.report.console import live_line, make_console

            with live_line(make_console(sys.stderr, plain=False), lambda: self.elapsed) as self._show:
                yield self.say
        self._show = lambda note: None

    def print_stages(self) -> None:
        """Print how long every stage took, on stderr."""
        stages = self.stages()
        each = ", ".join(f"{stage.name} {stage.seconds:.1f} s" for stage in stages)
        total = sum(stage.seconds for stage in stages)
        click.echo(f"jax-pmap: {each}; {total:.1f} s in all", err=True)
