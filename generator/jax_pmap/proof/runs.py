"""Calls of a parallel function on one number of devices, and what came of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from jax_pmap.session import Session
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Call, Layout, Problem

#: How a call can end, the better the later.
ENDS = ("raises", "form", "value", "equal")
#: How to say in which way a function is called.
LAYOUTS = "--layout drop-in|stacked|batch, or --layout NAME=devices,…"


@dataclass(slots=True)
class Run:
    """One device count: its worker, how calls ended there, and what was compared."""

    devices: int
    session: Session
    tried: Sequence[Call] = ()
    #: Why nothing was compared on this count, as a note.
    skipped: str | None = None
    #: Whether that is for a batch of fewer rows than there are devices.
    short: bool = False
    #: Whether the worker has the reference and its inputs.
    loaded: bool = False
    #: Rows of the batch that the calls were made with.
    batch: int = 0
    #: The problem that kept the parallel function from being there at all.
    problem: Problem | None = None
    checks: Sequence[protocol.Check] = ()
    #: Whether random numbers were drawn, the same on every share.
    equal_draws: bool = False
    #: What the runs came upon, a sentence each.
    notes: list[str] = dataclasses.field(default_factory=list)
    #: Places of branches that went one way on all inputs, and have other collectives the other way.
    exchanges: Sequence[str] = ()
    #: Places where results are made that are given as those of all devices, and are of each's own.
    own: Sequence[str] = ()

    def calls(self, layout: Layout) -> list[Call]:
        """The calls in `layout`."""
        return [each for each in self.tried if each.layout == layout]

    def failure(self) -> protocol.Failure | None:
        """How the last run failed."""
        return self.checks[-1].failure if self.checks else None

    def ends(self, layout: Layout) -> int:
        """How well a call in `layout` ended, -1 where there was none."""
        return max((ENDS.index(each.ends) for each in self.calls(layout)), default=-1)
