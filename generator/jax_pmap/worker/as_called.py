"""The function as the user calls it, uncompiled, compared with the traced one that everything else is about.

Called as it stands, a function has Python's own numbers and the caller's NumPy arrays in its hands: it asks
for their types, and computes with them as Python and NumPy do, in 64 bits. Traced, it has tracers, and 64
bits only where jax was told so.

The call is followed with those arguments as they are and with arrays of jax's traced: an array of jax's and a
tracer are the same to code that neither asks for the type nor for the number, and both of these are seen
(`type_tests`). So nothing has to be compiled one operation after the other, which takes many times as long.
Where both give the same operations, no more is to be shown. Else both are computed, and compared.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from . import prove
from .arguments import Packed, Values, copied
from .call_traces import (
    alike,
    apart,
    asking,
    beyond,
    describe,
    is_narrowed,
    is_of_jax,
    is_wide,
    kind_of,
    narrow,
    replaced,
    results,
    spread,
    where_parted,
)
from .exceptions import describe_exception, is_ours, raising, summary
from .following import Followed, follow, of_inputs
from .in_numpy import TRIED, InNumpy
from .jaxpr.trace import leaf_names
from .leaves import in_order, is_abstract, leaf_paths
from .protocol import Apart, CallComparison, CompareWithCall, Narrowed, Problem, Site
from .rebound.changes import changed_later
from .target import current
from .written import compiles


def compare_with_call(request: CompareWithCall) -> CallComparison:
    """Compare the traced function with the call of it."""
    target = current()
    called = target.called
    assert called is not None
    if target.called_by and compiles(vars(target.module).get(target.fn.__name__)):
        return CallComparison()  # A call of it is traced, too.
    with prove.x64(target.x64):
        return _follow_both(called, request)


def _follow_both(called: Values, request: CompareWithCall) -> CallComparison:
    target = current()
    statics = request.statics
    with raising("reference"):
        traced = of_inputs(statics, watched=True)
    packed = Packed(called, statics)
    names = leaf_names(packed)
    found = CallComparison(
        told=tuple(sorted({packed.owners[i][0] for i in traced.watch.told})),
        later=changed_later(
            traced.watch,
            target.module,
            target.call.raw if target.call is not None else target.fn,
            request.left_out,
            {name: called[name] for name in statics if name in called},
            target.maker,
        ),
    )
    for place, caught in traced.watch.caught.items():
        return dataclasses.replace(
            found, parted=Site(*place, f"catches the {caught} that tracing raises there")
        )
    for place, what in traced.watch.asked.items():
        return dataclasses.replace(found, parted=asking(place, what))
    if is_abstract(called):
        return dataclasses.replace(found, run=False, why="the inputs are shapes alone")
    if _is_traced_so(called, packed):
        return _of_other_values(found, InNumpy(called, traced, names, request), None)
    own = copied(called)
    try:
        call = follow(own, statics, is_of_jax)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        if request.specified:
            # Nobody said that these are NumPy's.
            own = {name: jax.tree.map(_of_jax, value) for name, value in own.items()}
            try:
                call = follow(own, statics, is_of_jax)
            except BaseException as second:
                return dataclasses.replace(found, failed=describe_exception(second))
        else:
            return dataclasses.replace(found, failed=describe_exception(error))
    before, after = (jax.tree.leaves([*each.values()]) for each in (called, own))
    if not request.specified:
        paths = [name + path for name, value in called.items() for path in leaf_paths(value)]
        changed = tuple(
            path
            for path, one, other in zip(paths, before, after, strict=True)
            if isinstance(one, np.ndarray) and not same(one, other)
        )
        found = dataclasses.replace(found, changed=changed)
    found = dataclasses.replace(found, parted=where_parted(call, traced))
    if found.parted or found.changed:
        return found
    if alike(traced, call, packed.leaves):
        return _of_other_values(found, InNumpy(called, traced, names, request), None)
    own = copied(called) if not request.specified else own
    # jax sorts keys.
    in_sorted = {name: jax.tree.map(lambda leaf: leaf, value) for name, value in own.items()}
    try:
        compared = _compared(own, names, traced, call, request, found)
        if compared.apart and any(in_order(each, own[name]) is not each for name, each in in_sorted.items()):
            again = follow(in_sorted, statics, is_of_jax)
            other = _compared(in_sorted, names, traced, again, request, found)
            compared = dataclasses.replace(compared, reordered=other.apart is None)
        if compared.apart:
            return compared
        return _of_other_values(compared, InNumpy(own, traced, names, request), call)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        if is_ours(error):
            raise
        return dataclasses.replace(found, run=False, why=f"computing it fails ({summary(error)})")


def _of_other_values(found: CallComparison, leaves: InNumpy, call: Followed | None) -> CallComparison:
    """What was `found`, with what holds of other values; in a `call` NumPy computes with some leaves."""
    as_given = () if call is None else leaves.as_given(call)
    wide, parted = leaves.as_numpy()
    return dataclasses.replace(found, wide=(*as_given, *wide), parted=parted)


def _is_traced_so(called: Values, packed: Packed) -> bool:
    """Whether the trace is that of the call too: of arrays of jax alone, in dicts with sorted keys."""
    if not all(isinstance(leaf, jax.Array) for leaf in packed.leaves):
        return False
    given = packed.unpack(packed.leaves)
    return all(in_order(given[name], value) is given[name] for name, value in called.items())


def _of_jax(leaf: Any) -> Any:
    return jax.numpy.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf


def same(one: np.ndarray, other: Any) -> bool:
    """Whether an array still has its values."""
    floats = one.dtype.kind in "fc"
    return bool(np.array_equal(one, other, equal_nan=floats))


def _compared(
    called: Values,
    names: list[str],
    traced: Followed,
    call: Followed,
    request: CompareWithCall,
    found: CallComparison,
) -> CallComparison:
    """Compute both, and say which outputs are apart, and by which leaves."""
    statics = request.statics
    packed = Packed(called, statics)
    if alike(traced, call, packed.leaves, computes=True):
        return found
    as_given = [i for i, leaf in enumerate(packed.leaves) if not is_of_jax(i, leaf)]

    arrays = [i for i in as_given if is_wide(packed.leaves[i])]
    exact = [narrow(leaf) if i in as_given else leaf for i, leaf in enumerate(packed.leaves)]
    lossy = [i for i in as_given if is_narrowed(packed.leaves[i])]
    # Labels and ids that survive in 32 bits are worth less than compiling a model twice.
    ids = not lossy and all(kind_of(packed.leaves[i]).startswith(("int", "uint")) for i in arrays)
    needed = beyond(request.room, request.seconds * (TRIED if ids else 1), traced, call)
    if needed:
        return dataclasses.replace(found, run=False, why=f"computing it needs about {needed}")
    of_trace, of_call = results(traced), results(call)
    if str(traced.tree) != str(call.tree):
        return dataclasses.replace(found, apart=Apart("", str(traced.tree), str(call.tree)))
    own: list[float] | None = None
    narrowed = call
    if lossy:
        narrowed = follow(replaced(called, statics, lambda i, _: exact[i]), statics, is_of_jax)
        of_narrowed = results(narrowed)
        off = apart(of_narrowed, of_call, None)
        if off:
            own = spread(call, of_call, request.room)
            off = apart(of_narrowed, of_call, own)
        if off:
            narrowing = tuple(
                Narrowed(names[i], kind_of(packed.leaves[i]))
                for i in lossy
                if apart(
                    results(
                        follow(
                            replaced(called, statics, lambda j, leaf, i=i: exact[i] if i == j else leaf),  # type: ignore[misc]
                            statics,
                            is_of_jax,
                        )
                    ),
                    of_call,
                    own,
                )
            )
            return dataclasses.replace(
                found, apart=describe(call, off, of_narrowed, of_call), narrowed=narrowing
            )
    else:
        of_narrowed = of_call
    off = apart(of_trace, of_narrowed, None)
    if off:
        own = spread(call, of_call, request.room) if own is None else own
        sums = [a + b for a, b in zip(own, spread(traced, of_trace, request.room), strict=True)]
        off = apart(of_trace, of_narrowed, sums)
    if off:
        return dataclasses.replace(found, apart=describe(call, off, of_trace, of_narrowed))
    return found
