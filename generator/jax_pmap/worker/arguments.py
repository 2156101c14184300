"""Example arguments: their constants and graphs, cut along the batch, packed for a call."""

import dataclasses
import inspect
import keyword
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import sharing
from .exceptions import summary
from .leaves import (
    NUMBERS,
    category,
    dtype_of,
    in_order,
    is_graph_node,
    leaf_paths,
    mapped,
    reusable,
    shape_of,
    to_host,
)
from .protocol import Problem

#: Batch axis of each leaf of each argument; leaves that are not listed are replicated.
LeafAxes = Mapping[str, Mapping[int, int]]
Values = dict[str, Any]
#: Attributes by which Flax NNX modules know training from evaluation.
MODES = ("deterministic", "use_running_average")


def constants(value: Any) -> dict[int, Any]:
    """Leaves of an argument that are compile-time constants, by index: what no array can stand for.

    A function is such a leaf, and in an Equinox module, Python numbers are constants too: what
    ``eqx.partition(value, eqx.is_array)`` leaves behind. So are those of a Flax NNX object that no variable
    of it has, to `nnx.jit`. All of a value without arrays is left to its role.
    """
    leaves = jax.tree.leaves(value)
    kinds = [category(leaf) for leaf in leaves]
    variable = {index for index, of_variable in enumerate(_in_variables(value)) if of_variable}
    if "opaque" not in kinds and not is_module(value) and len(variable) in (0, len(leaves)):
        return {}
    if not {"array", "key"} & set(kinds):
        return {}
    dynamic = {index for index, kind in enumerate(kinds) if kind in ("array", "key")}
    dynamic |= {index for index in variable if kinds[index] != "opaque"}
    return {index: leaf for index, leaf in enumerate(leaves) if index not in dynamic}


def _in_variables(value: Any) -> Iterator[bool]:
    """Of each leaf of a Flax NNX object, whether a variable has it; nothing of another value."""
    if is_graph_node(value):
        variable = sys.modules["flax.nnx"].Variable
        for node in jax.tree.leaves(value, is_leaf=lambda x: isinstance(x, variable)):
            yield from [isinstance(node, variable)] * len(jax.tree.leaves(node))


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


