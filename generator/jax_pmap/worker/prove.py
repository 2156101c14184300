"""How far the results of parallel code may be from those of the reference, and what else may differ."""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .arguments import LeafAxes, Values, batch_size, cut, same_constant
from .distance import distance, is_finite, same_bits
from .jaxpr.walk import equations
from .leaves import category, fed_back, is_key, shape_of, to_host
from .protocol import Failure
from .units import Rounding, unit

#: Why an output is not the same on every device.
UNLIKE = "its copies differ between devices"
#: Outputs with their paths.
Leaves = Sequence[tuple[str, Any]]
#: Finds an output that is not the same on so many devices, and should be.
Replicas = Callable[[Leaves, int], Failure | None]


class Differs(Exception):
    """An output that is not the reference's, or stands for no value of it.

    `copies` are what there is of some output leaves, by index: one array, or that of each device.
    """

    def __init__(self, failure: Failure, copies: Mapping[int, Sequence[np.ndarray]] | None = None) -> None:
        super().__init__(failure.what)
        self.failure, self.copies = failure, copies or {}


@contextlib.contextmanager
def shown(devices: Sequence[Any], count: int) -> Iterator[None]:
    """Let code that asks jax for its devices see these, of which it is told that there are `count`."""
    names = ("devices", "local_devices", "device_count", "local_device_count")
    saved = {name: getattr(jax, name) for name in names}
    jax.devices = jax.local_devices = lambda *args, **kwargs: list(devices)
    jax.device_count = jax.local_device_count = lambda *args, **kwargs: count
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(jax, name, value)


def only_devices(count: int) -> contextlib.AbstractContextManager[None]:
    """Let code that asks jax for its devices see the first `count` of them, or as many as there are."""
    return shown(jax.devices()[:count], count)


@contextlib.contextmanager
def repeated_devices(count: int) -> Iterator[None]:
    """Let code that is traced see `count` devices, some of them several times where there are fewer.

    A trace says of a mesh how large it is. What is executed on such a one raises.
    """
    every, before = jax.devices(), {"make_mesh": jax.make_mesh, "pmap": jax.pmap}
    devices = (every * -(-count // len(every)))[:count]

    def of_these(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **{**kwargs, "devices": kwargs.get("devices") or devices})

        return called

    with shown(devices, count):
        for name, function in before.items():
            setattr(jax, name, of_these(function))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(jax, name, function)


@contextlib.contextmanager
def x64(enabled: bool) -> Iterator[None]:
    """Jax's 64-bit mode, set and put back."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", enabled)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def host(leaf: Any) -> np.ndarray:
    """A leaf's value as NumPy (of a key, its bits), with what other processes have of it."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def is_unlike(leaf: jax.Array) -> bool:
    """Whether two devices hold different bits of the same part of an array."""
    bits = jax.random.key_data(leaf) if is_key(leaf) else leaf
    parts = ((str(shard.index), np.asarray(shard.data)) for shard in bits.addressable_shards)
    first: dict[str, np.ndarray] = {}
    return any(not same_bits(part, first.setdefault(index, part)) for index, part in parts)


def replicas_differ(leaf: Any, count: int) -> str | None:
    """Why `leaf` is not the same bits on `count` devices, or None."""
    if not isinstance(leaf, jax.Array):
        return "it is not a jax array"
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    shards = leaf.addressable_shards
    if len(shards) != count:
        return f"it lies on {len(shards)} devices, not {count}"
    copies = [np.asarray(shard.data) for shard in shards]
    if any(copy.shape != leaf.shape or not same_bits(copy, copies[0]) for copy in copies):
        return UNLIKE
    return None


def spec_of(axes: Sequence[Sequence[str]]) -> PartitionSpec:
    """How an array lies, by the axes that divide each of its dimensions."""
    return PartitionSpec(*(tuple(names) if names else None for names in axes))


def lies_elsewhere(leaf: Any, along: Sequence[Sequence[str]], axes: Mapping[str, int]) -> str | None:
    """Why `leaf` does not lie as `spec_of` says on a mesh with these axes, or its copies differ; or None."""
    spec = spec_of(along)
    if not isinstance(leaf, jax.Array):
        return "it is not a jax array"
    count = math.prod(axes.values())
    given = getattr(leaf.sharding, "mesh", None)
    # The devices of a mesh may be in another order than those of jax.
    devices = (
        given.devices if given is not None and dict(given.shape) == dict(axes) else jax.devices()[:count]
    )
    mesh = Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))
    wanted = NamedSharding(mesh, spec).devices_indices_map(leaf.shape)
    found = leaf.sharding.devices_indices_map(leaf.shape)
    if found != wanted:
        return f"it is {getattr(leaf.sharding, 'spec', leaf.sharding)}, and planned as {spec}"
    return UNLIKE if is_unlike(leaf) else None


