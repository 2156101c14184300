"""One worker for many commands: what they answer must not depend on how old its process is.

`check` proves file after file in one worker; a test that is not about processes can do the same, and
spares the time that a new interpreter needs to import jax and what the user's module imports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from jax_pmap import pipeline
from jax_pmap.model import RefusalError, Request
from jax_pmap.session import Session
from jax_pmap.worker.protocol import Member


class Kept:
    """A worker that the end of a command leaves running, unless it ended badly."""

    def __init__(self, session: Session, directory: Path) -> None:
        self.session = session
        self.directory = directory
        self.files = self.modules()
        self.ended_well = True

    def modules(self) -> dict[Path, str]:
        """What the worker may have imported of the user's, and its text."""
        return {path: path.read_text(errors="replace") for path in self.directory.glob("*.py")}

    def usable(self) -> bool:
        """Whether it is as good as a new one: imported modules stay imported as they were."""
        now = self.modules()
        usable = self.ended_well and all(now.get(path) == text for path, text in self.files.items())
        self.files = now
        return usable

    def __enter__(self) -> Session:
        return self.session

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: object) -> None:
        limits = ("JP009", "JP010", "JP011", "JP012")
        if value is not None and not (isinstance(value, RefusalError) and value.refusal.code not in limits):
            self.ended_well = False
            self.session.close()


#: Starts a worker for a request, a number of devices and a member of several processes.
Start: TypeAlias = Callable[..., Session | Kept]


@pytest.fixture(scope="module")
def warm_sessions() -> Iterator[Start]:
    """What gives the commands that a module runs one worker for each way to start it."""
    start = pipeline._session
    kept: dict[object, Kept] = {}

    def session(request: Request, devices: int | None = None, member: Member | None = None) -> Session | Kept:
        # A program starts in a process that has run nothing else, and so does one of several processes.
        if request.run is not None or member is not None:
            return start(request, devices, member)
        key = (request.python, request.directory, request.timeout, request.memory, request.devices, devices)
        if key in kept and kept[key].usable():
            kept[key].session.renew()
        else:
            if key in kept:
                kept[key].session.close()
            kept[key] = Kept(start(request, devices), request.directory)
        return kept[key]

    yield session
    for each in kept.values():
        each.session.close()


@contextlib.contextmanager
def kept_warm(sessions: Start) -> Iterator[None]:
    """Have commands take their workers from `sessions`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "start", pipeline._session)  # its callers keep their worker themselves
        patch.setattr(pipeline, "_session", sessions)
        yield


@pytest.fixture
def warm(warm_sessions: Start) -> Iterator[None]:
    """Give the commands of a test the workers of its module; those of other tests have their own."""
    with kept_warm(warm_sessions):
        yield
