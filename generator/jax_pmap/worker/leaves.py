"""Leaves of pytrees: what they are, how they are called, and the containers around them."""

import collections
import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

#: Categories of leaves that are numbers of Python; a function on devices returns arrays for them.
NUMBERS = ("bool", "int", "float", "complex")


def is_key(leaf: Any) -> bool:
    """Whether `leaf` is a typed PRNG key array, or the shape of one."""
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) and jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def is_key_leaf(leaf: Any) -> bool:
    """Whether an array is a key, typed or raw."""
    return is_key(leaf) or (
        str(getattr(leaf, "dtype", "")) == "uint32" and shape_of(leaf)[-1:] in ((2,), (4,))
    )


def category(leaf: Any) -> str:
    """``"array"``, ``"key"``, ``"bool"``, ``"int"``, ``"float"``, ``"complex"`` or ``"opaque"``."""
    if is_key(leaf):
        return "key"
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return "array"
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return "array" if leaf.dtype.kind in "biufcV" and leaf.dtype.names is None else "opaque"
    for kind in (bool, int, float, complex):
        if isinstance(leaf, kind):
            return kind.__name__
    return "opaque"


def is_graph_node(value: Any) -> bool:
    """Whether a value is an object of Flax NNX, which changes in place: a module, a variable or another."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Variable, object_type(nnx)))


def object_type(nnx: Any) -> type:
    """The class of modules and other objects of Flax NNX, which has another name before flax 0.12."""
    found: type = getattr(nnx, "Pytree", None) or nnx.Object
    return found


def acts(value: Any) -> bool:
    """Whether a value is a function or a model: an object that a batch may be given to."""
    equinox = sys.modules.get("equinox")
    return (
        callable(value) or is_graph_node(value) or (equinox is not None and isinstance(value, equinox.Module))
    )


def is_float(leaf: Any) -> bool:
    """Whether a leaf is an array of real or complex floats."""
    return category(leaf) == "array" and bool(jax.dtypes.issubdtype(leaf.dtype, np.inexact))


def has_shape(leaf: Any) -> bool:
    """Whether a leaf has a shape and a dtype; modules and classes of arrays have others by these names."""
    return hasattr(leaf, "dtype") and isinstance(getattr(leaf, "shape", None), tuple)


def shape_of(leaf: Any) -> tuple[int, ...]:
    """Shape of an array or key leaf, ``()`` for everything else."""
    return tuple(leaf.shape) if has_shape(leaf) else ()


def dtype_of(leaf: Any) -> str:
    """NumPy name of the dtype, ``key<fry>`` of a key, the type's name of anything else."""
    return name_of(leaf.dtype) if has_shape(leaf) else type(leaf).__name__


@functools.cache
def name_of(dtype: Any) -> str:
    """``"float32"``; NumPy makes it anew each time, by an import, and a trace asks for it at every value."""
    return str(dtype)


def leaf_paths(value: Any) -> list[str]:
    """Paths of the leaves below `value` as Python source: ``["['x']", "[0].w"]``."""
    paths, _ = jax.tree_util.tree_flatten_with_path(value)
    return [jax.tree_util.keystr(path) for path, _ in paths]


def with_paths(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[tuple[Any, Any]], Any]:
    """Leaves of some value of a program with their paths, and its structure; ``[], None`` where it has none.

    A program may have containers that are no pytrees, as dicts whose keys have no order (members of an enum):
    of their leaves nothing is said.
    """
    try:
        paths, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)
    except Exception:  # The flattening of a registered class is code of its own, too.
        return [], None
    return paths, tree


def skeleton(value: Any) -> Any:
    """The containers of a pytree as JSON, each leaf an int: its index among all leaves."""
    counter = iter(range(1 << 60))

    def walk(node: Any) -> Any:
        if node is None:
            return {"kind": "none"}
        flat = jax.tree_util.default_registry.flatten_one_level(node)
        if flat is None:
            return next(counter)
        children = list(flat[0])
        kind = type(node)
        if kind is dict:
            return {
                "kind": "dict",
                "keys": [repr(k) for k in sorted(node)],
                "children": [walk(c) for c in children],
            }
        if kind in (list, tuple):
            return {"kind": kind.__name__, "keys": [], "children": [walk(c) for c in children]}
        name = f"{kind.__module__}:{kind.__qualname__}"
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            keys, form = list(node._fields), "namedtuple"
        else:
            keys, form = data_fields(node, len(children)), "node"
            form = "dataclass" if keys else "node"
        return {"kind": form, "keys": keys, "type": name, "children": [walk(c) for c in children]}

    return walk(value)