def partitioned(value: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
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
    """What says in which mode the modules in a value are: ``["deterministic=True"]``.

    Of Flax NNX what `train()` and `eval()` set; of other modules the flags among their leaves, as
    `eqx.nn.inference_mode` sets them.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not graph_variables(value):
        leaves, _ = jax.tree_util.tree_flatten_with_path(value)
        flags = [(path, leaf) for path, leaf in leaves if isinstance(leaf, bool) and constants(value)]
        named = [(getattr(path[-1], "name", ""), leaf) for path, leaf in flags if path]
        return sorted({f"{name}={flag}" for name, flag in named if name})
    modules = [node for _, node in nnx.iter_graph(value) if isinstance(node, nnx.Module)]
    found = ((name, getattr(module, name, None)) for module in modules for name in MODES)
    return sorted({f"{name}={mode}" for name, mode in found if isinstance(mode, bool)})


def parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """What a container or an object has in it, each with its path; nothing of a leaf."""
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f"{path}.{name}", part) for name, part in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    if jax.tree_util.all_leaves([value]):
        return []
    return [(path + _access(value, name), part) for name, part in attributes(value).items()]


def _access(value: Any, name: str) -> str:
    """What gets an attribute in source: ``.name``, and ``[0]`` of an `nnx.List`, which has it as "0"."""
    if name.isidentifier() and not keyword.iskeyword(name):
        return f".{name}"
    listed = name.isdecimal() and isinstance(value, Sequence)
    return f"[{name}]" if listed else f".__dict__[{name!r}]"


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, those of a dataclass with slots too."""
    if dataclasses.is_dataclass(value) and not hasattr(value, "__dict__"):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(getattr(value, "__dict__", {}))


def functions(value: Any, path: str) -> list[tuple[str, str]]:
    """Paths of what objects in a value hold beside their leaves that has functions in it, and its types.

    That is ``state.tx`` of a `TrainState`.
    """
    leaves = {id(leaf) for leaf in jax.tree.leaves(value)}
    found: list[tuple[str, str]] = []
    seen = set[int]()

    def look(value: Any, path: str) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        for where, part in [] if callable(value) else parts(value, path):
            try:
                inner = jax.tree.leaves(part)
            except ValueError:  # a dict whose keys have no order, as that in an `equinox.nn.State`
                inner = []
            if id(part) not in leaves and any(callable(each) and id(each) not in leaves for each in inner):
                found.append((where, type(part).__name__))
            else:
                look(part, where)

    look(value, path)
    return found


def changed(before: tuple[list[Any], Any], value: Any) -> bool:
    """Whether a value is no longer made of the leaves and containers it was.

    One that lets itself be used once, as `equinox.nn.State` does, is not changed when it was.
    """
    try:
        leaves, tree = jax.tree.flatten(value)
    except ValueError:
        return False
    return tree != before[1] or any(x is not y for x, y in zip(leaves, before[0], strict=True))


def fresh(value: Any) -> Any:
    """The same leaves in containers of their own, so that changes in place do not reach `value`."""
    return mapped(lambda leaf: leaf, value)


def copied(values: Values) -> Values:
    """The same in containers and NumPy arrays of their own, for code that changes them in place."""
    made: Values = mapped(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, dict(values))
    return made


def own(values: Mapping[str, Any], names: Collection[str]) -> Values:
    """`values` with containers of their own for these `names`, and for what is joined with others."""
    apart = {*names, *sharing.concerned()}
    given = {name: fresh(value) if name in apart else value for name, value in values.items()}
    return sharing.join(given)


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


def comparable(values: Values, first: Values) -> bool:
    """Whether jax can tell if the containers of `values` are those of `first`.

    A field that is no leaf may hold an array, as `eqx.field(static=True)` allows. jax takes one model of such
    a class as often as it comes, and raises at the next model, whose array it cannot compare.
    """
    try:
        operator.eq(jax.tree.structure(values), jax.tree.structure(first))
    except ValueError:
        return False
    return True


def alike(values: Values, first: Values, chained: Sequence[str]) -> Values:
    """`values` in the form that jax compiles no second time, where it need not.

    Around the leaves of each argument come the containers and constants of `first`: those of an optimiser
    or a model that is made anew are others to jax. What is weakly typed in `chained` arguments, which later
    calls get as arrays like others, is so in the first call too.
    """
    out: Values = {}
    for name, value in values.items():
        leaves, tree = jax.tree.flatten(value)
        fixed, model = constants(value), constants(first[name])
        if fixed.keys() == model.keys() and leaf_paths(value) == leaf_paths(first[name]):
            tree, fixed = jax.tree.structure(first[name]), model
        if name in chained:
            leaves = list(map(strongly_typed, leaves))
        made = tree.unflatten([fixed.get(index, leaf) for index, leaf in enumerate(leaves)])
        out[name] = in_order(made, value)
    return out


def strongly_typed(leaf: Any) -> Any:
    """A number of Python, or a weakly typed array, as an array like others; anything else as it is."""
    if category(leaf) in NUMBERS:
        return np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))
    return to_host(leaf) if getattr(leaf, "weak_type", False) else leaf


def bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
    """Arguments by parameter name, defaults filled in, with their arrays on the host."""
    values: Values = {}
    for name, value in bind_as_given(signature, args, kwargs).items():
        try:
            # What holds functions alone, say, is a constant. A copy would have its dicts in another order.
            mere = all(category(leaf) == "opaque" for leaf in jax.tree.leaves(value))
            values[name] = value if mere else reusable(value)
        except (TypeError, ValueError) as error:  # keys of a dict that cannot be sorted
            raise Problem("inputs", f"jax cannot take `{name}` apart: {summary(error)}") from error
    return values


