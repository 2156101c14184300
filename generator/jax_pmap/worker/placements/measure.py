"""Measure a primitive that has no rule: alone, on small random operands, whole and divided over devices.

What is found is no derivation. It held on the numbers that were tried, and the evidence names the primitive.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from ..jaxpr.versions import bind, named_axes, without_meaning
from ..jaxpr.walk import FOREIGN
from .arithmetic import SINGLE, eps_of, kind_of
from .equation import Equation, Stuck
from .freezing import freeze
from .lattice import Partial, Placement, Power, Replicated, Sharded
from .rules.elementwise import describe, power_of
from .terms import Shape

#: Devices, and rows of the smallest share. Blocks of rows that a primitive works on divide neither.
SPLITS = ((2, 5), (3, 7))
#: Factors of the random numbers: what is linear only nearby shows far out.
SCALES = (1.0, 1e-3, 1e4)
#: Whole numbers of operands are below these: they may be indices, or sizes.
BELOW = (3, 7, 1000)
#: Elements of all operands and results up to which they are as large as they are in the program.
MOST = 1 << 20
#: Powers of the device count that results may be off by.
POWERS: "tuple[Power, ...]" = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
#: Measurements of this process, by all that they depend on.
_KNOWN: dict[Any, "tuple[Placement, ...] | str"] = {}


class _Fails(Exception):
    """The primitive does not run on these operands; says why."""


def measured(eq: Equation, places: Sequence[Placement], equation: Any) -> tuple[Placement, ...]:
    """Placements of the results of a primitive without a rule, along one mesh axis.

    It runs alone, on random operands that are placed as those in the program, on two counts of devices, and
    as the whole. A placement is claimed where it is the only one that held each time.

    Raises:
        Stuck: it cannot be measured, or no relation held.
    """
    unruled = f"`{eq.name}` has no rule"
    if eq.name in FOREIGN:
        raise Stuck(f"{unruled}, and calls what jax does not see")
    if named_axes(eq.params):
        raise Stuck(unruled)
    for index, place in enumerate(places):
        if not isinstance(place, (Replicated, Partial)) and not (
            isinstance(place, Sharded) and place.outer == 1 and eq.varying_input(index) == (place.axis,)
        ):
            raise Stuck(f"{unruled}, and {describe(place)}")
    if all(isinstance(place, Replicated) for place in places) and not any(map(power_of, places)):
        raise Stuck(f"{unruled}, and the sizes of its result depend on the number of devices")
    left_out = without_meaning(equation)
    params = {name: freeze(value) for name, value in eq.params.items() if name not in left_out}
    for name, value in params.items():
        if any(freeze(each[name]) != value for each in eq.every[1:]):
            raise Stuck(f"{unruled}, and is not measured: `{name}` depends on the size of the share")
    avals = [v.aval for v in equation.invars]
    dtypes = tuple(str(getattr(aval, "dtype", "?")) for aval in avals)
    fixed = tuple(_fixed(eq, index) for index in range(len(avals)))
    key = (
        equation.primitive,
        tuple(sorted(params.items())),
        (*map(tuple, eq.inputs[0]), *map(tuple, eq.outputs[0])),
        dtypes,
        tuple(places),
        fixed,
    )
    if key not in _KNOWN:
        try:
            _KNOWN[key] = _Trial(eq, places, equation, dtypes, fixed).run()
        except Stuck as stuck:
            _KNOWN[key] = str(stuck)
    found = _KNOWN[key]
    if isinstance(found, str):
        raise Stuck(f"{unruled}, and {found}")
    return found


def supposed(eq: Equation, places: Sequence[Placement]) -> tuple[Placement, ...]:
    """Placements of what a function outside jax gives if it works row by row, as what it gives has shares.

    Raises:
        Stuck: it gives what has none.
    """
    made: list[Placement] = []
    for result in range(len(eq.outputs[0])):
        axis = eq.split(result)
        rows = [place for place in places if place != Replicated()]
        if axis is None or any(not isinstance(row, Sharded) or row != Sharded(row.axis) for row in rows):
            raise Stuck(f"`{eq.name}` has no rule, and calls what jax does not see")
        made.append(Sharded(axis))
    return tuple(made)


def _fixed(eq: Equation, operand: int) -> Any:
    """The number that an operand holds throughout in the program, or None."""
    value = eq.value(operand)
    return None if value is None or value != value else value


class _Trial:
    """One primitive, run on devices' parts of random operands and on these."""

    def __init__(
        self,
        eq: Equation,
        places: Sequence[Placement],
        equation: Any,
        dtypes: Sequence[str],
        fixed: Sequence[Any],
    ) -> None:
        self.eq, self.places, self.equation = eq, places, equation
        self.dtypes, self.fixed = dtypes, fixed
        for index, dtype in enumerate(dtypes):
            place, kind = places[index], kind_of(dtype)
            if kind == "?":
                raise Stuck(f"operands of the dtype {dtype} are not made up")
            if kind not in "fc" and (isinstance(place, Partial) or power_of(place)):
                raise Stuck(describe(place))
        rows = [eq.shape(i)[p.axis] for i, p in enumerate(places) if isinstance(p, Sharded)]
        self.least = min(rows, default=1)
        if any(size % self.least for size in rows):
            raise Stuck("the shares of its operands are no multiples of each other")
        self.shrunk: Mapping[int, int] = {}
        if sum(map(math.prod, (*self.sized(SPLITS[-1][1], 1), *eq.outputs[0]))) > MOST:
            sizes = {size for shape in eq.inputs[0] for size in shape}
            large = sorted(size for size in sizes if size > 8)
            self.shrunk = {size: 8 * (i + 1) for i, size in enumerate(large) if 8 * (i + 1) < size}

    def sized(self, rows: int, count: int) -> list[Shape]:
        """Shapes of operands, with `rows` in the smallest share, and `count` shares."""
        found = []
        for shape, place in zip(self.eq.inputs[0], self.places, strict=True):
            sizes = [self.shrunk.get(size, size) for size in shape]
            if isinstance(place, Sharded):
                sizes[place.axis] = shape[place.axis] // self.least * rows * count
            found.append(tuple(sizes))
        return found

    def run(self) -> tuple[Placement, ...]:
        """The placements that held."""
        errors = []
        for wide in (True, False):
            try:
                with _x64(wide or jax.config.jax_enable_x64):
                    return self.tried(wide)
            except _Fails as error:
                errors.append(str(error))
        raise Stuck(f"does not run alone on small operands: {errors[-1]}")

    def tried(self, wide: bool) -> tuple[Placement, ...]:
        """The same, in float64 or in the dtypes of the program."""
        left: list[set[Placement]] = []
        told: list[bool] = []
        names = [WIDE.get(dtype, dtype) if wide else dtype for dtype in self.dtypes]
        for count, rows in SPLITS:
            local, whole = self.sized(rows, 1), self.sized(rows, count)
            outs = [_shapes(self.bind, shapes, names) for shapes in (local, whole)]
            if not left:
                pairs = zip(*outs, strict=True)
                left = [self.candidates(i, one, all_, count) for i, (one, all_) in enumerate(pairs)]
                told = [False] * len(left)
            program = jax.jit(self.bind)
            for draw, (scale, below) in enumerate(zip(SCALES, BELOW, strict=True)):
                random = np.random.default_rng([draw, count])
                given = [
                    self.operand(i, shape, name, scale, below, random)
                    for i, (shape, name) in enumerate(zip(whole, names, strict=True))
                ]
                parts = [
                    divided(place, value, count, random)
                    for place, value in zip(self.places, given, strict=True)
                ]
                wanted = _ran(program, given)
                made = [_ran(program, [part[device] for part in parts]) for device in range(count)]
                for result, want in enumerate(wanted):
                    values = [row[result] for row in made]
                    left[result] = {p for p in left[result] if holds(p, values, want, count)}
                    told[result] |= tells(values, want)
        if not all(len(each) == 1 for each in left):
            raise Stuck("what devices make of their parts stood in no relation to what is made of the whole")
        if not all(told):
            raise Stuck("what it made of random operands was the same throughout, which tells nothing")
        return tuple(each.pop() for each in left)

    def bind(self, *operands: Any) -> list[Any]:
        """The primitive's results."""
        return bind(self.equation, operands)

    def candidates(self, result: int, local: Any, whole: Any, count: int) -> set[Placement]:
        """Placements that the sizes of a result leave."""
        varying = self.eq.varying(result)
        axes = tuple(i for i, (m, n) in enumerate(zip(local.shape, whole.shape, strict=False)) if m != n)
        alike = len(local.shape) == len(whole.shape) == len(self.eq.out(result)) and axes == varying
        if not alike or any(local.shape[axis] * count != whole.shape[axis] for axis in axes) or len(axes) > 1:
            raise Stuck("its sizes say that it does not work on examples one by one, or sum over them")
        powers = POWERS if kind_of(str(whole.dtype)) in "fc" else (0,)
        if axes:
            return {Sharded(axes[0], power) for power in powers}
        apart = any(not isinstance(place, Replicated) for place in self.places)
        return {Partial(power) if apart else Replicated(power) for power in powers}

    def operand(
        self, index: int, shape: Shape, dtype: str, scale: float, below: int, random: np.random.Generator
    ) -> np.ndarray:
        """A whole operand: what it holds in the program, where that is one number, else random numbers."""
        if self.fixed[index] is not None:
            return np.full(shape, self.fixed[index], dtype)
        kind = kind_of(dtype)
        if kind == "b":
            return random.random(shape) < 0.5
        if kind in "iu":
            return np.asarray(random.integers(0, below, shape)).astype(dtype)
        made = random.normal(size=shape) + (1j * random.normal(size=shape) if kind == "c" else 0)
        return np.asarray(scale * made).astype(dtype)


