"""A layer that normalises by its batch, as the reason why a function cannot be split."""

from __future__ import annotations

import dataclasses
import linecache
import os
from collections.abc import Sequence
from pathlib import Path

from jax_pmap.emit.context import SITE
from jax_pmap.emit.render import over_devices_source
from jax_pmap.model import Backend, Refusal, Request, Span, refused
from jax_pmap.planning.coupling import COUPLED, shortened
from jax_pmap.planning.roles import Roles
from jax_pmap.problems import shown_file
from jax_pmap.reading.target import OTHER_NAMES, Target
from jax_pmap.session import Session
from jax_pmap.units import first_few
from jax_pmap.worker import protocol
from jax_pmap.worker.origins import is_users
from jax_pmap.worker.protocol import Frame, Layer, Problem

#: Libraries whose layers read the name of the axis when they are called.
TOLD = frozenset({"flax.linen", "flax.nnx", "haiku", "equinox.nn"})
#: Layers that a message names.
SHOWN = 2
#: Refusals that a layer may be the reason of: what fails on a share does not compute too little.
THROUGH_LAYERS = COUPLED - {"JP068"}


def to_synchronise(
    session: Session,
    target: Target,
    rows: Sequence[Layer],
    statics: Sequence[str],
    sites: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Libraries whose layers couple the examples, those of `rows`, where all can be told to synchronise.

    With them `sites` of models, each as ``numpyro:obs``; ``numpyro:`` where there are none but those scaled.

    The emitted code then has them take mean and variance over all devices; the worker does so from now on, of
    the function as it is written too, where there is one device.
    """
    libraries = sorted({row.layer.rpartition(".")[0].removesuffix(".nets") for row in rows})
    inner = axes_of_maps(rows)
    if not all(library in TOLD for library in libraries) or target.axis_name in inner:
        return ()
    libraries += [] if sites is None else [f"{SITE}{site}" for site in sites or ("",)]
    if not libraries:
        return ()
    code = over_devices_source(libraries, bool(inner), target.axis_name)
    try:
        same = session.ask(protocol.Synchronise(code, tuple(statics)), "telling layers the axis")
    except Problem:
        return ()
    return tuple(libraries) if same else ()


def is_of_one(row: Layer) -> bool:
    """Whether a layer is called for each of several by a ``jax.vmap``, over an axis that it does not see.

    As in meta-learning, where each task is normalised by itself. Where these are no examples, as in an
    ensemble, it couples the examples all the same.
    """
    return not row.mapped and any(
        name == "vmap_f" and file.replace(os.sep, "/").endswith("jax/_src/api.py")
        for file, _, name in row.frames
    )


def axes_of_maps(rows: Sequence[Layer]) -> set[str]:
    """The axes of layers that maps inside the function bind."""
    return {axis for row in rows if row.mapped for axis in row.axes}


def with_free_axis(target: Target, request: Request, rows: Sequence[Layer]) -> Target:
    """The target, mapped over an axis of another name where a map inside it binds one of that name.

    Raises:
        RefusalError: JP048 where the name was asked for: layers in the map would see its axis alone.
    """
    inner = axes_of_maps(rows)
    if target.axis_name not in inner or target.own_axis:
        return target
    if request.axis_name is not None:
        if request.backend is Backend.JIT:
            return target  # No function there is mapped over it.
        row = next(row for row in rows if row.mapped and target.axis_name in row.axes)
        place = called_at(row.frames, request.directory)
        raise refused(
            "JP048",
            f"{row.layer}{f' ({place})' if place else ''} takes its statistics over the axis "
            f'"{target.axis_name}" of a map inside `{target.facts.name}`, and the axis of the devices was '
            "given that name too: the layer sees the inner one alone",
            "Leave --axis-name out, or give another: --axis-name devices",
            target.facts.span,
        )
    name = next((name for name in OTHER_NAMES if name not in inner), target.axis_name)
    return dataclasses.replace(target, axis_name=name)


def sites_of(session: Session, refusal: Refusal, roles: Roles) -> tuple[str, ...] | None:
    """Sites of numpyro models whose sums couple the examples, where that may be what a refusal says.

    Not those that are scaled to a fixed size: there are none where these are all. None where no site couples.
    """
    if refusal.code not in THROUGH_LAYERS | {"JP051"}:
        return None
    try:
        return session.ask(protocol.FindSites(roles.request()), "looking for sites of models")
    except Problem:
        return None


def coupling(session: Session, target: Target, refusal: Refusal, rows: Sequence[Layer]) -> list[Layer]:
    """Those of some calls of layers that go by way of the place that a refusal names."""
    inside = refusal.code == "JP053" and refusal.span != target.facts.span
    if not (inside or refusal.code in THROUGH_LAYERS) or refusal.span is None:
        return []
    return [row for row in rows if passes(row.frames, refusal.span, target, session.directory)]


def named(
    session: Session, target: Target, refusal: Refusal, rows: Sequence[Layer], roles: Roles | None
) -> Refusal:
    """The refusal with the layer in it that couples the examples, where a library's layer does.

    Else with the line of the user's own layer, or other function that was not looked into, that reduces over
    the examples.

    Args:
        session: the worker that has the target.
        target: the target.
        refusal: what was found to couple the examples.
        rows: the calls of such layers that `coupling` found for it.
        roles: those that `refusal` was found with.

    Returns:
        JP066 if such a layer is come to from the place that `refusal` names, else `refusal` itself.
    """
    if refusal.span is None or (not rows and refusal.code not in THROUGH_LAYERS):
        return refusal
    if not rows:
        return refusal if roles is None else reducing(session, target, refusal, refusal.span, roles)
    first = rows[0]
    names = list(dict.fromkeys(f"`{row.path}`" for row in rows if row.path))
    place = called_at(first.frames, session.directory)
    known = [first.layer, *([place] if place else [])]
    layers = f"{first_few(names, SHOWN)} ({', '.join(known)})" if names else ", ".join(known)
    return Refusal(
        "JP066",
        f"{layers}: the layer normalises by mean and variance of the batch it sees, and on a device that is "
        f"the device's share: {why(first)}",
        f"{way_out(first, target.axis_name)}. Or --backend jit, where statistics are those of the whole "
        "batch as it is",
        refusal.span,
    )


def reducing(session: Session, target: Target, refusal: Refusal, span: Span, roles: Roles) -> Refusal:
    """The refusal with the line in it that reduces over the examples, outside the function itself."""
    try:
        found = session.ask(protocol.FindReductions(roles.request()), "looking for reductions")
    except Problem:
        return refusal
    rows = [frames for frames in found if passes(frames, span, target, session.directory)]
    body = target.parsed.definition
    for frames in rows:
        place = called_at(frames, session.directory)
        file, _, number = place.rpartition(":")
        if not place:
            continue
        inside = file == target.source.shown_path and body.lineno <= int(number) <= (
            body.end_lineno or body.lineno
        )
        if inside:
            continue
        line = next(f for f, *_ in frames if shown_file(f, session.directory) == file)
        line = linecache.getline(line, int(number)).strip()
        return dataclasses.replace(
            refusal,
            reason=f"{refusal.reason}; `{shortened(line)}` ({place}) is taken over the examples, and on a "
            "device over its share",
            hint=f'Make it whole there, over the axis "{target.axis_name}": of a ratio of sums both sums by '
            "`jax.lax.psum`, of a mean by `jax.lax.pmean`, of a batch norm the mean and the mean of the "
            "squares. The function then runs inside a map over that axis. Or --backend jit, where it is that "
            "of the whole batch as it is",
        )
    inner = next(filter(None, map(in_library, rows)), None)
    if inner is None:
        return refusal
    where = f"{inner[0].replace(os.sep, '/').rpartition('-packages/')[2]}:{inner[1]}"
    line = shortened(linecache.getline(inner[0], inner[1]).strip())
    reason = f"{refusal.reason}; in it, `{line}` ({where}) is taken over the examples"
    return dataclasses.replace(refusal, reason=reason)


def in_library(frames: Sequence[Frame]) -> Frame | None:
    """The innermost call in code of an installed package but jax; None where the user's own is further in."""
    for frame in reversed(frames):
        if is_users(frame[0]):
            return None
        if Path(frame[0]).is_file() and not {"jax", "jaxlib"} & set(Path(frame[0]).parts):
            return frame
    return None


def passes(frames: Sequence[Frame], span: Span, target: Target, directory: Path) -> bool:
    """Whether a call was come to by way of `span`; the function as a whole is a way to all of them."""
    if span == target.facts.span:
        return True
    return any(
        shown_file(file, directory) == span.file and span.line <= line <= max(span.end_line, span.line)
        for file, line, _ in frames
    )


def called_at(frames: Sequence[Frame], directory: Path) -> str:
    """``FILE:LINE`` of the user's code that calls a layer."""
    for file, line, _ in reversed(frames):
        if is_users(file) and Path(file).is_file():
            return f"{shown_file(file, directory)}:{line}"
    return ""


def why(row: Layer) -> str:
    """Why a layer is not synchronised."""
    if row.mapped:
        axes = ", ".join(repr(axis) for axis in row.axes)
        return f"its axis {axes} is that of a map inside the function"
    return f"it has no `{row.axis}`"


def way_out(row: Layer, axis_name: str) -> str:
    """What to write, in the library's own words."""
    if not row.mapped:
        return f'Write `{row.axis}="{axis_name}"` where the layer is made, and the devices average them'
    both = ", ".join(f'"{axis}"' for axis in (*row.axes, axis_name))
    return f"Write `{row.axis}=({both})` where the layer is made, and the devices average them too"
