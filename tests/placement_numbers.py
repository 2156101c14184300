"""Jaxprs run with NumPy on several devices at once: nothing is compiled, so a thousand take seconds.

Primitives that are not here run as jax runs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.special
from jax.extend.core import Literal

from jax_pmap.worker.jaxpr.versions import inner_jaxpr, opened, primitive_name

Array = Any


def whole_division(x: Array, y: Array) -> Array:
    """A quotient, cut off towards zero where it is one of whole numbers."""
    return x / y if x.dtype.kind in "fc" else np.trunc(x / y)


def igamma_grad(a: Array, x: Array) -> Array:
    """The derivative of the incomplete gamma function by its first argument."""
    return (scipy.special.gammainc(a + 1e-5, x) - scipy.special.gammainc(a - 1e-5, x)) / 2e-5


def bits(x: Array) -> Array:
    """A whole number as an unsigned one of the same width."""
    return np.asarray(x).view(f"u{np.asarray(x).itemsize}")


def shifted(x: Array, y: Array, *, left: bool = False, signed: bool = False) -> Array:
    """Bits moved, by fewer than there are."""
    x = np.asarray(x)
    return (
        np.left_shift(x, y)
        if left
        else np.right_shift(x if signed else bits(x), y.astype((x if signed else bits(x)).dtype))
    )


ELEMENTS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": whole_division,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq_to": np.equal,
    "le_to": np.less_equal,
    "lt_to": np.less,
    "atan2": np.arctan2,
    "nextafter": np.nextafter,
    "pow": np.power,
    "rem": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "logistic": scipy.special.expit,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.psi,
    "bessel_i0e": scipy.special.i0e,
    "bessel_i1e": scipy.special.i1e,
    "exp2": np.exp2,
    "log2": np.log2,
    "one_minus_square": lambda x: 1 - x * x,
    "is_finite": np.isfinite,
    "conj": np.conj,
    "real": np.real,
    "imag": np.imag,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "round": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "regularized_incomplete_beta": scipy.special.betainc,
    "igamma": scipy.special.gammainc,
    "igammac": scipy.special.gammaincc,
    "igamma_grad_a": igamma_grad,
    "random_gamma_grad": igamma_grad,
    "zeta": scipy.special.zeta,
    "polygamma": lambda n, x: scipy.special.polygamma(n.astype(int), x),
    "complex": lambda x, y: x + 1j * y,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "select_n": lambda which, *cases: np.choose(np.asarray(which).astype(int), cases),
    "population_count": np.bitwise_count if hasattr(np, "bitwise_count") else None,
    "clz": lambda x: x.itemsize * 8 - np.ceil(np.log2(bits(x).astype(np.longdouble) + 1)),
    "shift_left": lambda x, y: shifted(x, y, left=True),
    "shift_right_logical": shifted,
    "shift_right_arithmetic": lambda x, y: shifted(x, y, signed=True),
    "mulhi": lambda x, y: (x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32),
}
IDENTICAL = [
    "copy",
    "copy_p",
    "stop_gradient",
    "name",
    "optimization_barrier",
    "device_put",
    "sharding_constraint",
    "pvary",
    "random_clone",
]


def reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction over axes."""
    return lambda x, *, axes, **_: function(x, axis=tuple(axes))


def broadcast(
    x: Array, *_: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], **__: Any
) -> Array:
    """Axes put in, and axes of size one repeated."""
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(x.reshape(sizes), shape)


def reshape(x: Array, *, new_sizes: Sequence[int], dimensions: Any = None, **_: Any) -> Array:
    """The elements in another shape, their axes in another order first."""
    return (x if dimensions is None else x.transpose(dimensions)).reshape(new_sizes)


