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
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from . import arguments, prove
from .arguments import Packed, Values
from .budget import COMPILING, COMPUTING, LOOPING, human, peak, stored
from .budget import size as operations
from .distance import distance
from .following import Followed, every, follow, in_order, of_inputs
from .jaxpr.trace import leaf_names
from .jaxpr.versions import bind
from .leaves import category, is_abstract, is_key, leaf_paths
from .protocol import Apart, CallComparison, CompareWithCall, Narrowed, Problem, Site
from .rebound import changed_later
from .rounded import evaluated
from .same_operations import Same
from .server import describe_exception, summary
from .specs import SEED
from .target import current
from .type_tests import parted
from .work import rounds, work

#: Programs that a comparison may have to compile.
COMPILED = 4
#: How many ways of rounding are tried.
WAYS = 3
#: Leaves that are looked at one by one.
MOST_LEAVES = 16
#: How much of the time there is one size of an integer may take: it is tried at several, and may be how often
#: a loop goes round.
TRIED = 1 / 64
#: Sizes up to which integers are tried, the largest that 32 bits hold first.
LIMITS = ((1 << 31) - 1, 1 << 29, 1 << 24, 1 << 20, 1 << 15, 1 << 10)


def results(followed: Followed) -> list[Any]:
    """The leaves of the result of a trace, computed."""
    closed = followed.jaxpr

    def run(constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        known = dict(zip(closed.jaxpr.constvars, constants, strict=True))
        known.update(zip(closed.jaxpr.invars, given, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        for equation in closed.jaxpr.eqns:
            computed = bind(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, computed, strict=True))
        return [read(atom) for atom in closed.jaxpr.outvars]

    return followed.whole(jax.jit(run)(_constants(closed), followed.given))


def spread(followed: Followed, results: Sequence[Any], room: int) -> list[float]:
    """How far the roundings inside lead from these `results`, by output.

    Compiled as a whole that takes the time of their number squared, minutes for a transformer. So it is
    computed operation by operation, where all that is computed has `room`, in bytes.
    """
    closed = followed.jaxpr

    def run(constants: Sequence[Any], given: Sequence[Any], way: Any) -> list[Any]:
        return evaluated(closed.jaxpr, [*constants, *given], way)

    compiled, most = run if stored(closed) <= room else jax.jit(run), [0.0] * len(results)
    for way in range(WAYS):
        moved = followed.whole(compiled(_constants(closed), followed.given, np.uint32(way)))
        pairs = list(zip(moved, results, strict=True))
        far = [0.0 if "opaque" in map(category, pair) else distance(*map(number, pair))[0] for pair in pairs]
        most = [*map(max, most, (each if math.isfinite(each) else 0.0 for each in far))]
    return most


def _constants(closed: Any) -> list[Any]:
    # What is known before is no constant to XLA, which would compute with large ones while compiling.
    return [jax.numpy.asarray(x) if category(x) == "array" else x for x in closed.consts]


def alike(whole: Followed, part: Followed, leaves: Sequence[Any]) -> bool:
    """Whether two traces are the same operations; the first has those `leaves` traced that the second has."""
    variables = dict(zip(whole.at, whole.jaxpr.jaxpr.invars, strict=True))
    inputs = {variables[i]: own for i, own in zip(part.at, part.jaxpr.jaxpr.invars, strict=True)}
    given = {variable: leaves[i] for i, variable in variables.items()}
    same = Same({v: leaf for v, leaf in given.items() if v not in inputs}, inputs)
    results = [each.whole(each.jaxpr.jaxpr.outvars) for each in (whole, part)]
    return whole.paths == part.paths and same.operations(whole.jaxpr, part.jaxpr) and same.results(*results)


def kept(values: Values) -> Values:
    """`values` with NumPy arrays of their own, which the function may change."""

    def own(value: Any) -> Any:
        made = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, value)
        return in_order(made, value)

    return {name: own(value) for name, value in values.items()}


def compare_with_call(request: CompareWithCall) -> CallComparison:
    """Compare the traced function with the call of it."""
    target = current()
    called = target.called
    assert called is not None
    with prove.x64(target.x64):
        return _follow_both(called, request)


def _is_array(_: int, leaf: Any) -> bool:
    return isinstance(leaf, jax.Array)


def _follow_both(called: Values, request: CompareWithCall) -> CallComparison:
    target = current()
    statics = request.statics
    try:
        traced = of_inputs(statics, watched=True)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        raise Problem("reference", summary(error), error=describe_exception(error)) from error
    packed = Packed(called, statics)
    names = leaf_names(packed)
    found = CallComparison(
        told=tuple(sorted({packed.owners[i][0] for i in traced.watch.told})),
        later=changed_later(
            traced.watch,
            target.module,
            target.call.raw if target.call is not None else target.fn,
            request.left_out,
            [called[name] for name in statics if name in called],
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
        return found
    own = kept(called)
    try:
        call = follow(own, statics, _is_array)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        if request.specified:
            # Nobody said that these are NumPy's.
            own = {name: jax.tree.map(_of_jax, value) for name, value in own.items()}
            try:
                call = follow(own, statics, _is_array)
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
    sites = [asking(place, what) for place, what in call.watch.asked.items()]
    way = parted(call.watch, traced.watch)
    if way is not None and not sites:
        file, line, is_call = way
        only = "only as it is called" if is_call else "only when traced"
        sites.append(Site(file, line, f"is reached {only}"))
    found = dataclasses.replace(found, parted=sites[-1] if sites else None)
    if found.parted or found.changed or alike(traced, call, packed.leaves):
        return found
    own = kept(called) if not request.specified else own
    # jax sorts keys.
    in_sorted = {name: jax.tree.map(lambda leaf: leaf, value) for name, value in own.items()}
    try:
        compared = _compared(own, names, traced, call, request, found)
        if compared.apart and any(in_order(each, own[name]) is not each for name, each in in_sorted.items()):
            again = follow(in_sorted, statics, _is_array)
            other = _compared(in_sorted, names, traced, again, request, found)
            compared = dataclasses.replace(compared, reordered=other.apart is None)
        return compared
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        return dataclasses.replace(found, run=False, why=f"computing it fails ({summary(error)})")


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


def asking(place: tuple[str, int], what: str) -> Site:
    """A place in the user's code that asks for what a trace answers otherwise."""
    return Site(*place, f"asks `{what}`, which has another answer while jax traces")


def is_wide(leaf: Any) -> bool:
    """Whether NumPy or Python computes with a leaf in more bits than jax does: in 64, or in any number."""
    if category(leaf) == "int":
        return True
    is_array = category(leaf) == "array"
    return is_array and jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype


def is_narrowed(leaf: Any) -> bool:
    """Whether jax gives a leaf fewer bits than it has, and it does not survive that."""
    return bool(narrow(leaf) is not leaf and not np.array_equal(narrow(leaf), leaf, equal_nan=True))


def narrow(leaf: Any) -> Any:
    """A leaf with the value it has in jax, of the type it has."""
    if category(leaf) in ("float", "complex"):
        return type(leaf)(jax.numpy.asarray(leaf))
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "iufc":
        kind = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return leaf if kind == leaf.dtype else leaf.astype(kind).astype(leaf.dtype)
    return leaf


def replaced(values: Values, statics: Sequence[str], change: Callable[[int, Any], Any]) -> Values:
    """`values` with ``change(index, leaf)`` in place of every leaf that can be traced."""
    packed = Packed(values, statics)
    made = packed.unpack([change(index, leaf) for index, leaf in enumerate(packed.leaves)])
    return {name: in_order(value, values[name]) for name, value in made.items()}


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
    as_given = [i for i, leaf in enumerate(packed.leaves) if not _is_array(i, leaf)]

    def without(index: int) -> bool:
        """Whether the call is another program where this leaf is traced as well."""
        try:
            again = follow(called, statics, lambda i, leaf: i == index or _is_array(i, leaf))
        except (MemoryError, Problem):
            raise
        except BaseException:
            return True  # NumPy takes no tracer.
        return not alike(again, call, packed.leaves)

    arrays = [i for i in as_given if is_wide(packed.leaves[i])]
    exact = [narrow(leaf) if i in as_given else leaf for i, leaf in enumerate(packed.leaves)]
    lossy = [i for i in as_given if is_narrowed(packed.leaves[i])]
    # Labels and ids that survive in 32 bits are worth less than compiling a model twice.
    ids = not lossy and all(kind_of(packed.leaves[i]).startswith(("int", "uint")) for i in arrays)
    needed = beyond(request.room, request.seconds * (TRIED if ids else 1), traced, call)
    if needed:
        return dataclasses.replace(found, run=False, why=f"computing it needs about {needed}")
    wide: list[Narrowed] = []
    if len(arrays) <= MOST_LEAVES:
        wide = [Narrowed(names[i], kind_of(packed.leaves[i])) for i in arrays if without(i)]
    found = dataclasses.replace(found, wide=tuple(wide))
    of_trace, of_call = results(traced), results(call)
    if str(traced.tree) != str(call.tree):
        return dataclasses.replace(found, apart=Apart("", str(traced.tree), str(call.tree)))
    own: list[float] | None = None
    narrowed = call
    if lossy:
        narrowed = follow(replaced(called, statics, lambda i, _: exact[i]), statics, _is_array)
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
                            _is_array,
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
    for index, row in enumerate(wide):
        if row.dtype.startswith(("int", "uint")):
            up_to = reach(called, statics, names.index(row.name), request)
            wide[index] = dataclasses.replace(row, up_to=up_to)
    return dataclasses.replace(found, wide=tuple(wide))


def beyond(room: int, seconds: float, *programs: Followed) -> str:
    """What computing the programs needs, where that is more than there is; or ``""``."""
    spent = 0.0
    for each in programs:
        jaxpr = each.jaxpr.jaxpr
        spent += operations(jaxpr) * COMPILING + 2 * work(jaxpr) / COMPUTING + rounds(jaxpr) * LOOPING
        taken, needed = peak(each.jaxpr), spent * COMPILED / 2
        if taken > room:
            return f"{human(taken)}, more than the {human(room)} there are for it"
        if needed > seconds:
            return f"{needed:.1f} s, more than the {seconds:.1f} s there are for it"
    return ""


def reach(called: Values, statics: Sequence[str], index: int, request: CompareWithCall) -> int | None:
    """Up to which size the integers of a leaf may be for call and trace to give the same, as far as is tried.

    What the call computes with them in 64 bits may pass 32 where they do not. None: no limit was seen.
    """
    given = Packed(called, statics).leaves[index]

    def agree(made: Any) -> bool:
        made = np.asarray(made, given.dtype) if hasattr(given, "dtype") else made
        values = replaced(kept(called), statics, lambda i, leaf: made if i == index else leaf)
        call, trace = (follow(values, statics, each) for each in (_is_array, every))
        if alike(trace, call, Packed(values, statics).leaves):
            return True
        if beyond(request.room, request.seconds * TRIED, trace, call):
            raise OverflowError  # Of a count of steps nobody waits for the end.
        return not apart(results(trace), results(call), None)

    least = int(np.max(np.abs(given), initial=0))
    rng, differed = np.random.default_rng(SEED), False
    for limit in LIMITS:
        if limit <= least:
            break
        lowest = 0 if np.min(given, initial=0) >= 0 else -limit
        drawn = [rng.integers(lowest, limit, np.shape(given), endpoint=True)]
        if np.ndim(given) == 0:
            drawn += [np.asarray(limit), np.asarray(limit - limit // 3)]
        try:
            same = all(agree(made if hasattr(given, "dtype") else int(made)) for made in drawn)
        except (MemoryError, Problem):
            raise
        except BaseException:
            continue  # The call itself refuses such numbers, as an index.
        if same:
            return limit if differed or limit == LIMITS[0] else None
        differed = True
    return least if differed else None


def kind_of(leaf: Any) -> str:
    """``"float64"``, or of a number of Python its type."""
    return str(leaf.dtype) if hasattr(leaf, "dtype") else type(leaf).__name__


def number(leaf: Any) -> np.ndarray:
    """A leaf of a result as NumPy has it."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def apart(got: Sequence[Any], want: Sequence[Any], allowed: Sequence[float] | None) -> list[int]:
    """The outputs that are further apart than rounding, and than `SLACK` times what is `allowed`."""
    found = []
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        if "opaque" in (category(one), category(other)):
            if not arguments.same_constant(one, other):
                found.append(index)
            continue
        left, right = number(one), number(other)
        kinds = {left.dtype.kind, right.dtype.kind}
        if left.shape != right.shape or len({"i" if kind in "iu" else kind for kind in kinds}) > 1:
            found.append(index)
            continue
        error, scale = distance(left, right)
        floats = left.dtype.kind in "fcV"
        # What Python computes by itself has more digits than the result may keep.
        widths = [jax.dtypes.canonicalize_dtype(each.dtype) for each in (left, right)] if floats else []
        eps = max((float(jax.numpy.finfo(width).eps) for width in widths), default=0.0)
        bound = prove.SLACK * max(eps * scale, allowed[index] if allowed and floats else 0.0)
        if not error <= bound and not (math.isnan(error) and math.isnan(bound)):
            found.append(index)
    return found


def describe(call: Followed, off: Sequence[int], got: Sequence[Any], want: Sequence[Any]) -> Apart:
    """The first output that is apart, in words."""
    index = off[0]
    left, right = number(got[index]), number(want[index])
    if left.shape != right.shape or left.dtype.kind != right.dtype.kind:
        left_said, right_said = (f"{each.dtype}{list(each.shape)}" for each in (left, right))
    else:
        flat = np.ravel(np.abs(left.astype(np.float64) - right.astype(np.float64)))
        worst = int(np.argmax(flat)) if flat.size else 0
        left_said, right_said = (f"{np.ravel(each)[worst]:.6g}" for each in (left, right))
    return Apart(call.paths[index], left_said, right_said)