def ratio(got: np.ndarray, want: np.ndarray) -> float | None:
    """The finite constant `got` is of `want`, when it is one; none of what may be the words of keys."""
    if (
        got.dtype == np.uint32
        or got.shape != want.shape
        or got.dtype.kind not in "iuf"
        or want.dtype.kind not in "iuf"
    ):
        return None
    got, want = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    used = np.abs(want) > 1e-3 * max(float(np.max(np.abs(want), initial=0.0)), 1e-300)
    if not used.any():
        return None
    quotients = got[used] / want[used]
    middle = float(np.median(quotients))
    return middle if np.isfinite(middle) and np.allclose(quotients, middle, rtol=1e-3) else None


#: Elements that are shown of arrays that differ.
SHOWN = 4


def wrong_value(
    got: np.ndarray, want: np.ndarray, bound: float, path: str, leaf: int | None = None
) -> Failure:
    """A value that is farther off than `bound`, with its elements that are, and their places.

    All elements where they are few.
    """
    with np.errstate(all="ignore"):
        wide = [np.asarray(each, np.complex128).ravel() for each in (got, want)]
        apart = np.abs(wide[0] - wide[1])
    # What is no number in one of them alone is farther from it than any number is.
    apart = np.where(np.isnan(apart), np.where(np.isnan(wide[0]) & np.isnan(wide[1]), 0.0, np.inf), apart)
    places = np.sort(np.argsort(-apart, kind="stable")[:SHOWN])

    def shown(array: np.ndarray) -> str:
        def at(place: int) -> str:
            index = [int(i) for i in np.unravel_index(place, array.shape)]
            return f"{index} {array.ravel()[place].item()!r}"

        if apart.size <= SHOWN:
            return repr(array.ravel().tolist())
        return ", ".join(at(place) for place in places if apart[place] > bound)

    error, scale = distance(got, want)
    return Failure(
        "value",
        path=path,
        leaf=leaf,
        got=shown(got),
        want=shown(want),
        off=error / (scale or 1.0),
        tolerance=bound / (scale or 1.0),
        differing=(int((apart > bound).sum()), apart.size),
        ratio=ratio(got, want),
    )


def leaf_table(value: Any) -> list[tuple[str, Any]]:
    """(path, leaf) of every leaf."""
    paths, _ = jax.tree_util.tree_flatten_with_path(value)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in paths]


def same_form(got: Any, want: Any, *, widths: bool = True) -> Failure | None:
    """The first difference in structure, shape or dtype, or None.

    Without `widths` an int32 is as good as an int64, as it is in a 64-bit mode that is not the user's, and a
    float64 as a float32: there a number of right answers divided by that of all is one, their mean the other.
    """

    def alike(left: Any, right: Any) -> bool:
        if widths or left == right:
            return bool(left == right)
        if jax.dtypes.issubdtype(left, np.integer):
            return bool(np.dtype(left).kind == np.dtype(right).kind)
        return bool(left == np.float64 and right == np.float32)

    left, right = jax.tree.structure(got), jax.tree.structure(want)
    if left != right:
        return Failure("structure", got=str(left)[:400], want=str(right)[:400])
    for (path, a), (_, b) in zip(leaf_table(got), leaf_table(want), strict=False):
        if "opaque" in (category(a), category(b)):
            if not same_constant(a, b):
                return Failure("constant", path=path, got=repr(a)[:80], want=repr(b)[:80])
            continue
        if np.shape(a) != np.shape(b):
            return Failure("shape", path=path, got=str(np.shape(a)), want=str(np.shape(b)))
        dtypes = [jax.numpy.result_type(each) for each in (a, b)]
        if not alike(*dtypes):
            return Failure("dtype", path=path, got=str(dtypes[0]), want=str(dtypes[1]))
    return None


