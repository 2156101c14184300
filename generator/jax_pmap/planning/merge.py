"""One collective where several of one kind stand together."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence

from jax_pmap.emit.decomposed import TOGETHER
from jax_pmap.emit.places import Body, Statement, place
from jax_pmap.model import EXCHANGE, OWN_SHARE, Span, Sync
from jax_pmap.syntax.lines import parsed_expression


def merge_neighbours(body: Body, syncs: Sequence[Sync]) -> tuple[Sync, ...]:
    """One collective where several of one kind stand together.

    Syncs after a statement move down to the next sync of the same op, where nothing between
    reads them; a display whose elements all have the same one around them gets it instead.
    """
    by_place = {place(statement.span): statement for statement in body.statements.values()}
    out = list(syncs)
    # The last first: each then joins one that has already found its place.
    for index in sorted(range(len(out)), key=lambda i: place(out[i].span), reverse=True):
        target = _next_of_kind(body, by_place, out, out[index])
        if target is not None:
            out[index] = dataclasses.replace(out[index], span=target)
    for display in body.expressions:
        if not display.is_display:
            continue
        elements = [e for e in body.expressions if e.parent == display.point]
        around = [
            s for s in out if s.where == "wrap" and any(place(s.span) == place(e.span) for e in elements)
        ]
        kinds = {(sync.op, sync.axis) for sync in around}
        if len(around) == len(elements) == parts(display.text) > 1 and len(kinds) == 1:
            op, axis = kinds.pop()
            if op in (OWN_SHARE, EXCHANGE) or op in TOGETHER:
                continue  # They take one array.
            size = sum(sync.bytes for sync in around)
            out = [sync for sync in out if sync not in around]
            out.append(Sync(op, display.text, "wrap", display.span, bytes=size, axis=axis))
    return tuple(out)


def parts(display: str) -> int:
    """How many elements a tuple, list or dict display has, constants counted."""
    node = parsed_expression(display)
    return len(node.values if isinstance(node, ast.Dict) else getattr(node, "elts", ()))


def _next_of_kind(
    body: Body, by_place: Mapping[tuple[int, int, int, int], Statement], syncs: Sequence[Sync], sync: Sync
) -> Span | None:
    """Span of the next sync that `sync` can join, or None."""
    if sync.where != "after" or sync.paths != ("",):
        return None
    # What reduces over the axis of a map inside goes over the devices with that.
    reduced = {each.point for each in body.expressions if each.called == f"jax.lax.{sync.op}"}
    here = by_place.get(place(sync.span))
    if here is None or here.value in reduced:
        return None  # Or it stands in a function of its own.
    later = [
        by_place[place(other.span)]
        for other in syncs
        if other.where == "after" and other.op == sync.op and other.paths == ("",)
        if place(other.span) in by_place
    ]
    later = [s for s in later if s.block == here.block and s.order > here.order and s.value not in reduced]
    if not later:
        return None
    there = min(later, key=lambda s: s.order)
    between = [s for s in body.statements.values() if here.index < s.index <= there.index]
    touched = any(sync.value in s.reads or sync.value in dict(s.names) for s in between)
    straight = all(s.block == here.block for s in between if s.scope == here.scope)
    return None if touched or not straight or there.kind == "return" else there.span
