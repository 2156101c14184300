"""Example arguments as leaves: described, cut along the batch, perturbed, cast, packed for a call."""

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .server import Problem, summary

#: Batch axis of each leaf of each argument; leaves that are not listed are replicated.
LeafAxes = Mapping[str, Mapping[int, int]]
Values = dict[str, Any]
#: Attributes by which Flax NNX modules know training from evaluation.
MODES = ("deterministic", "use_running_average")


def is_key(leaf: Any) -> bool:
    """Whether `leaf` is a typed PRNG key array."""
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def category(leaf: Any) -> str:
    """``"array"``, ``"key"``, ``"bool"``, ``"int"``, ``"float"``, ``"complex"`` or ``"opaque"``."""
    if is_key(leaf):
        return "key"
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return "array" if leaf.dtype.kind in "biufcV" and leaf.dtype.names is None else "opaque"
    for kind in (bool, int, float, complex):
        if isinstance(leaf, kind):
            return kind.__name__
    return "opaque"


def constants(value: Any) -> dict[int, Any]:
    """Leaves of an argument that are compile-time constants, by index: what no array can stand for.

    Beside such a leaf, and in an Equinox module, Python numbers are constants too: what
    ``eqx.partition(value, eqx.is_array)`` leaves behind. All of a value without arrays is left to
    its role.
    """
    leaves = jax.tree.leaves(value)
    kinds = [category(leaf) for leaf in leaves]
    if "opaque" not in kinds and not is_module(value):
        return {}
    if not {"array", "key"} & set(kinds):
        return {}
    return {i: leaf for i, leaf in enumerate(leaves) if kinds[i] not in ("array", "key")}


def is_module(value: Any) -> bool:
    """Whether `value` is an Equinox module."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(value, equinox.Module)


def partition_of(value: Any) -> str:
    """How the arrays of an argument come apart from its constants.

    ``"equinox"`` where `eqx.partition` gives a constant that can be hashed (a module with no list in
    it), ``"leaves"`` by a helper of the emitted file, ``""`` for an argument without constants.
    """
    if not constants(value):
        return ""
    if is_module(value):
        equinox = sys.modules["equinox"]
        try:
            hash(equinox.partition(value, equinox.is_array)[1])
        except Exception:
            return "leaves"
        return "equinox"
    return "leaves"


def held_apart(value: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The arrays of a result, and a function that makes the result again around others."""
    leaves, tree = jax.tree.flatten(value)
    rest = {i: leaf for i, leaf in enumerate(leaves) if category(leaf) not in ("array", "key")}

    def again(arrays: Sequence[Any]) -> Any:
        given = iter(arrays)
        return tree.unflatten([rest[i] if i in rest else next(given) for i in range(len(leaves))])

    return [leaf for i, leaf in enumerate(leaves) if i not in rest], again


def graph_variables(value: Any) -> list[Any]:
    """The Flax NNX variables in a value: what a function may change in place."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return []
    found = jax.tree.leaves(value, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return [leaf for leaf in found if isinstance(leaf, nnx.Variable)]


def graph_keys(value: Any) -> list[tuple[str, Any]]:
    """The Flax NNX variables in a value that hold the keys of random streams, by their paths."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return []
    found, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in found if isinstance(leaf, nnx.RngKey)]


