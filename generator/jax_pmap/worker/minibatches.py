"""Into how many groups of consecutive rows a function cuts its batch, found by tracing it."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import Literal

from .jaxpr.versions import opened, primitive_name
from .jaxpr.walk import control, equations, subjaxprs

#: A number of groups, and whether a reshape made them: other cuts take one group each.
Cut = tuple[int, bool]
#: Operations whose results have rows at other places.
MOVING = frozenset(
    {"gather", "sort", "rev", "concatenate", "dynamic_update_slice", "scatter", "select_and_gather_add"}
)


def cuts(jaxpr: Any, in_order: Sequence[bool], size: int) -> Iterator[Cut]:
    """Each cut of an array of `size` rows that has them in the order of the batch.

    `in_order` says which inputs of the program do. What a loop or a call gives back is not followed.
    """
    body = opened(jaxpr)[0]
    rows = {v for v, known in zip(body.invars, in_order, strict=True) if known and is_long(v, size)}
    for equation in body.eqns:
        given = [not isinstance(v, Literal) and v in rows for v in equation.invars]
        if not any(given):
            continue
        name, inner = primitive_name(equation), subjaxprs(equation)
        if control(equation) or inner:
            skipped = {"cond": 1, "while": equation.params.get("cond_nconsts", 0)}.get(name, 0)
            for each in inner[-1:] if name == "while" else inner:
                inputs = len(opened(each)[0].invars)
                if inputs == len(given) - skipped:
                    yield from cuts(each, given[skipped:], size)
            continue
        found = cut(name, equation, size) if given[0] else None
        if found is not None and 1 < found[0] < size:
            yield found
        if name not in MOVING:
            rows.update(v for v in equation.outvars if is_long(v, size))


def groups(jaxpr: Any, size: int) -> Iterator[int]:
    """How many rows are in each of the groups into which any axis that is as long as the batch is cut."""
    for equation in equations(jaxpr):
        name, given = primitive_name(equation), equation.invars[:1]
        shape: Sequence[int] = getattr(given[0].aval, "shape", ()) if given else ()
        out = getattr(equation.outvars[0].aval, "shape", ()) if equation.outvars else ()
        if size not in shape:
            continue
        if name == "reshape":
            yield from (
                rows
                for number, rows in itertools.pairwise(out)
                if number * rows == size and min(number, rows) > 1
            )
        elif name in ("slice", "dynamic_slice"):
            yield from (
                rows for rows, before in zip(out, shape, strict=True) if before == size and 1 < rows < size
            )


def cut(name: str, equation: Any, size: int) -> Cut | None:
    """How many groups of rows an operation on the batch tells of."""
    params, out = equation.params, equation.outvars[0].aval.shape
    bounds: Sequence[int] = ()
    if name == "reshape" and len(out) > 1 and out[0] * out[1] == size and params.get("dimensions") is None:
        return out[0], True
    if name == "slice" and (params["strides"] is None or params["strides"][0] == 1):
        bounds = params["start_indices"][0], params["limit_indices"][0]
    elif name == "dynamic_slice":
        bounds = params["slice_sizes"][:1]
    elif name == "split" and params["axis"] == 0:
        bounds = params["sizes"]
    common = math.gcd(size, *map(int, bounds))
    return (size // common, False) if bounds else None


def is_long(variable: Any, size: int) -> bool:
    """Whether a variable is an array of so many rows."""
    shape: Sequence[Any] = getattr(variable.aval, "shape", ())
    return len(shape) > 0 and shape[0] == size
