"""Several things at a time, in threads: what waits for a worker leaves the processor to the others."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
#: Objects made, and not yet gone, from which on garbage is collected after an item.
MANY = 200_000


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What `work` returns for every item, in their order; as many at a time as there are cores."""

    def one(item: T) -> R:
        try:
            return work(item)
        finally:
            if gc.get_count()[0] > MANY:
                gc.collect()

    with _collected_between(), ThreadPoolExecutor(_lanes(len(items))) as pool:
        return list(pool.map(one, items))


class Countdown:
    """Says which of `total` things comes next, and how long those that are left may take."""

    def __init__(self, total: int) -> None:
        self._total, self._begun = total, 0
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self) -> str:
        """``" (3 of 13, about 40 s left)"``; nothing for a single thing."""
        with self._lock:
            self._begun += 1
            done = self._begun - _lanes(self._total)
            if self._total == 1:
                return ""
            # As many are under way as there are cores, and what is done took all that time.
            estimate = (time.monotonic() - self._started) / done * (self._total - done) if done > 0 else 0.0
            left = f", about {estimate:.0f} s left" if estimate >= 1 else ""
            return f" ({self._begun} of {self._total}{left})"


def _lanes(count: int) -> int:
    """How many of `count` things to do at a time: one for each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(count, cores))


@contextlib.contextmanager
def _collected_between() -> Iterator[None]:
    """No collecting of garbage but where it is asked for.

    In Python 3.11 it may run in the middle of `ast.parse` and let another thread parse there, which ends
    in a SystemError.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
