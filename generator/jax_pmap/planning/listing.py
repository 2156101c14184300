"""The source of the target and of the functions it calls, with the placement of every value in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jax_pmap.emit.places import Body, inside, place
from jax_pmap.model import Listing, Part, Placed, Span
from jax_pmap.planning.bodies import Bodies
from jax_pmap.worker.protocol import Row


def listings(table: Bodies, events: Sequence[Row]) -> tuple[Listing, ...]:
    """The functions of `table`, the target first, with what `events` showed of their values.

    A function of which nothing was traced is left out.
    """
    watched = [body for body in table.watch.bodies.values() if body not in table.bodies]
    found = []
    for body in (*table.bodies, *watched):
        home = table.home(body.scope.index)
        made = listing(body, home.name, events)
        if body is table.body or made.values:
            found.append(made)
    return tuple(found)


def listing(body: Body, name: str, events: Sequence[Row] = ()) -> Listing:
    """One function, with the values that `events` are about."""
    expressions = {expression.point: expression for expression in body.expressions}
    bound = {
        point: (statement, name) for statement in body.statements.values() for name, point in statement.names
    }
    leaves: dict[int, list[Row]] = {}
    for event in events:
        if event["point"] in expressions or event["point"] in bound:
            leaves.setdefault(event["point"], []).extend(event["leaves"])
    values = []
    for point, shown in leaves.items():
        parts = _parts(shown)
        if parts and point in expressions:
            values.append(Placed(expressions[point].span, parts))
        elif parts:
            statement, variable = bound[point]
            span = _binding(body, statement.span, variable)
            if span is not None:
                values.append(Placed(span, parts, statement.span))
    text = body.text
    return Listing(
        f"{text.shown_path}::{name}", text.shown_path, text.line, text.indent, text.text, tuple(values)
    )


def _parts(leaves: Sequence[Row]) -> tuple[Part, ...]:
    """Leaves by their placement; what was shown of one each time it was passed counts once."""
    different = {
        (leaf["path"], leaf["kind"], tuple(leaf["shape"]), leaf["dtype"]): None
        for leaf in leaves
        if leaf["category"] != "opaque"
    }
    groups: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for _, kind, shape, dtype in different:
        groups.setdefault(kind, []).append((shape, dtype))
    return tuple(
        Part(kind, len(group), *(group[0] if len(group) == 1 else (None, "")))
        for kind, group in groups.items()
    )


def _binding(body: Body, statement: Span, name: str) -> Span | None:
    """Where a statement binds a name: its first mention in it."""
    text = body.text
    for number in range(statement.line - text.line, statement.end_line - text.line + 1):
        for match in re.finditer(rf"\b{re.escape(name)}\b", text.text.split("\n")[number]):
            line = number + text.line
            start, end = match.start() + text.indent, match.end() + text.indent
            span = Span(statement.file, line, start, line, end)
            if inside(place(span), place(statement)):
                return span
    return None