def sliced(x: Array, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> Array:
    """A part of an array."""
    steps = strides or [1] * x.ndim
    return x[tuple(slice(*row) for row in zip(start_indices, limit_indices, steps, strict=True))]


def padded(x: Array, value: Array, *, padding_config: Any) -> Array:
    """Values around, and between, the elements of an array."""
    sizes = [
        max(0, (n - 1) * (mid + 1) + 1) if n else 0
        for n, (_, _, mid) in zip(x.shape, padding_config, strict=True)
    ]
    wide = np.full(sizes, value, x.dtype)
    wide[tuple(slice(None, None, mid + 1) for _, _, mid in padding_config)] = x
    for axis, (low, high, _) in enumerate(padding_config):
        around = [(0, 0)] * x.ndim
        around[axis] = (max(low, 0), max(high, 0))
        wide = np.pad(wide, around, constant_values=value)
        wide = np.take(wide, range(max(-low, 0), wide.shape[axis] - max(-high, 0)), axis)
    return wide


def split(x: Array, *, sizes: Sequence[int], axis: int) -> list[Array]:
    """An array in pieces."""
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def accumulated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction that keeps all steps."""

    def run(x: Array, *, axis: int, reverse: bool, **_: Any) -> Array:
        if reverse:
            return np.flip(function(np.flip(x, axis), axis=axis), axis)
        return function(x, axis=axis)

    return run


def dot_general(x: Array, y: Array, *, dimension_numbers: Any, **_: Any) -> Array:
    """Products summed over pairs of axes."""
    ((left, right), (batch, other)) = dimension_numbers
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * x.ndim, [""] * y.ndim]
    shared = ""
    for i, j in zip(batch, other, strict=True):
        names[0][i] = names[1][j] = next(letters)
        shared += names[0][i]
    for i, j in zip(left, right, strict=True):
        names[0][i] = names[1][j] = next(letters)
    free = ""
    for row in names:
        for at, name in enumerate(row):
            if not name:
                row[at] = next(letters)
                free += row[at]
    return np.einsum(f"{''.join(names[0])},{''.join(names[1])}->{shared}{free}", x, y)


def placed_sorted(*arrays: Array, dimension: int, num_keys: int, **_: Any) -> list[Array]:
    """Arrays in the order of the first ones."""
    order = np.argsort(arrays[0], dimension, kind="stable")
    assert num_keys == 1
    return [np.take_along_axis(array, order, dimension) for array in arrays]


def top_k(x: Array, *, k: int, **_: Any) -> list[Array]:
    """The largest along the last axis, and where they are."""
    order = np.argsort(-x, -1, kind="stable")[..., :k]
    return [np.take_along_axis(x, order, -1), order]


def addresses(
    shape: Sequence[int],
    indices: Array,
    slices: Sequence[int],
    sizes: Sequence[int],
    window_axes: Sequence[int],
    dropped: Sequence[int],
    columns: Sequence[int],
    batched: Sequence[int],
    batched_indices: Sequence[int],
    mode: Any,
) -> Any:
    """For each element of the slices, the place in the operand; None where that is outside."""
    kept = [axis for axis in range(len(shape)) if axis not in dropped and axis not in batched]
    outer = [axis for axis in range(len(slices)) if axis not in window_axes]
    for at in itertools.product(*(range(size) for size in slices)):
        row = [at[axis] for axis in outer]
        start = [0] * len(shape)
        for column, axis in enumerate(columns):
            start[axis] = int(indices[(*row, column)])
        outside = any(not 0 <= s <= shape[axis] - sizes[axis] for axis, s in enumerate(start))
        start = [min(max(s, 0), shape[axis] - sizes[axis]) for axis, s in enumerate(start)]
        for axis, other in zip(batched, batched_indices, strict=True):
            start[axis] = row[other]
        for axis, within in zip(kept, window_axes, strict=True):
            start[axis] += at[within]
        yield at, None if outside and "FILL" in str(mode) else tuple(start)


def gather(
    x: Array,
    indices: Array,
    *,
    dimension_numbers: Any,
    slice_sizes: Any,
    mode: Any,
    fill_value: Any,
    aval: Any,
    **_: Any,
) -> Array:
    """Slices of an array, at places that indices say."""
    d = dimension_numbers
    if fill_value is None:
        fill_value = (
            np.nan if x.dtype.kind in "fc" else np.iinfo(x.dtype).min if x.dtype.kind == "i" else True
        )
    made = np.full(aval.shape, fill_value, x.dtype)
    batched = (
        tuple(getattr(d, "operand_batching_dims", ())),
        tuple(getattr(d, "start_indices_batching_dims", ())),
    )
    for at, place in addresses(
        x.shape,
        indices,
        aval.shape,
        slice_sizes,
        d.offset_dims,
        d.collapsed_slice_dims,
        d.start_index_map,
        *batched,
        mode,
    ):
        if place is not None:
            made[at] = x[place]
    return made


def scatter(function: Callable[..., Any] | None) -> Callable[..., Any]:
    """Updates put into an array, at places that indices say."""

    def run(
        x: Array,
        indices: Array,
        updates: Array,
        *,
        dimension_numbers: Any,
        mode: Any,
        update_jaxpr: Any,
        **_: Any,
    ) -> Array:
        d, made = dimension_numbers, np.array(x)
        batched = (
            tuple(getattr(d, "operand_batching_dims", ())),
            tuple(getattr(d, "scatter_indices_batching_dims", ())),
        )
        kept = [a for a in range(x.ndim) if a not in d.inserted_window_dims and a not in batched[0]]
        sizes = [1] * x.ndim
        for axis, within in zip(kept, d.update_window_dims, strict=True):
            sizes[axis] = updates.shape[within]
        for at, place in addresses(
            x.shape,
            indices,
            updates.shape,
            sizes,
            d.update_window_dims,
            d.inserted_window_dims,
            d.scatter_dims_to_operand_dims,
            *batched,
            mode,
        ):
            if place is None:
                continue
            if function is not None:
                made[place] = function(made[place], updates[at])
            elif update_jaxpr is not None:
                made[place] = evaluated(update_jaxpr, [[made[place]], [updates[at]]], 1)[0][0]
            else:
                made[place] = updates[at]
        return made

    return run


def starts(x: Array, at: Sequence[Array], sizes: Sequence[int]) -> tuple[slice, ...]:
    """A slice that is moved until it is inside."""
    first = [min(max(int(s), 0), n - size) for s, n, size in zip(at, x.shape, sizes, strict=True)]
    return tuple(slice(s, s + size) for s, size in zip(first, sizes, strict=True))


def gamma(keys: Array, alpha: Array, **_: Any) -> Array:
    """A number for each key, or each position and the one key, and element; which one does not matter."""
    seeds = np.asarray(jax.random.key_data(keys)).sum(-1) % 97
    return (1 + seeds + np.arange(alpha.size).reshape(alpha.shape) * (keys.ndim == 0)) * alpha


def updated(x: Array, update: Array, *at: Array, **_: Any) -> Array:
    """A part of an array written over."""
    made = np.array(x)
    made[starts(x, at, update.shape)] = update
    return made


SHAPES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": broadcast,
    "reshape": reshape,
    "squeeze": lambda x, *, dimensions: x.squeeze(tuple(dimensions)),
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, tuple(dimensions)),
    "transpose": lambda x, *, permutation: x.transpose(permutation),
    "iota": lambda *, dtype, shape, dimension, **_: np.broadcast_to(
        np.arange(shape[dimension]).reshape([-1 if i == dimension else 1 for i in range(len(shape))]), shape
    ),
    "rev": lambda x, *, dimensions: np.flip(x, tuple(dimensions)),
    "slice": sliced,
    "pad": padded,
    "split": split,
    "concatenate": lambda *arrays, dimension: np.concatenate(arrays, dimension),
    "stack": lambda *arrays, axis: np.stack(arrays, axis),
    "unstack": lambda x, *, axis: list(np.moveaxis(x, axis, 0)),
    "tile": lambda x, *, reps: np.tile(x, reps),
    "integer_pow": lambda x, *, y: x**y if y >= 0 else 1 / x**-y,
    "convert_element_type": lambda x, **_: x,
    "reduce_precision": lambda x, **_: x,
    "reduce_sum": reduced(np.sum),
    "reduce_max": reduced(np.max),
    "reduce_min": reduced(np.min),
    "reduce_prod": reduced(np.prod),
    "reduce_or": reduced(np.bitwise_or.reduce),
    "reduce_and": reduced(np.bitwise_and.reduce),
    "reduce_xor": reduced(np.bitwise_xor.reduce),
    "argmax": lambda x, *, axes, **_: np.argmax(x, axes[0]),
    "argmin": lambda x, *, axes, **_: np.argmin(x, axes[0]),
    "cumsum": accumulated(np.cumsum),
    "cumprod": accumulated(np.cumprod),
    "cummax": accumulated(np.maximum.accumulate),
    "cummin": accumulated(np.minimum.accumulate),
    "cumlogsumexp": accumulated(np.logaddexp.accumulate),
    "sort": placed_sorted,
    "top_k": top_k,
    "dot_general": dot_general,
    "random_gamma": gamma,
    "gather": gather,
    "scatter": scatter(None),
    "scatter_add": scatter(np.add),
    "scatter_sub": scatter(np.subtract),
    "scatter_mul": scatter(np.multiply),
    "scatter_min": scatter(np.minimum),
    "scatter_max": scatter(np.maximum),
    "dynamic_slice": lambda x, *at, slice_sizes: x[starts(x, at, slice_sizes)],
    "dynamic_update_slice": updated,
}


def collective(name: str, values: list[Array], params: Any) -> list[Array]:
    """A collective, of what all devices hold of one operand."""
    count = len(values)
    if name == "psum":
        return [sum(values)] * count  # type: ignore[list-item]
    if name in ("pmax", "pmin"):
        return [(np.max if name == "pmax" else np.min)(values, 0)] * count
    if name == "all_gather":
        join = np.concatenate if params["tiled"] else np.stack
        return [join(values, params["all_gather_dimension"])] * count
    if name == "reduce_scatter":
        axis = params["scatter_dimension"]
        parts = np.split(sum(values), count, axis)  # type: ignore[arg-type]
        return parts if params["tiled"] else [part.squeeze(axis) for part in parts]
    if name == "all_to_all":
        split_axis, axis = params["split_axis"], params["concat_axis"]
        rows = [np.split(value, count, split_axis) for value in values]
        if params["tiled"]:
            return [np.concatenate([row[device] for row in rows], axis) for device in range(count)]
        return [np.stack([row[device].squeeze(split_axis) for row in rows], axis) for device in range(count)]
    assert name == "ppermute", name
    sent = {to: values[source] for source, to in params["perm"]}
    return [sent.get(device, np.zeros_like(values[0])) for device in range(count)]


COLLECTIVES = ("psum", "pmax", "pmin", "all_gather", "reduce_scatter", "all_to_all", "ppermute")


def evaluated(jaxpr: Any, inputs: Sequence[Sequence[Array]], count: int) -> list[list[Array]]:
    """What a program makes on each device; one list for each result, as `inputs` has one for each operand."""
    body, constants = opened(jaxpr)
    known: dict[Any, list[Array]] = {}
    known.update(zip(body.constvars, ([array(c)] * count for c in constants), strict=True))
    known.update(zip(body.invars, (list(row) for row in inputs), strict=True))

    def read(variable: Any) -> list[Array]:
        return [np.asarray(variable.val)] * count if isinstance(variable, Literal) else known[variable]

    for equation in body.eqns:
        name, given = primitive_name(equation), [read(v) for v in equation.invars]
        inner = inner_jaxpr(equation.params)
        if name == "jit":
            made = evaluated(inner, given, count)
        elif name == "axis_index":
            made = [[np.asarray(device, np.int32) for device in range(count)]]
        elif name in COLLECTIVES:
            made = [collective(name, row, equation.params) for row in given]
        elif name in IDENTICAL:
            made = given
        else:
            rows = [once(name, equation, [row[device] for row in given]) for device in range(count)]
            made = [list(row) for row in zip(*rows, strict=True)]
        known.update(zip(equation.outvars, made, strict=True))
    return [read(v) for v in body.outvars]


def array(value: Any) -> Array:
    """A constant as NumPy has it; keys stay keys."""
    keys = isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return value if keys else np.asarray(value)


def once(name: str, equation: Any, given: list[Array]) -> list[Array]:
    """The results of one primitive on one device."""
    params = dict(equation.params)
    avals = [v.aval for v in equation.outvars]
    if ELEMENTS.get(name) is not None:
        with np.errstate(all="ignore"):
            made = ELEMENTS[name](*given)
    elif name in SHAPES:
        if name == "gather":
            params["aval"] = avals[0]
        with np.errstate(all="ignore"):
            made = SHAPES[name](*given, **params)
    else:
        made = equation.primitive.bind(*given, **params)
    rows = list(made) if isinstance(made, (list, tuple)) else [made]
    if name in ELEMENTS or name in SHAPES:
        with np.errstate(all="ignore"):
            rows = [np.asarray(row).astype(aval.dtype) for row, aval in zip(rows, avals, strict=True)]
    for row, aval in zip(rows, avals, strict=True):
        assert row.shape == aval.shape, (name, row.shape, aval.shape)
    return [array(row) for row in rows]


def apply(name: str, params: dict[str, Any], given: list[Array], shape: Any) -> Array:
    """One primitive by its name, for a result of some shape; of several results that which `params` names."""
    index = params.pop("result", 0)
    if ELEMENTS.get(name) is not None:
        made = ELEMENTS[name](*given)
    else:
        if name == "gather":
            params["aval"] = jax.ShapeDtypeStruct(shape, given[0].dtype)
            params["fill_value"] = np.nan if params["fill_value"] == "nan" else params["fill_value"]
        if name in ("scatter_add", "scatter"):
            params["update_jaxpr"] = None
        made = SHAPES[name](*given, **params)
    return made[index] if isinstance(made, (list, tuple)) else made
