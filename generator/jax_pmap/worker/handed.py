"""The ways in which a caller hands over its arrays: of NumPy, of jax on one device, divided over all."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .arguments import LeafAxes, Values, map_batch
from .leaves import category, is_key
from .protocol import AS_JAX, DIVIDED
from .prove import Trial
from .strengthen import with_leaf


def on_all(values: Values, axes: LeafAxes, statics: Sequence[str], mesh: Mesh) -> Values:
    """Shares of the batch on the devices of a mesh of one axis, and whole on each what is no batch."""

    def spread(leaf: Any, *spec: str | None) -> Any:
        if category(leaf) != "array":
            return leaf
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*spec)))

    def split(leaf: Any, axis: int) -> Any:
        return spread(leaf, *[None] * axis, mesh.axis_names[0])

    whole = {
        name: value if name in statics else jax.tree.map(spread, value) for name, value in values.items()
    }
    given = map_batch(values, axes, split)
    # A leaf of a mixed argument that is no batch goes to all devices as well.
    return {name: given[name] if name in axes else whole[name] for name in values}


def on_one(values: Values, statics: Sequence[str], put: Callable[[Any], Any]) -> Values:
    """Every array as `put` makes it, for the first device."""

    def one(leaf: Any) -> Any:
        return put(leaf) if category(leaf) == "array" else leaf

    return {name: value if name in statics else jax.tree.map(one, value) for name, value in values.items()}


def on_first(values: Values, statics: Sequence[str]) -> Values:
    """Every array put on the first device, where it stays."""
    return on_one(values, statics, lambda leaf: jax.device_put(leaf, jax.devices()[0]))


def ways(values: Values, axes: LeafAxes, statics: Sequence[str]) -> Iterator[tuple[str, Values]]:
    """The same values as jax arrays, on one device and divided; doubles that jax shortens stay NumPy's."""

    def array(leaf: Any) -> Any:
        alike = is_key(leaf) or jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype
        return jax.numpy.array(leaf) if alike else leaf

    def made() -> Values:
        # Anew for each: a buffer that a call takes with it may be another array's, too.
        return on_one(values, statics, array)

    mesh = Mesh(np.array(jax.devices()), ("devices",))
    yield AS_JAX, made()
    yield DIVIDED, on_all(made(), axes, statics, mesh)


def reordered(value: Any) -> Any:
    """The same with the keys of each dict in the reverse of their order, which `jax.jit` does not see."""

    def reverse(node: Any) -> Any:
        return {key: reordered(node[key]) for key in reversed(node)} if _is_dict(node) else node

    nodes = jax.tree.leaves(value, is_leaf=_is_dict)
    return jax.tree.map(reverse, value, is_leaf=_is_dict) if any(map(_is_dict, nodes)) else value


def _is_dict(node: Any) -> bool:
    return type(node) is dict


def refilled(calling: Callable[[Values], Any], values: Values, statics: Sequence[str]) -> Any:
    """What a call gives with arrays and containers that had other numbers in the call before.

    A loader that fills its buffers anew calls so. What is kept of an earlier call by the place or the
    identity of an argument is then that of other numbers.
    """
    given = on_one(values, statics, _buffer)
    arrays = [leaf for leaf in jax.tree.leaves(given) if isinstance(leaf, np.ndarray)]
    numbers = [leaf.copy() for leaf in arrays]
    for array in arrays:
        array[...] = np.flip(array)
    jax.block_until_ready(calling(given))
    for array, own in zip(arrays, numbers, strict=True):
        array[...] = own
    return calling(given)


def _buffer(leaf: Any) -> np.ndarray:
    """A copy of an array in NumPy, aligned so that jax on CPUs does not use the same memory."""
    numbers = np.asarray(leaf)
    memory = np.empty(numbers.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + numbers.itemsize
    copy = memory[start : start + numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
    copy[...] = numbers
    return copy


def forms(values: Values, axes: LeafAxes) -> Iterator[tuple[str, Values]]:
    """The same with an axis of one behind, or whole numbers, in one array of the batch; see `shard`, emitted.

    `jnp.mean((x - y) ** 2)` couples the examples where `y` is (B, 1) and `x` is (B,).
    """
    for name, leaves in axes.items():
        for index, axis in leaves.items():
            leaf = np.asarray(jax.tree.leaves(values[name])[index])
            if leaf.dtype.kind != "f":
                continue
            if leaf.ndim == 1 and axis == 0:
                yield f"`{name}` of shape (B, 1)", with_leaf(values, name, index, leaf[:, None])
            whole = np.rint(10 * leaf).astype(np.int32)
            yield f"`{name}` of whole numbers", with_leaf(values, name, index, whole)


def placer(function: Callable[..., Any]) -> Callable[[Values], Values] | None:
    """What hands over the batch as `place` does, where that is emitted beside a function; else None."""
    namespace = emitted_namespace(function)
    place, shard = namespace.get("place"), namespace.get("shard")
    if not callable(place) or not callable(shard):
        return None
    names = list(inspect.signature(shard).parameters)

    def placed(values: Values) -> Values:
        batch = [values[name] for name in names]
        given = tuple(batch) if len(names) > 1 else batch[0]
        found = list(place([given, given]))
        if len(found) != 2:
            raise ValueError(f"of 2 batches `place` gives {len(found)}")
        ahead = found[-1] if len(names) > 1 else found[-1:]
        return {**values, **dict(zip(names, ahead, strict=True))}

    return placed


def emitted_namespace(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What the file of a function has by name, where it says that it was generated; else nothing."""
    namespace: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        with open(namespace["__file__"], encoding="utf-8", errors="replace") as text:
            emitted = "# Generated by jax-pmap" in text.read(2000)
    except (KeyError, OSError):
        return {}
    return namespace if emitted else {}


def taken(values: Values) -> list[str]:
    """Arguments of which a call took arrays with it (``donate_argnums``)."""

    def is_gone(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.is_deleted()

    return [name for name, value in values.items() if any(map(is_gone, jax.tree.leaves(value)))]


def first_call(trial: Trial, values: Values) -> Trial:
    """The first call of a run of the reference, with the same values handed over in another way."""
    placed = copy.copy(trial)
    placed.values, placed.results = [values], trial.results[:1]
    return placed
