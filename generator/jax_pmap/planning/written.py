"""The rows of the batch where code says them, or a multiple, as a number: ``rays.reshape(config.rays, 3)``.

A share of the batch has fewer, and such code fails on it. The number is divided by that of the devices then,
in those places at which it fails: what else it says, a rate that is made of it, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jax_pmap.emit.places import inside, place
from jax_pmap.emit.sizes import is_part
from jax_pmap.model import OWN_SHARE, OWN_SIZE, Sync
from jax_pmap.planning.events import Event
from jax_pmap.planning.observe import Observer
from jax_pmap.planning.roles import Roles
from jax_pmap.worker import protocol

#: Traces after which it is given up.
MOST_TRACES = 20


def own_sizes(observer: Observer, roles: Roles, count: int, start: Sequence[Sync]) -> tuple[Sync, ...]:
    """The numbers that are to be those of a share, so that the function runs on one; none where none do that.

    Functions that the target calls are looked into where its own numbers are not enough, and methods where
    those of functions are not either.

    Args:
        observer: of the target; what it looks into is changed.
        roles: what is divided.
        count: the number of devices.
        start: what else is done on a share.
    """
    sizes = _Sizes(observer, roles, count, start)
    found = sizes.found()
    for open_more in (observer.open_called, observer.callees(roles, {}).open_run):
        known = len(observer.bodies)
        if found is None:
            open_more()
            found = sizes.found() if len(observer.bodies) > known else None
    return found or ()


def with_positions(observer: Observer, sizes: Sequence[Sync]) -> list[tuple[Sync, ...]]:
    """`sizes`, and those with a device's part of all positions in place of its own: of ``jnp.arange(rows)``.

    Both run: a device takes ``logits[jnp.arange(rows), labels]`` at the positions in its share, and compares
    ``jnp.arange(rows)`` with those of all rows in a contrastive loss.
    """
    every = [each for body in observer.bodies for each in body.expressions]
    syncs = []
    for sync in sizes:
        made = re.compile(rf"[\w.]*\barange\(\s*{re.escape(sync.value)}\s*\)")
        around = [e for e in every if made.fullmatch(e.text) and inside(place(sync.span), place(e.span))]
        syncs += [Sync(OWN_SHARE, e.text, "wrap", e.span, axis=0) for e in around] or [sync]
    return [(*sizes,)] if syncs == [*sizes] else [(*sizes,), (*syncs,)]


class _Sizes:
    """The numbers of one function that are the rows of its batch, tried where it fails."""

    def __init__(self, observer: Observer, roles: Roles, count: int, start: Sequence[Sync]) -> None:
        self.observer, self.roles, self.count, self.start = observer, roles, count, start
        self.left = MOST_TRACES

    def found(self) -> tuple[Sync, ...] | None:
        """The numbers with which it runs; None where there are none."""
        free = (each.point for body in self.observer.bodies for each in body.free)
        self.observer.beyond = frozenset(free)
        try:
            return self._with((), self._traced(()))
        finally:
            self.observer.beyond = frozenset()

    def _traced(self, sizes: Sequence[Sync]) -> protocol.Observation:
        self.left -= 1
        return self.observer.traced(self.roles, self.count, (*self.start, *sizes))

    def _with(self, sizes: tuple[Sync, ...], answer: protocol.Observation) -> tuple[Sync, ...] | None:
        """Those `sizes` and more, with which it runs, where it was traced with `sizes` to an answer."""
        if answer.raised is None:
            return sizes
        for more in self._next(answer, sizes):
            if self.left <= 0:
                return None
            further = self._traced((*sizes, *more))
            if further.raised is None or len(further.events) > len(answer.events):
                found = self._with((*sizes, *more), further)
                if found is not None:
                    return found
        return None

    def _next(self, answer: protocol.Observation, sizes: Sequence[Sync]) -> Iterator[tuple[Sync, ...]]:
        """What to divide where it failed: the numbers of one statement, all of them and each alone.

        First those in the statement itself, then those in the ones that made what it reads, then others, the
        last that ran first.
        """
        events = list(map(Event, answer.events))
        every = {e.point: e for body in self.observer.bodies for e in (*body.expressions, *body.free)}
        split = [leaf for event in events for leaf in event.leaves if leaf.get("split") is not None]
        rows = {leaf["shape"][leaf["split"]] for leaf in split} - {0}
        numbers: dict[int, list[Sync]] = {}
        for event in events:
            expression, values = every.get(event.point), [leaf.get("value") for leaf in event.leaves]
            if expression is None or len(values) != 1 or type(values[0]) is not int or values[0] <= 0:
                continue
            # What the devices share evenly where they share the rows evenly.
            is_size = any(values[0] % size == 0 for size in rows)
            sync = Sync(OWN_SIZE, expression.text, "wrap", expression.span)
            if is_size and sync not in sizes and (is_part(sync.value) or sync.value.isdigit()):
                numbers.setdefault(expression.statement, []).append(sync)
        last = every.get(answer.last or 0)
        owner = self.observer.owner.get(answer.last or 0)
        failed = owner if last is None else self.observer.statements[last.statement]
        behind = [each.index for each in self.observer.behind(failed)] if failed is not None else []
        for statement in dict.fromkeys([*behind, *reversed(numbers)]):
            found = tuple(dict.fromkeys(numbers.get(statement, ())))
            if found:
                yield found
            if len(found) > 1:
                yield from ((sync,) for sync in found)