def modes(value: Any) -> list[str]:
    """What `train()` and `eval()` set of the Flax NNX modules in a value: ``["deterministic=True"]``."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not graph_variables(value):
        return []
    modules = [node for _, node in nnx.iter_graph(value) if isinstance(node, nnx.Module)]
    found = ((name, getattr(module, name, None)) for module in modules for name in MODES)
    return sorted({f"{name}={mode}" for name, mode in found if isinstance(mode, bool)})


def changed(before: tuple[list[Any], Any], value: Any) -> bool:
    """Whether a value is no longer made of the leaves and containers it was."""
    leaves, tree = jax.tree.flatten(value)
    return tree != before[1] or any(x is not y for x, y in zip(leaves, before[0], strict=True))


def fresh(value: Any) -> Any:
    """The same leaves in containers of their own, so that changes in place do not reach `value`."""
    leaves, tree = jax.tree.flatten(value)
    return tree.unflatten(leaves)


def kept_parts(result: Any, given: Values) -> list[tuple[str, str]]:
    """Parts of a result that hold the constants of an argument: path in the result, argument's name.

    A part is the whole result, or an element of its tuple, list or dict. It has the containers of
    the argument, and the very constants in the same places.
    """

    def like(part: Any) -> str | None:
        leaves, tree = jax.tree.flatten(part)
        for name, value in given.items():
            if jax.tree.structure(value) != tree:
                continue
            fixed = constants(value)
            others = {i: leaf for i, leaf in enumerate(leaves) if category(leaf) not in ("array", "key")}
            if fixed.keys() == others.keys() and all(same_constant(others[i], fixed[i]) for i in fixed):
                return name
        return None

    kind = type(result)
    parts: list[tuple[str, Any]] = [("", result)]
    if kind in (tuple, list):
        parts += [(f"[{index}]", part) for index, part in enumerate(result)]
    elif kind is dict:
        parts += [(f"[{key!r}]", part) for key, part in result.items()]
    found = [(path, like(part)) for path, part in parts]
    return [(path, name) for path, name in found if name is not None]


def same_constant(left: Any, right: Any) -> bool:
    """Whether two leaves that are no arrays are the same thing."""
    if left is right:
        return True
    try:
        return type(left) is type(right) and bool(left == right)
    except Exception:
        return False


def constant_leaves(result: Any, parts: Sequence[str]) -> set[int]:
    """Leaves in these parts of a result that are no arrays, by index."""
    table = zip(leaf_paths(result), jax.tree.leaves(result), strict=True)
    return {
        index
        for index, (path, leaf) in enumerate(table)
        if category(leaf) not in ("array", "key") and any(path.startswith(part) for part in parts)
    }


def shape_of(leaf: Any) -> tuple[int, ...]:
    """Shape of an array or key leaf, ``()`` for everything else."""
    return tuple(leaf.shape) if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else ()


def dtype_of(leaf: Any) -> str:
    """NumPy name of the dtype, ``key<fry>`` of a key, the type's name of anything else."""
    return str(leaf.dtype) if hasattr(leaf, "dtype") else type(leaf).__name__


def leaf_paths(value: Any) -> list[str]:
    """Paths of the leaves below `value` as Python source: ``["['x']", "[0].w"]``."""
    paths, _ = jax.tree_util.tree_flatten_with_path(value)
    return [jax.tree_util.keystr(path) for path, _ in paths]


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
    """Field names of a dataclass all of whose fields are children of the pytree, else ``[]``."""
    declared = getattr(node, "__dataclass_fields__", {})
    fields = [f.name for f in declared.values() if f.init]
    if not fields or len(fields) != children or len(declared) != children:
        return []
    one_level, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    names = [getattr(path[0], "name", None) for path, _ in one_level]
    return fields if names == fields else []


def to_host(value: Any) -> Any:
    """`value` with its jax arrays (not its keys) copied to NumPy, so that no call can delete them."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) and not is_key(x) else x, value)


def to_float64(value: Any) -> Any:
    """`value` with floating arrays as float64 and complex ones as complex128."""

    def cast(leaf: Any) -> Any:
        if category(leaf) == "array":
            if jax.dtypes.issubdtype(leaf.dtype, np.floating):
                return np.asarray(leaf, np.float64)
            if jax.dtypes.issubdtype(leaf.dtype, np.complexfloating):
                return np.asarray(leaf, np.complex128)
        return leaf

    return jax.tree.map(cast, value)


def alike(values: Values, first: Values, chained: Sequence[str]) -> Values:
    """`values` in the form that jax compiles no second time, where it need not.

    Around the leaves of each argument come the containers and constants of `first`: those of an optimiser
    or a model that is made anew are others to jax. Numbers of `chained` arguments, which later calls get as
    arrays, are arrays in the first call too.
    """
    out: Values = {}
    for name, value in values.items():
        leaves, tree = jax.tree.flatten(value)
        fixed, model = constants(value), constants(first[name])
        if fixed.keys() == model.keys() and leaf_paths(value) == leaf_paths(first[name]):
            tree, fixed = jax.tree.structure(first[name]), model
        if name in chained:
            numbers = ("bool", "int", "float", "complex")
            leaves = [np.asarray(leaf) if category(leaf) in numbers else leaf for leaf in leaves]
        out[name] = tree.unflatten([fixed.get(index, leaf) for index, leaf in enumerate(leaves)])
    return out


def bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
    """Arguments by parameter name, defaults filled in."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        expected = ", ".join(signature.parameters)
        named = f" and {', '.join(f'`{name}`' for name in sorted(kwargs))} by name" if kwargs else ""
        raise Problem(
            "count",
            f"{error}; the function takes ({expected}), and {len(args)} came by position{named}",
        ) from error
    bound.apply_defaults()
    refuse_graphs(bound.arguments)
    values: Values = {}
    for name, value in bound.arguments.items():
        try:
            values[name] = to_host(value)
        except (TypeError, ValueError) as error:  # keys of a dict that cannot be sorted
            raise Problem("inputs", f"jax cannot take `{name}` apart: {summary(error)}") from error
    return values


