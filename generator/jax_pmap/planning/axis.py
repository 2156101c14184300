"""The mapped axis that a function needs by itself: by the collectives in it, or in a library it calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jax_pmap.model import Backend, Request, refused
from jax_pmap.problems import error_span
from jax_pmap.reading.target import Target
from jax_pmap.worker.protocol import Axis


def with_axis(
    target: Target, needed: Sequence[Axis], request: Request, directory: Path
) -> tuple[Target, tuple[str, ...]]:
    """The target under the name of the axis it needs, and what a reader must know of it.

    Args:
        target: as reading knows it.
        needed: the axes that had to be bound for it to run.
        request: what was asked for.
        directory: files below the project that it is in are named from its root.

    Raises:
        RefusalError: JP048 where there are several, or another was asked for; JP046 for jit, which has none.
    """
    if not needed:
        return target, ()
    function, (first, *others) = target.facts.name, needed
    name, span = first.name, error_span(first.error, directory) or target.facts.span
    if request.backend is Backend.JIT and not first.error.type:
        return target, ()  # It does without, as it does there.
    if others:
        names = ", ".join(repr(row.name) for row in needed)
        raise refused(
            "JP048",
            f"`{function}` has collectives over several axes, {names}; the batch is mapped over one",
            "Give its layers and collectives one and the same axis name",
            error_span(others[0].error, directory) or span,
        )
    if request.axis_name not in (None, name):
        raise refused(
            "JP048",
            f"`{function}` synchronises over the axis {name!r}, not {request.axis_name!r}",
            f"Pass --axis-name {name}, or give the layer or function that does the other name",
            span,
        )
    if request.backend is Backend.JIT:
        raise refused(
            "JP046",
            f"`{function}` synchronises over the axis {name!r}, and jit in the global view has no axis",
            "Use --backend pmap or --backend shard_map; or take the axis name out, since jit works on the "
            "whole batch without it",
            span,
        )
    return dataclasses.replace(target, axis_name=name, own_axis=True), axis_notes(target, needed, directory)


def axis_notes(target: Target, needed: Sequence[Axis], directory: Path) -> tuple[str, ...]:
    """What cannot be read in the function itself of the axes that had to be bound for it to run."""
    if target.facts.collectives or not needed:
        return ()
    names = " and ".join(f'"{row.name}"' for row in needed)
    span = error_span(needed[0].error, directory) or target.facts.span
    own = span.file == target.source.shown_path
    where = f"line {span.line}" if own else f"`{span.file}` line {span.line}"
    if not needed[0].error.type:
        return (
            f"`{target.facts.name}` itself synchronises over the axis {names} where that is bound ({where}); "
            "it was compared as a map over it on one device",
        )
    return (
        f"`{target.facts.name}` itself runs only inside a map over the axis {names} ({where} synchronises "
        "over it); it was compared as that map on one device",
    )