#: Floats in which rounding does not show.
WIDE = {
    "float32": "float64",
    "float16": "float64",
    "bfloat16": "float64",
    "complex64": "complex128",
}


@contextlib.contextmanager
def _x64(enabled: bool) -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", enabled)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _shapes(function: Any, shapes: Sequence[Shape], dtypes: Sequence[str]) -> list[Any]:
    """Shapes and dtypes of what a function makes."""
    given = [jax.ShapeDtypeStruct(*pair) for pair in zip(shapes, dtypes, strict=True)]
    try:
        return list(jax.eval_shape(function, *given))
    except Exception as error:
        raise _Fails(_first_line(error)) from error


def _ran(function: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a function makes of arrays."""
    try:
        return [np.asarray(made) for made in function(*operands)]
    except Exception as error:
        raise _Fails(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def divided(place: Placement, value: np.ndarray, count: int, random: Any) -> list[np.ndarray]:
    """Values of the devices in a placement; random parts, where only their sum counts."""
    power = power_of(place)
    given = (value / float(count) ** float(power)).astype(value.dtype) if power else value
    if isinstance(place, Sharded):
        return np.split(given, count, place.axis)
    if isinstance(place, Partial):
        parts = [
            ((np.abs(given).max(initial=0) or 1.0) * random.normal(size=given.shape)).astype(given.dtype)
            for _ in range(count - 1)
        ]
        return [*parts, (given - sum(parts)).astype(given.dtype)]
    return [given] * count


def holds(place: Placement, values: Sequence[np.ndarray], whole: np.ndarray, count: int) -> bool:
    """Whether values of the devices stand in the relation to a whole value that a placement claims."""
    factor = float(count) ** float(power_of(place))
    if isinstance(place, Sharded):
        wanted = np.split(whole, count, place.axis)
        return all(close(each, want, factor) for each, want in zip(values, wanted, strict=True))
    if isinstance(place, Partial):
        with np.errstate(all="ignore"):
            total = functools.reduce(np.add, values)
        size = max(float(np.max(np.abs(each), initial=0)) for each in values)
        return close(total, whole, factor, size)
    return all(close(each, whole, factor) for each in values)


def close(one: np.ndarray, other: np.ndarray, factor: float, size: float = 0.0) -> bool:
    """Whether ``factor * one == other``, but for rounding of numbers as large as theirs and as `size`."""
    if one.shape != other.shape:
        return False
    if kind_of(str(other.dtype)) not in "fc":
        return bool(np.array_equal(one, other))
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return False
    eps = eps_of(str(other.dtype))
    if eps > SINGLE and size:
        return False  # Sums in narrow floats are hardly sums.
    kept = np.isfinite(other)
    with np.errstate(all="ignore"):
        apart = np.abs(factor * one[kept] - other[kept])
    largest = max(float(np.max(np.abs(other[kept]), initial=0)), size)
    return bool(np.all(apart <= max(min(1e4 * eps, 1e-5), 4 * eps) * largest))


def tells(values: Sequence[np.ndarray], whole: np.ndarray) -> bool:
    """Whether a result is finite, and not the same on all devices and throughout."""
    if kind_of(str(whole.dtype)) in "fc" and not (whole.size and np.all(np.isfinite(whole))):
        return False
    if whole.ndim == 0 or whole.size == 1:
        return bool(np.any(whole != 0))
    return any(not np.array_equal(one, other) for one, other in itertools.pairwise(values)) or bool(
        np.any(whole != whole.flat[0])
    )
