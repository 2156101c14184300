"""Two traces of one function, of which NumPy or Python computes a part in one: what each gives.

Traced, a function computes with all it is given in jax. Called with some leaves as they are, what it computes
of these alone is computed by NumPy or Python, and stands in the trace as a constant.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from . import arguments, compiling, prove
from .arguments import Packed, Values
from .budget import COMPILING, COMPUTING, LOOPING, human, peak, stored
from .budget import size as operations
from .decisions import taken
from .distance import distance
from .following import Followed
from .jaxpr.forward import Computing
from .leaves import category, in_order, is_key
from .protocol import Apart, Site
from .rounded import evaluated
from .same_operations import Same
from .type_tests import parted
from .work import nested, rounds, work

#: Programs that a comparison may have to compile.
COMPILED = 4
#: How many ways of rounding are tried.
WAYS = 3


def is_of_jax(_: int, leaf: Any) -> bool:
    """Whether a leaf is traced in a call of the function with what it is given."""
    return isinstance(leaf, jax.Array)


def results(followed: Followed) -> list[Any]:
    """The leaves of the result of a trace, computed."""
    closed = followed.jaxpr

    def run(constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        return Computing().run(closed, given, constants)

    compiling.COMPILING.suit(closed)
    return followed.whole(jax.jit(run)(_constants(closed), followed.given))


def spread(followed: Followed, results: Sequence[Any], room: int) -> list[float]:
    """How far the roundings inside lead from these `results`, by output.

    Compiled as a whole that takes the time of their number squared, minutes for a transformer. So it is
    computed operation by operation, where all that is computed has `room`, in bytes.
    """
    closed = followed.jaxpr

    def run(constants: Sequence[Any], given: Sequence[Any], way: Any) -> list[Any]:
        return evaluated(closed, given, way, constants)

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


def alike(whole: Followed, part: Followed, leaves: Sequence[Any], *, computes: bool = False) -> bool:
    """Whether two traces are the same operations; the first has those `leaves` traced that the second has.

    With `computes`, whether they are for those leaves that the second has as they are; see `Same`.
    """
    variables = dict(zip(whole.at, whole.jaxpr.jaxpr.invars, strict=True))
    inputs = {variables[i]: own for i, own in zip(part.at, part.jaxpr.jaxpr.invars, strict=True)}
    given = {variable: leaves[i] for i, variable in variables.items()}
    same = Same({v: leaf for v, leaf in given.items() if v not in inputs}, inputs, computes=computes)
    results = [each.whole(each.jaxpr.jaxpr.outvars) for each in (whole, part)]
    return whole.paths == part.paths and same.operations(whole.jaxpr, part.jaxpr) and same.results(*results)


def where_parted(call: Followed, traced: Followed) -> "Site | None":
    """Where the code asks a call for what a trace answers otherwise, or where the two go other ways."""
    sites = [asking(place, what) for place, what in call.watch.asked.items()]
    way = parted(call.watch, traced.watch)
    if way is not None and not sites:
        file, line, is_call = way
        sites.append(Site(file, line, f"is reached only {'as it is called' if is_call else 'when traced'}"))
    return sites[-1] if sites else None


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


def goes_on(followed: Followed, seconds: float) -> bool:
    """Whether a loop of unknown length of a trace goes round more often than there is time for."""
    closed = followed.jaxpr
    depth = nested(closed)
    if depth == 0:
        return False
    limit = int((seconds / LOOPING / (1 + rounds(closed))) ** (1 / depth))
    return bool(jax.jit(lambda given: taken(closed, given, np.int32(limit))[2])(followed.given))


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
            # Functions are made anew by each call; and that results are any is refused elsewhere.
            if not (callable(one) and callable(other)) and not arguments.same_constant(one, other):
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
    if "opaque" in (category(got[index]), category(want[index])):
        return Apart(call.paths[index], repr(got[index]), repr(want[index]))
    left, right = number(got[index]), number(want[index])
    if left.shape != right.shape or left.dtype.kind != right.dtype.kind:
        left_said, right_said = (f"{each.dtype}{list(each.shape)}" for each in (left, right))
    else:
        flat = np.ravel(np.abs(left.astype(np.float64) - right.astype(np.float64)))
        worst = int(np.argmax(flat)) if flat.size else 0
        left_said, right_said = (f"{np.ravel(each)[worst]:.6g}" for each in (left, right))
    return Apart(call.paths[index], left_said, right_said)