def bind_as_given(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
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
    sharing.note(bound.arguments)
    return dict(bound.arguments)


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
                        raise Problem("opaque", f"{name}{path}", name=name, type=kind) from error
                    self.fixed[name, index] = leaf
                elif category(leaf) == "opaque":
                    raise Problem("opaque", name, name=name, type=type(leaf).__name__)
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
        return sharing.join({name: out[name] for name in self.order})

    def axes(self, axes: LeafAxes) -> list[int | None]:
        """Batch axis of each traced leaf, or None."""
        return [axes.get(name, {}).get(index) for name, index in self.owners]


class Compiled:
    """A function of values, compiled once for each shape of them.

    Args:
        function: of values, by name; it may return anything.
        statics: names of those that are constants.
        compiling: compiles a function from leaves to arrays. What it gives may take more behind the leaves.
    """

    def __init__(
        self,
        function: Callable[[Values], Any],
        statics: Sequence[str],
        compiling: Callable[[Callable[[Sequence[Any]], list[Any]]], Callable[..., Any]] = jax.jit,
    ) -> None:
        self.function, self.statics, self.compiling = function, statics, compiling
        self._made: dict[Any, Any] = {}

    def __call__(self, values: Values, *more: Any, key: Any = None) -> Any:
        """The result on `values`; `key` is what else the function depends on."""
        packed = Packed(values, self.statics)
        shapes = tuple((shape_of(x), dtype_of(x)) for x in packed.leaves)
        key = key, packed.key, shapes, bool(jax.config.jax_enable_x64)
        if key not in self._made:
            made: list[Callable[[Sequence[Any]], Any]] = []

            def body(leaves: Sequence[Any]) -> list[Any]:
                arrays, again = partitioned(self.function(packed.unpack(leaves)))
                made.append(again)
                return arrays

            self._made[key] = self.compiling(body), made
        compiled, made = self._made[key]
        arrays = compiled(packed.leaves, *more)
        return made[-1](arrays)


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
    if isinstance(leaf, jax.ShapeDtypeStruct):
        size = len(range(leaf.shape[axis])[rows]) if isinstance(rows, slice) else len(rows)
        return jax.ShapeDtypeStruct((*leaf.shape[:axis], size, *leaf.shape[axis + 1 :]), leaf.dtype)
    return leaf[(slice(None),) * axis + (rows,)]


def cut(values: Values, axes: LeafAxes, size: int) -> Values:
    """`values` with the first `size` rows of every batch leaf, repeated where it has fewer."""
    given = batch_size(values, axes)
    rows: Any = slice(size) if size <= given or not given else np.arange(size) % given
    return map_batch(values, axes, lambda leaf, axis: take(leaf, axis, rows))


class MadeInside(dict[str, Mapping[int, int]]):
    """Batch axes of a function that makes rows itself, as many on every call: `rows` of them.

    It takes no batch of another size, and devices that do not share `rows` evenly cannot run it.
    """

    def __init__(self, axes: LeafAxes, rows: int) -> None:
        super().__init__(axes)
        self.rows = rows


def batch_size(values: Values, axes: LeafAxes) -> int:
    """The common size of the batch axes, 0 when there is no batch leaf and no batch made inside."""
    for name, by_leaf in axes.items():
        leaves = jax.tree.leaves(values[name])
        for index, axis in by_leaf.items():
            return shape_of(leaves[index])[axis]
    return axes.rows if isinstance(axes, MadeInside) else 0


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
            if isinstance(leaf, jax.ShapeDtypeStruct):
                leaf = jax.ShapeDtypeStruct((count, *parts[0].shape), leaf.dtype)
            else:
                leaf = np.stack(parts) if isinstance(leaf, np.ndarray) else jax.numpy.stack(parts)
        leaves.append(leaf)
    return one, leaves, [None if axis is None else 0 for axis in in_axes]