def refuse_graphs(values: Mapping[str, Any]) -> None:
    """Refuse what jax would make a tree of and lose something: Flax NNX objects that share variables.

    Raises:
        Problem: ``"graph"``, with the two places of one variable, or the object that is no pytree at all.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    seen: dict[int, str] = {}
    for name, value in values.items():
        leaves, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: isinstance(x, nnx.Variable))
        for path, leaf in leaves:
            place = name + jax.tree_util.keystr(path)
            if isinstance(leaf, (nnx.Module, nnx.Optimizer)):
                raise Problem("graph", place, other="", type=type(leaf).__name__)
            if isinstance(leaf, nnx.Variable):
                if id(leaf) in seen:
                    raise Problem("graph", place, other=seen[id(leaf)], type=type(leaf).__name__)
                seen[id(leaf)] = place


def invoke(fn: Callable[..., Any], signature: inspect.Signature, values: Values) -> Any:
    """Call `fn` with `values` the way its signature binds them."""
    call = inspect.BoundArguments(signature, OrderedDict(values))
    return fn(*call.args, **call.kwargs)


class Packed:
    """Values split into traced leaves and constants, and put together again inside a trace.

    Raises:
        Problem: ``"opaque"``, a leaf is no array and cannot be hashed, so it is no constant either.
    """

    def __init__(self, values: Values, statics: Sequence[str]) -> None:
        self.constants = {name: value for name, value in values.items() if name in statics}
        dynamic = {name: value for name, value in values.items() if name not in statics}
        self.owners: list[tuple[str, int]] = []
        self.leaves: list[Any] = []
        self.trees: dict[str, Any] = {}
        self.order = list(values)
        self.fixed: dict[tuple[str, int], Any] = {}
        for name, value in dynamic.items():
            leaves, tree = jax.tree.flatten(value)
            fixed = constants(value)
            for index, leaf in enumerate(leaves):
                if index in fixed:
                    try:
                        hash(leaf)
                    except Exception as error:
                        path = leaf_paths(value)[index]
                        kind = type(leaf).__name__
                        raise Problem("opaque", f"{name}{path}", argument=name, type=kind) from error
                    self.fixed[name, index] = leaf
                elif category(leaf) == "opaque":
                    raise Problem("opaque", name, argument=name, type=type(leaf).__name__)
                else:
                    self.owners.append((name, index))
                    self.leaves.append(leaf)
            self.trees[name] = tree

    @property
    def key(self) -> Any:
        """What a compiled function depends on beside shapes and dtypes."""
        return tuple(self.trees.items()), tuple(self.fixed.items())

    def unpack(self, leaves: Sequence[Any]) -> Values:
        """The values again, with `leaves` in the places of the originals."""
        out: Values = dict(self.constants)
        given = iter(leaves)
        for name, tree in self.trees.items():
            own = [(name, index) for index in range(tree.num_leaves)]
            out[name] = tree.unflatten([self.fixed[at] if at in self.fixed else next(given) for at in own])
        return {name: out[name] for name in self.order}

    def axes(self, axes: LeafAxes) -> list[int | None]:
        """Batch axis of each traced leaf, or None."""
        return [axes.get(name, {}).get(index) for name, index in self.owners]


def map_batch(values: Values, axes: LeafAxes, change: Callable[[Any, int], Any]) -> Values:
    """`values` with ``change(leaf, axis)`` in place of every batch leaf."""
    out = dict(values)
    for name, by_leaf in axes.items():
        leaves, tree = jax.tree.flatten(values[name])
        for index, axis in by_leaf.items():
            leaves[index] = change(leaves[index], axis)
        out[name] = jax.tree.unflatten(tree, leaves)
    return out


def take(leaf: Any, axis: int, rows: Any) -> Any:
    """`leaf` with only `rows` (a slice or index array) of `axis`."""
    return leaf[(slice(None),) * axis + (rows,)]


def cut(values: Values, axes: LeafAxes, size: int) -> Values:
    """`values` with the first `size` rows of every batch leaf."""
    return map_batch(values, axes, lambda leaf, axis: take(leaf, axis, slice(size)))


def batch_size(values: Values, axes: LeafAxes) -> int:
    """The common size of the batch axes, 0 when there is no batch leaf."""
    for name, by_leaf in axes.items():
        leaves = jax.tree.leaves(values[name])
        for index, axis in by_leaf.items():
            return shape_of(leaves[index])[axis]
    return 0


def shards(
    values: Values, axes: LeafAxes, count: int, statics: Sequence[str]
) -> tuple[Packed, list[Any], list[Any]]:
    """One device's values packed, the leaves stacked over devices on axis 0, and their in_axes."""
    size = batch_size(values, axes) // count
    one = Packed(cut(values, axes, size), statics)
    whole = Packed(values, statics)
    in_axes = whole.axes(axes)
    leaves = []
    for leaf, axis in zip(whole.leaves, in_axes, strict=True):
        if axis is not None:
            parts = [take(leaf, axis, slice(i * size, (i + 1) * size)) for i in range(count)]
            leaf = np.stack(parts) if isinstance(leaf, np.ndarray) else jax.numpy.stack(parts)
        leaves.append(leaf)
    return one, leaves, [None if axis is None else 0 for axis in in_axes]


