"""Programs traced from shapes alone: on the whole batch, on one device's share, as a caller calls them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ..arguments import LeafAxes, Packed, Values, partitioned
from ..exceptions import attempted
from ..leaves import NUMBERS, category, leaf_paths, shape_of

#: Device counts that programs are traced for, in order of preference. Unlike numbers tell most.
COUNTS = (3, 8, 4, 2, 6, 5, 7)
#: What 2, 3, 4 and 8 devices share.
LCM = 24


def counts_for(size: int, first: int = 0, most: int = 2) -> list[int]:
    """Counts of devices that share `size` rows evenly, `most` of them, `first` one of them if it does."""
    ranked = [first, *(count for count in COUNTS if count != first)]
    return [count for count in ranked if count > 1 and size % count == 0][:most]


def sizes_for(base: int) -> list[int]:
    """Batches to trace in place of one of `base` rows, the most telling first.

    On 3 and on 8 devices a number that is cut off, as in ``rows // 5``, is off by no power of the count;
    between 2 and 4 it may be by chance. The given batch, or most of it, stands in where the function takes
    no such size.
    """
    even = next((size for size in range(base, 3, -1) if len(counts_for(size)) == 2), 0)
    return list(dict.fromkeys(size for size in (max(base // LCM, 1) * LCM, even) if size))


def abstract(leaf: Any) -> Any:
    """A leaf as its shape and dtype; Python numbers, which are weakly typed, stay."""
    if category(leaf) not in ("array", "key"):
        return leaf
    dtype = leaf.dtype
    if category(leaf) == "array":
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(shape_of(leaf), dtype, weak_type=bool(getattr(leaf, "weak_type", False)))


def resized(leaf: Any, axis: "int | None", size: int) -> Any:
    """An abstract leaf with `size` rows along `axis`."""
    if axis is None or not hasattr(leaf, "shape"):
        return leaf
    shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
    return jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=bool(getattr(leaf, "weak_type", False)))


def abstract_leaves(packed: Packed, axes: LeafAxes, size: "int | None" = None) -> list[Any]:
    """The traced leaves of packed values by shape, their batch cut to `size` rows."""
    leaves = [abstract(leaf) for leaf in packed.leaves]
    if size is None:
        return leaves
    return [resized(leaf, axis, size) for leaf, axis in zip(leaves, packed.axes(axes), strict=True)]


def arrays_of(function: Callable[[Values], Any], packed: Packed) -> Callable[[Sequence[Any]], list[Any]]:
    """`function` of packed values, as one from their traced leaves to the arrays of its result."""
    return lambda leaves: partitioned(function(packed.unpack(leaves)))[0]


def traced_arrays(function: Callable[[Values], Any], packed: Packed) -> "Any | None":
    """The jaxpr of `arrays_of`; None of a function that cannot be traced.

    Such as a drop-in that prepares its batch, and wants numbers for that.
    """
    return attempted(jax.make_jaxpr(arrays_of(function, packed)), packed.leaves)


@dataclass(frozen=True)
class Traced:
    """A program with what its result is besides arrays.

    Attributes:
        jaxpr: the closed jaxpr, from the traced leaves to the arrays and numbers of the result.
        tree: the containers of the result.
        rest: its leaves that are no arrays.
        kinds: the categories of all of its leaves.
    """

    jaxpr: Any
    tree: Any
    rest: tuple[Any, ...]
    kinds: tuple[str, ...]

    @staticmethod
    def of(
        function: Callable[[Values], Any],
        packed: Packed,
        leaves: Sequence[Any],
        axes: "Mapping[str, int] | None" = None,
    ) -> "Traced":
        """A function of packed values, traced with these leaves and mesh axes."""
        made: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = []

        def run(given: Sequence[Any]) -> list[Any]:
            flat, tree = jax.tree.flatten(function(packed.unpack(given)))
            kinds = tuple(map(category, flat))
            rest = tuple(leaf for leaf, kind in zip(flat, kinds, strict=True) if kind == "opaque")
            made.append((tree, rest, kinds))
            return computed(flat)

        environment = list((axes or {}).items()) or None
        jaxpr = of_its_own(jax.make_jaxpr(run, axis_env=environment)(list(leaves)))
        return Traced(jaxpr, *made[-1])


def computed(leaves: Sequence[Any]) -> list[Any]:
    """The arrays and numbers among the leaves of a result, as arrays."""
    kinds = map(category, leaves)
    return [
        jax.numpy.asarray(leaf) if kind in NUMBERS else leaf
        for leaf, kind in zip(leaves, kinds, strict=True)
        if kind != "opaque"
    ]


def of_its_own(jaxpr: Any) -> Any:
    """A trace, unless it holds a value of an earlier one, which no run of it could have.

    Raises:
        UnexpectedTracerError: it does, as jax says it where such a function is run a second time.
    """
    kept = next((each for each in jaxpr.consts if isinstance(each, jax.core.Tracer)), None)
    if kept is not None:
        raise jax.errors.UnexpectedTracerError(
            f"it keeps an array of jax ({kept.aval.str_short()}) that it made while it was traced before, in "
            "a `functools.cache` or a variable outside, say, and uses it again. Make it with NumPy there"
        )
    return jaxpr


def leaf_names(packed: Packed) -> list[str]:
    """What the traced leaves are called: ``"batch['x']"``."""
    # A class may look at its parts as it is made again: these are its own.
    values = packed.unpack(packed.leaves)
    paths = {name: leaf_paths(values[name]) for name in packed.trees}
    return [name + paths[name][index] for name, index in packed.owners]
