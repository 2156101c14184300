"""Parallel functions traced on counts of devices, and on meshes of several sizes."""

import math
from collections.abc import Mapping, Sequence

import jax

from .. import meshes, prove
from ..budget import size as operations
from ..exceptions import summary
from ..jaxpr.trace import Traced
from ..placements.derive import mesh_axes
from ..placements.interpreter import Apart
from ..protocol import NOT_FOUND, Mesh, Problem
from .claims import Inputs, Made, Untraced

#: Operations up to which a program is traced for four counts of devices, and not for two.
FEW = 1000


def everywhere(
    functions: Mapping[str, Made],
    inputs: Inputs,
    counts: Sequence[int],
    mesh: Mesh | None = None,
    *,
    or_on_all: bool = True,
) -> list[list[Traced]]:
    """Functions on some counts of devices, or on meshes of several sizes; each by what a message says of it.

    Those that fail on some of them are tried on as many devices as there are, where that may be what they
    are written for (`or_on_all`).

    Raises:
        Untraced: one of them cannot be.
    """

    def traced(on: Sequence[int]) -> list[list[Traced]]:
        return [_on_each(each, inputs, on, subject) for subject, each in functions.items()]

    every = list(functions.values())
    try:
        rows = traced(counts)
    except Untraced as problem:
        if not or_on_all:
            raise
        # Its mesh may be written down, for as many devices as there are.
        most = [len(jax.devices())]
        try:
            rows = traced(most)
        except Untraced:
            raise problem from None
        rows = on_meshes(every, inputs, rows, most)
        if len(rows[0]) < 2:
            raise
        return rows
    return on_meshes(every, inputs, rows, counts, mesh)


def _on_each(function: Made, inputs: Inputs, counts: Sequence[int], subject: str) -> list[Traced]:
    """A function on some counts of devices.

    Raises:
        Untraced: it cannot be on one of them; `subject` is what the message says that of.
    """
    programs: list[Traced] = []
    failed = ""
    for count in counts:
        try:
            programs.append(traced_on(function, inputs, count))
        except Untraced as problem:
            failed = failed or f"{subject} not traced on {count} devices: {problem}"
    jax.clear_caches()
    if failed:
        raise Untraced(failed, programs)
    return programs


def traced_on(
    function: Made, inputs: Inputs, count: int, sizes: Sequence[int] | None = None, *, more: bool = False
) -> Traced:
    """A function on so many devices, its meshes of the `sizes` that are asked for, with `more` devices too.

    Raises:
        Untraced: it is not there for so many, or fails.
    """
    # jax keeps what it traced: a function that asks for the number of devices would give the first.
    jax.clear_caches()
    try:
        every = jax.devices() if more else ()
        showing = prove.only_devices if count <= len(jax.devices()) else prove.repeated_devices
        with showing(count), meshes.of_sizes(sizes, every):
            called = function(count)
            with meshes.set_inside():
                return Traced.of(called, inputs.packed, inputs.leaves)
    except MemoryError:
        raise
    except Problem as problem:
        if problem.kind not in NOT_FOUND:
            raise
        raise Untraced(str(problem)) from problem
    except BaseException as error:
        raise Untraced(summary(error)) from error


def on_meshes(
    functions: Sequence[Made],
    inputs: Inputs,
    traced: Sequence[Sequence[Traced]],
    counts: Sequence[int],
    mesh: Mesh | None = None,
) -> list[list[Traced]]:
    """Functions of which one has a mesh of several axes, with each of these in several sizes by itself.

    How large each is, is up to its code: two for all numbers of devices, say. So it is with the one axis of
    code that was `traced` on one of the `counts` of devices alone, which may be the only one it takes; that
    counts too.
    Where none has such a mesh, where it has more axes than the devices here suffice for, or one is not traced
    so, they are as they were `traced`.

    Where the `mesh` is known, the program is that of its sizes, and others are there to tell what depends on
    them: those with which it is another program are left out.
    """
    before = [list(row) for row in traced]
    try:
        number = max(len(mesh_axes([each.jaxpr for each in row])) for row in traced)
    except Apart:
        return before
    most = len(jax.devices())
    first = [2] * number if mesh is None else list(mesh.axes.values())
    written = number == 1 and len(before[0]) == 1
    if not number or (number < 2 and not written) or (mesh is None and math.prod(first) > most):
        return before

    def made(sizes: Sequence[int]) -> list[Traced] | None:
        # Code that writes the number of devices down takes no other.
        for count in dict.fromkeys((math.prod(sizes), *counts, most)):
            try:
                return [traced_on(each, inputs, count, sizes, more=mesh is not None) for each in functions]
            except Untraced:
                continue
        return None

    def alike(one: Sequence[Traced], other: Sequence[Traced]) -> bool:
        return [operations(each.jaxpr) for each in one] == [operations(each.jaxpr) for each in other]

    start = made(first) if mesh is None else [row[0] for row in before]
    found = [start, *([[row[0] for row in before]] if written and mesh is None else [])]
    enough = 1 if operations(traced[0][0].jaxpr) > FEW else 2
    for at in (at for at, size in enumerate(first) if size > 1):
        others: list[list[Traced] | None] = []
        # One device tells least. An array of which each device has one row alone is broadcast.
        for size in (3, 4) if mesh is None else (2, 3, 4, 1):
            sizes = [*first[:at], size, *first[at + 1 :]]
            fits = len(others) < (enough if size > 1 else 1) and math.prod(sizes) <= most
            other = made(sizes) if fits and sizes != first else None
            if other is not None and (mesh is None or (start is not None and alike(start, other))):
                others.append(other)
        found += others or [None]
    jax.clear_caches()
    every = [each for each in found if each is not None]
    return [list(row) for row in zip(*every, strict=True)] if len(every) == len(found) else before