def feed(values: Values, result: Any, chain: Sequence[tuple[str, Sequence[Any]]]) -> Values:
    """`values` with the outputs named by `chain` put in: ``[("params", [0]), …]``.

    With other static arguments a function may return something else there, which feeds no call.
    """
    out = dict(values)
    for name, path in chain:
        try:
            part = functools.reduce(lambda whole, step: whole[step], path, result)
        except (TypeError, LookupError):
            continue
        if jax.tree.structure(part) == jax.tree.structure(out[name]) and (
            list(map(shape_of, jax.tree.leaves(part))) == list(map(shape_of, jax.tree.leaves(out[name])))
        ):
            out[name] = jax.tree.map(like_given, part, out[name])
    return out


def like_given(new: Any, given: Any) -> Any:
    """A number as an array where one was given, which is weakly typed too: code may tell these apart."""
    is_number = not hasattr(new, "dtype") and isinstance(given, jax.Array)
    return jax.numpy.asarray(new) if is_number else new


Reference = Callable[[Values], Any]


def finite(result: Any, most: float = np.inf) -> bool:
    """Whether every float in a result is a number, of at most some magnitude."""
    leaves = [host(leaf) for leaf in jax.tree.leaves(result) if category(leaf) != "opaque"]
    return all(is_finite(leaf, most) for leaf in leaves if leaf.dtype.kind in "fc")


#: The largest number in 32 bits.
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Trial:
    """One set of inputs run through the reference for some steps, kept for every device count."""

    def __init__(
        self, reference: Reference, values: Values, chain: Sequence[tuple[str, Sequence[Any]]], steps: int
    ) -> None:
        self.results: list[Any] = []
        self.values: list[Values] = []
        #: This one, also of a copy whose values are handed over in another way.
        self.plain = self
        for step in range(steps):
            result = reference(values)
            # What overflows by being fed back does so here or there by rounding alone, and what grows until
            # the user's own floats overflow has lost its digits by then.
            limits = (np.inf, FLOAT32_MAX) if step else ()
            if any(not finite(result, most) and finite(self.results[0], most) for most in limits):
                break
            self.values.append(values)
            self.results.append(to_host(result))
            values = feed(values, fed_back(result), chain)

    @functools.cached_property
    def finite(self) -> bool:
        """Whether it ran, and every float of every step is a number."""
        return bool(self.results) and all(finite(result) for result in self.results)


#: How many times the reference's own rounding the emitted code may be off. Another order of
#: summation errs about as much as the first; the factor covers the worst of many elements.
SLACK = 64.0


#: Amplification of rounding that is assumed where it cannot be measured.
ASSUMED = 16.0


def bounds(trial: Trial, coarse: Trial, rough: Rounding, own: Rounding) -> list[list[float]]:
    """Absolute error allowed per step and leaf, from the reference's own rounding.

    `coarse` is the reference on the same data in precision `rough`. Its distance from
    `trial` shows how much the function amplifies rounding; one unit in the last place of the
    largest element is the least that is assumed. That is scaled to `own`, the precision
    `trial` was run in. Where `coarse` overflows, `ASSUMED` stands in for the measurement.
    """

    def error(step: int, index: int, want: np.ndarray) -> float:
        return apart(coarse, step, index, want) if step < len(coarse.results) else math.inf

    return _bounds(trial, error, rough, own)


def _bounds(
    trial: Trial, error: Callable[[int, int, np.ndarray], float], rough: Rounding, own: Rounding
) -> list[list[float]]:
    """`bounds` from the `error` that a leaf of a step comes to have by roundings of `rough`."""

    def bound(step: int, index: int, leaf: Any) -> float:
        if category(leaf) == "opaque" or (want := host(leaf)).dtype.kind not in "fcV":
            return 0.0
        (_, scale), off = distance(want, want), error(step, index, want)
        # A coarser run may overflow where the finer one does not: nothing was measured then.
        unit = max(off / rough.at(step, index), scale) if np.isfinite(off) else ASSUMED * scale
        return SLACK * unit * own.at(step, index)

    return [
        [bound(step, index, leaf) for index, leaf in enumerate(jax.tree.leaves(fine))]
        for step, fine in enumerate(trial.results)
    ]