def data_fields(node: Any, children: int) -> list[str]:
    """Names of the children of a dataclass that are all of its fields, else ``[]``."""
    declared = getattr(node, "__dataclass_fields__", {})
    fields = [f.name for f in declared.values() if f.init]
    if not fields or len(fields) != children or len(declared) != children:
        return []
    one_level, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    # Those of chex come sorted.
    names = [getattr(path[0], "name", "") for path, _ in one_level]
    return names if sorted(names) == sorted(fields) else []


def in_order(value: Any, like: Any) -> Any:
    """A value with the keys of its dicts in the order that they have in another one of its form.

    What jax puts together again has them sorted, and code that is not compiled may go through them.
    """
    kind = type(like)
    if type(value) is not kind:
        return value
    nnx = sys.modules.get("flax.nnx")
    if kind in (dict, collections.defaultdict, *([nnx.Dict] if nnx else [])):
        if value.keys() != like.keys():
            return value
        made = {key: in_order(value[key], part) for key, part in like.items()}
        if all(made[key] is value[key] for key in value) and list(value) == list(like):
            return value
        return kind(value.default_factory, made) if kind is collections.defaultdict else kind(made)
    parts, tree = jax.tree.flatten(value, is_leaf=lambda inner: inner is not value)
    others = jax.tree.leaves(like, is_leaf=lambda inner: inner is not like)
    if jax.tree_util.treedef_is_leaf(tree) or len(parts) != len(others):
        return value
    ordered = list(map(in_order, parts, others))
    return value if all(map(operator.is_, ordered, parts)) else tree.unflatten(ordered)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with what a function makes of its leaves, and its dicts in their order."""
    return in_order(jax.tree.map(function, value), value)


def to_host(value: Any) -> Any:
    """`value` with its jax arrays (not its keys) copied to NumPy, so that no call can delete them."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) and not is_key(x) else x, value)


def reusable(value: Any) -> Any:
    """`value` as arguments of several calls: on the host, but for weakly typed arrays.

    No array of NumPy is one: ``jax.vmap(lambda key: 0)(keys)`` goes into a loop that makes floats of it,
    and as int32 it could not.
    """

    def one(x: Any) -> Any:
        return x.copy() if isinstance(x, jax.Array) and not is_key(x) and x.weak_type else to_host(x)

    return jax.tree.map(one, value)


def fed_back(value: Any) -> Any:
    """`value` as arguments that no call compiles anew for: on the host, weakly typed scalars as numbers.

    jax compiles for arrays that lie on devices, and for those that do not; and ``step + 1`` of a Python
    number stays weakly typed, which an array of NumPy is not. What other processes have a part of stays as
    it is.
    """

    def one(x: Any) -> Any:
        if isinstance(x, jax.Array) and not is_key(x) and (x.is_fully_addressable or x.is_fully_replicated):
            return x.item() if x.weak_type and not x.ndim else np.asarray(x)
        return x

    return jax.tree.map(one, value)


def typed_as(array: np.ndarray, leaf: Any) -> Any:
    """`array` in the dtype of a leaf; a number is weakly typed where that is, as jax compiles for others."""
    made = array.astype(leaf.dtype)
    if made.ndim or not getattr(leaf, "weak_type", False):
        return made
    weak = jax.numpy.asarray(made.item())
    return weak if weak.dtype == made.dtype else made


def to_float64(value: Any) -> Any:
    """`value` with floating arrays as float64 and complex ones as complex128."""

    def cast(leaf: Any) -> Any:
        if category(leaf) == "array":
            for kind, wide in ((np.floating, np.float64), (np.complexfloating, np.complex128)):
                if jax.dtypes.issubdtype(leaf.dtype, kind):
                    abstract = isinstance(leaf, jax.ShapeDtypeStruct)
                    return jax.ShapeDtypeStruct(leaf.shape, wide) if abstract else np.asarray(leaf, wide)
        return leaf

    return mapped(cast, value)


def is_abstract(value: Any) -> bool:
    """Whether an array in a value is known by its shape and dtype alone."""
    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(value))


def bytes_of(value: Any) -> int:
    """Bytes of the arrays in a value, keys left out."""
    leaves = [leaf for leaf in jax.tree.leaves(value) if category(leaf) == "array"]
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