def uneven_order(values: Values, axes: LeafAxes, size: int, random: np.random.Generator) -> np.ndarray:
    """An order of the rows: sorted by an integer leaf when there is one, else random.

    Labels and masks cannot be scaled, and shards with the same mix of them look alike.
    """
    order = random.permutation(size)
    for name, by_leaf in axes.items():
        leaves = jax.tree.leaves(values[name])
        for index, axis in by_leaf.items():
            leaf = leaves[index]
            if category(leaf) == "array" and leaf.dtype.kind in "iub":
                first = np.moveaxis(np.asarray(leaf), axis, 0).reshape(size, -1)[:, 0]
                return order[np.argsort(first[order], kind="stable")]
    return order


def perturb(
    values: Values,
    axes: LeafAxes,
    statics: Sequence[str],
    seed: int,
    wild: bool = False,
    skew: float = 0.0,
) -> Values:
    """The same kind of data in generic position: other rows first, other numbers, no leaf all equal.

    Floats keep their sign and size (each is scaled by a factor in [0.8, 1.2]); all-zero leaves
    become small positive numbers, since zero-initialised weights and moments would make summed
    and averaged gradients look alike. What rises or falls throughout along an axis, as times and the
    edges of bins do, still does. Batch leaves are also put in another order, one that makes
    shards as unlike each other as the data allows; `wild` scales their rows by factors from -2 to
    3 as well, in order (0.1 to 3 where no element is negative), so that a clip, a branch or an
    absolute value behind a reduction does on some shard what it does not do on the whole; and it
    draws their integers and booleans anew, so that a mask of ones does not make a masked mean look
    like a mean.
    """
    random = np.random.default_rng(seed)
    size = batch_size(values, axes)
    if wild:
        values = map_batch(values, axes, lambda leaf, axis: redrawn(leaf, axis, random, skew))
    order = uneven_order(values, axes, size, random)

    def one(leaf: Any) -> Any:
        if not is_float(leaf):
            return leaf
        wide = np.asarray(leaf, np.complex128 if leaf.dtype.kind == "c" else np.float64)
        noise = random.uniform(-1.0, 1.0, wide.shape)
        if not wide.any():
            return (0.02 * (1.5 + noise)).astype(leaf.dtype)
        return in_order(wide, wide * (1.0 + 0.2 * noise)).astype(leaf.dtype)

    def row(leaf: Any, axis: int) -> Any:
        leaf = take(leaf, axis, order)
        if not wild or not is_float(leaf):
            return leaf
        low = 0.1 if leaf.dtype.kind == "c" or np.min(np.asarray(leaf, np.float64)) >= 0 else -2.0
        factors = np.linspace(low, 3.0, size).reshape([-1] + [1] * (leaf.ndim - 1 - axis))
        return (leaf * factors).astype(leaf.dtype)

    moved = map_batch(values, axes, row)
    return {name: value if name in statics else jax.tree.map(one, value) for name, value in moved.items()}


