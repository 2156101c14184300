"""What the worker answers, as parts of the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jax_pmap.model import Check, Collective, Derivation, Span
from jax_pmap.worker import protocol


def check_of(answer: protocol.Check) -> Check:
    """A check that went well, as evidence."""
    return Check(
        devices=answer.devices,
        precision="float64" if answer.precision == "float64" else "as given",
        batch=answer.batch,
        steps=answer.steps,
        error=answer.error,
        tolerance=answer.tolerance,
    )


def read_derivation(answer: protocol.Derivation, root: Path, multiple: int = 1) -> Derivation:
    """What the worker derived, for code that takes a `multiple` of rows on a device.

    Where it ended, at the first of the outputs that was not reached.
    """
    if answer.complete:
        needed = [span_of(each.places, root) for each in answer.conditions]
        return Derivation(
            answer.operations,
            True,
            measured=answer.measured,
            multiple=multiple,
            multiple_for=tuple(dict.fromkeys(span for span in needed if span is not None)),
        )
    first = answer.endings[0]
    span = span_of(first.places, root)
    return Derivation(answer.operations, False, first.why, first.primitive, span, first.terms)


def span_of(places: Sequence[protocol.Place], root: Path) -> Span | None:
    """The innermost of some expressions, of the user's own if one is; None where none is known."""
    own = [place for place in places if Path(place.file).is_relative_to(root)] or places
    if not own:
        return None
    place, path = own[0], Path(own[0].file)
    file = path.relative_to(root).as_posix() if path.is_relative_to(root) else place.file
    return Span(file, place.line, place.column, place.end_line, place.end_column)


def read_collectives(rows: Sequence[protocol.Collective]) -> tuple[Collective, ...]:
    """What the worker read in a compiled program."""
    return tuple(
        Collective(row.kind, row.count, row.bytes, row.axes, row.rounds, row.times, row.moved) for row in rows
    )