def uniform_bounds(allowed: Sequence[Sequence[float]], trial: Trial) -> list[list[float]]:
    """Absolute error allowed per step and leaf, relative to its size the same for all: the largest `allowed`.

    Leaves that are rounding alone, of which as much is allowed as they are large, do not count.
    """
    sizes = [[scale for _, scale in row] for row in moved_by(trial, ())]
    rows = [list(zip(*row, strict=True)) for row in zip(allowed, sizes, strict=True)]
    share = max((bound / scale for row in rows for bound, scale in row if bound < scale), default=0.0)
    return [[max(bound, share * scale) for bound, scale in row] for row in rows]


def apart(other: Trial, step: int, leaf: int, want: np.ndarray) -> float:
    """How far an output leaf of another run is from `want`; 0 where it has another shape."""
    got = host(jax.tree.leaves(other.results[step])[leaf])
    return distance(got, want)[0] if got.shape == want.shape else 0.0


def jittered_bounds(
    trial: Trial, jittered: Sequence[Trial], amount: float, own: Rounding
) -> list[list[float]]:
    """`bounds` where the reference cannot be compared in another precision, as its draws differ there.

    `jittered` are runs in the same precision with the same draws, every number of the inputs changed by up
    to `amount` of itself. How far they lead, for each rounding that they begin with, is the amplification;
    the middle one of them counts, since one may cross a threshold.
    """

    def middle(step: int, index: int, want: np.ndarray) -> float:
        moved = [apart(other, step, index, want) for other in jittered if step < len(other.results)]
        return float(np.median(moved)) if moved else math.inf

    return _bounds(trial, middle, Rounding(amount), own)


#: Rounding above this leaves so little of a number that `SLACK` would let real faults through.
NARROW = 1e-6
#: How many times the change by jitter, and how many units in the last place, are allowed there.
JITTERED, ULPS = 8.0, 4.0


def tightened(allowed: Sequence[Sequence[float]], trial: Trial, moved: Sequence[Trial]) -> list[list[float]]:
    """`allowed`, held to what rounding can do in narrow floats.

    `moved` are runs on the same inputs with every rounding inside made another way. How far they lead is how
    far another order of the same operations can lead; the result itself is rounded in its own precision.
    """
    units = [unit(getattr(leaf, "dtype", None)) for leaf in jax.tree.leaves(trial.results[:1])]
    return [
        [
            min(bound, JITTERED * far + ULPS * units[index] * scale)
            for index, (bound, (far, scale)) in enumerate(zip(row, moves, strict=True))
        ]
        for row, moves in zip(allowed, moved_by(trial, moved), strict=True)
    ]


def moved_by(trial: Trial, jittered: Sequence[Trial]) -> list[list[tuple[float, float]]]:
    """How far a jitter moves each output of each step at most, and the size of that output."""
    out = []
    for step, results in enumerate(trial.results):
        row = []
        for index, leaf in enumerate(jax.tree.leaves(results)):
            if category(leaf) == "opaque":
                row.append((0.0, 0.0))
                continue
            want = host(leaf)
            others = [other.results[step] for other in jittered if step < len(other.results)]
            moved = [distance(host(jax.tree.leaves(other)[index]), want)[0] for other in others]
            row.append((max(moved, default=0.0), distance(want, want)[1]))
        out.append(row)
    return out


def draws_numbers(jaxpr: Any) -> bool:
    """Whether `jaxpr` draws random numbers, which come out differently in another precision."""
    return any(re.search("random|threefry|rng_", equation.primitive.name) for equation in equations(jaxpr))


def cut_to(values: Values, axes: LeafAxes, count: int) -> tuple[Values, int]:
    """`values` cut to the largest batch that `count` devices share evenly, and its size."""
    size = batch_size(values, axes) // count * count
    return cut(values, axes, size), size