def in_order(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """`after`, sorted along the axes along which all of `before` rises, or falls."""
    if before.dtype.kind == "c":
        return after
    for axis, size in enumerate(before.shape):
        steps = np.diff(before, axis=axis)
        if size > 2 and (np.all(steps > 0) or np.all(steps < 0)):
            after = np.sort(after, axis=axis)
            after = after if np.all(steps > 0) else np.flip(after, axis)
    return after


def exaggerate(values: Values, axes: LeafAxes, statics: Sequence[str]) -> Values:
    """The same values far out: rows of the batch up to a thousand times as large, counters far ahead.

    What a clip, a threshold or a schedule does only there is else never compared.
    """
    size = batch_size(values, axes)
    factors = np.logspace(-1.0, 3.0, size)

    def row(leaf: Any, axis: int) -> Any:
        if not is_float(leaf):
            return leaf
        return (leaf * factors.reshape([-1] + [1] * (leaf.ndim - 1 - axis))).astype(leaf.dtype)

    def ahead(name: str, leaf: Any, index: int) -> Any:
        number = category(leaf) == "int" or (
            category(leaf) == "array" and leaf.dtype.kind in "iu" and leaf.ndim == 0
        )
        if index in axes.get(name, {}) or not number or abs(int(leaf)) >= AHEAD:
            return leaf
        return type(leaf)(leaf + AHEAD) if category(leaf) == "int" else far(leaf)

    out = map_batch(values, axes, row)
    for name, value in out.items():
        if name not in statics:
            leaves, tree = jax.tree.flatten(value)
            out[name] = jax.tree.unflatten(tree, [ahead(name, leaf, i) for i, leaf in enumerate(leaves)])
    return out


def shrink(values: Values, axes: LeafAxes) -> Values:
    """The same values with the floats of the batch a fiftieth as large, so that they hardly differ.

    A threshold on how far the examples lie apart is else on one side of it throughout.
    """

    def row(leaf: Any, axis: int) -> Any:
        return (leaf * 0.02).astype(leaf.dtype) if is_float(leaf) else leaf

    return map_batch(values, axes, row)


def jitter(values: Values, statics: Sequence[str], eps: float, seed: int) -> Values | None:
    """`values` with every float changed by up to `eps` of itself; None where there is no float."""
    random = np.random.default_rng(seed)
    found = False

    def one(leaf: Any) -> Any:
        nonlocal found
        if not is_float(leaf):
            return leaf
        found = True
        wide = np.asarray(leaf, np.complex128 if leaf.dtype.kind == "c" else np.float64)
        return (wide * (1.0 + eps * random.uniform(-1.0, 1.0, wide.shape))).astype(leaf.dtype)

    out = {name: value if name in statics else jax.tree.map(one, value) for name, value in values.items()}
    return out if found else None


#: How far ahead counters are put.
AHEAD = 1000


def far(leaf: Any) -> Any:
    """An integer scalar further on, in its own dtype; as it is where that has no room."""
    room = int(np.iinfo(leaf.dtype).max) - int(leaf)
    return np.asarray(int(leaf) + AHEAD, leaf.dtype) if room > AHEAD else leaf


def vary_numbers(values: Values, statics: Sequence[str], seed: int) -> Values:
    """Other Python floats among the arguments, by up to a fifth: a number written down is then found out."""
    random = np.random.default_rng(seed)

    def one(leaf: Any) -> Any:
        noise = float(random.uniform(-0.2, 0.2))
        if type(leaf) is not float or not np.isfinite(leaf):
            return leaf
        return leaf * (1.0 + noise) if leaf else abs(noise)

    return {name: value if name in statics else jax.tree.map(one, value) for name, value in values.items()}


def redrawn(leaf: Any, axis: int, random: np.random.Generator, skew: float = 0.0) -> Any:
    """Other integers and booleans from the range they had, with 0 (or 1) where they were all equal.

    The first rows hold only the smallest and the last only the largest, so that some shard has no
    True and some no False: else `any`, `all` and a count of one label look replicated.
    """
    if category(leaf) != "array" or leaf.dtype.kind not in "biu" or not leaf.size:
        return leaf
    low, high = int(np.min(leaf)), int(np.max(leaf))
    if leaf.dtype.kind == "b":
        low, high = 0, 1
    elif low == high:
        low, high = min(low, 0), max(high, 0 if low else 1)
    size = leaf.shape[axis]
    rise = np.linspace(skew - 1.25, skew + 1.25, size).reshape([-1] + [1] * (leaf.ndim - 1 - axis))
    share = np.clip(rise + random.uniform(0.0, 1.0, leaf.shape), 0.0, 1.0 - 1e-9)
    span = high - low + 1
    return (low + np.minimum(np.floor(share * span), span - 1)).astype(leaf.dtype)


def is_float(leaf: Any) -> bool:
    """Whether a leaf is an array of real or complex floats."""
    return category(leaf) == "array" and bool(jax.dtypes.issubdtype(leaf.dtype, np.inexact))
