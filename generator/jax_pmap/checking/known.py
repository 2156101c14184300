"""What functions of jax and other libraries make of the values that `flow` follows."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from jax_pmap.checking.mapped import REDUCTIONS
from jax_pmap.checking.values import (
    UNKNOWN,
    Array,
    Batched,
    Constant,
    Draw,
    Either,
    Evaluation,
    Fields,
    GradientOf,
    Items,
    Method,
    Named,
    Partial,
    Reduction,
    Same,
    Value,
    joined,
    leaves,
    mixed,
    part,
)
from jax_pmap.syntax.library import (
    BATCHERS,
    COLLECTIVES,
    GRADIENTS,
    MAPPERS,
    SHARD_MAPS,
    WRAPPERS,
)

_MASK = re.compile(r"mask|marker|valid|padding|(?:^|_)weights?$", re.IGNORECASE)
#: Functions that give back their first argument, a function, as far as values go.
_SAME_VALUES = WRAPPERS | MAPPERS | SHARD_MAPS | {"jax.named_call", "functools.wraps"}
#: Modules whose functions neither synchronise gradients nor keep them.
_PLAIN = (
    "jax.numpy.",
    "jax.tree.",
    "jax.tree_util.",
    "jax.nn.",
    "jax.scipy.",
    "jax.debug.",
    "jax.lax.",
    "jax.random.",
    "numpy.",
    "optax.",
    "builtins.",
    "flax.core.",
    "dataclasses.replace",
    "equinox.",
)
#: Functions and methods of which an array comes out as the same, but for dtype and shape.
_SAME = frozenset(
    {"astype", "reshape", "ravel", "flatten", "squeeze", "asarray", "array", "stop_gradient", "copy"}
)
#: Methods of arrays that are operations of arithmetic.
_ARITHMETIC = frozenset(
    {"mean", "max", "min", "std", "var", "prod", "dot", "transpose", "take", "any", "all", "cumsum", "clip"}
)
#: Functions that leave replicated parameters replicated parameters.
_WHOLE = ("equinox.combine", "equinox.filter", "equinox.partition", "flax.core.freeze", "flax.core.unfreeze")
_KEYS = ("jax.random.split", "jax.random.fold_in", "jax.random.clone", "jax.random.wrap_key_data")
_NEW_KEYS = ("jax.random.PRNGKey", "jax.random.key")
_DRAWS = frozenset(
    {
        *("bernoulli", "normal", "uniform", "randint", "categorical", "gumbel", "truncated_normal"),
        *("exponential", "laplace", "rademacher", "bits"),
    }
)
_COUNTS = (
    "jax.device_count",
    "jax.local_device_count",
    "jax.devices",
    "jax.local_devices",
    "jax.lax.axis_size",
)
#: Functions of the shapes and dtypes that they are given.
_OF_SHAPES = (
    "builtins.len",
    *(f"jax.numpy.{n}" for n in ("zeros_like", "ones_like", "shape", "ndim", "size")),
)


def named(value: Value, name: str) -> Value:
    """`value` under a name, which may say that it is a mask, and is that of a key made there."""
    if not isinstance(value, Array):
        return value
    if value.key in _NEW_KEYS:
        return replace(value, key=name)
    plain = value.shares and not (value.mask or value.total or value.gradients or value.ratio)
    return replace(value, mask=name) if plain and _MASK.search(name) else value


def call(
    flow: Evaluation, name: str, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
) -> Value:
    """The result of the function called `name`."""
    if name in ("functools.partial", "jax.tree_util.Partial") and args:
        return Partial(args[0], args[1:], keywords)
    if name in _SAME_VALUES | BATCHERS:
        function = args[0] if args else keywords.get("fun", keywords.get("f"))
        if function is None:  # a decorator with options: ``@eqx.filter_jit(donate="all")``
            return Partial(Named(name), (), {}) if keywords else UNKNOWN
        return Batched(function) if name in BATCHERS else function
    if name in GRADIENTS:
        return _gradient_of(flow, name, args, keywords, node)
    if name in COLLECTIVES:
        return _collective(flow, name, args, keywords, node)
    if name in ("jax.tree.map", "jax.lax.map", "builtins.map") and args:
        result = flow.call(args[0], tuple(_leaf(each) for each in args[1:]), {}, node)
        return result if name == "jax.tree.map" else Same(result)
    if name.startswith("jax.lax.") and (control := _control(flow, name, args, keywords, node)) is not None:
        return control
    if name in _NEW_KEYS:
        seed = mixed(args)
        return seed if seed.shares else Array(key=name)
    if name.startswith("jax.random."):
        return _random(flow, name, args, keywords, node)
    if name in ("jax.numpy.sum", "numpy.sum") and args:
        axis = args[1] if len(args) > 1 else keywords.get("axis", Constant(None))
        where = keywords.get("where")
        return _total(args[0], where) if axis == Constant(None) else mixed(args)
    if name in ("jax.numpy.maximum", "jax.numpy.clip", "jax.numpy.where", "jax.lax.select") and args:
        return _bounded(name, args)
    if name in _COUNTS or name in _OF_SHAPES:
        array = mixed(args)
        return Array(shapes=array.shares | array.shapes, counted=array.counted or name in _COUNTS)
    if name in _WHOLE and args and isinstance(args[0], Array):
        return args[0]
    if name in ("builtins.tuple", "builtins.list") and args:
        return args[0]
    if name == "builtins.dict" and not args:
        return Fields(tuple(keywords.items()))
    if name.rpartition(".")[2] in _SAME and name.startswith(("jax.", "numpy.")) and args:
        return _same(args[0])
    if name == "optax.apply_updates":
        _update(args, node)
    if name.startswith(_PLAIN):
        _dropout(flow, args, keywords, node)
        return mixed((*args, *keywords.values()))
    return unknown(flow, args, keywords, node)


def method(
    flow: Evaluation, function: Method, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
) -> Value:
    """The result of a method of an array, a tree, or an object that is not known."""
    owner = function.owner
    given = (*args, *keywords.values())
    if function.name == "sum":
        axis = args[0] if args else keywords.get("axis", Constant(None))
        return _total(owner, keywords.get("where")) if axis == Constant(None) else mixed((owner, *args))
    if function.name in _SAME:
        return _same(owner)
    if function.name == "get" and args and isinstance(args[0], Constant):
        key = args[0].value
        found = part(owner, key)
        return named(found, key) if isinstance(key, str) else found
    if function.name in ("get", "values", "items", "copy"):
        return mixed((owner,))
    if function.name in ("apply_gradients", "update"):
        _update(given, node)
        _dropout(flow, args, keywords, node)
        return replace(mixed((owner, *given)), is_gradient=False)
    if function.name == "replace" or function.name in _ARITHMETIC:
        return mixed((owner, *given))
    return unknown(flow, (owner, *args), keywords, node)


def unknown(flow: Evaluation, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call) -> Value:
    """The result of a function that cannot be read: gradients that it takes are out of sight."""
    _dropout(flow, args, keywords, node)
    found = mixed((*args, *keywords.values()))
    for gradient in found.gradients:
        gradient.lost = True
    return replace(found, foreign=True)


def operation(node: ast.BinOp, left: Value, right: Value) -> Value:
    """``left + right`` and the other operators of arithmetic."""
    if isinstance(left, Items) and isinstance(right, Items) and isinstance(node.op, ast.Add):
        return Items((*left.items, *right.items))
    found = mixed((left, right))
    a, b = _array(left), _array(right)
    if isinstance(node.op, ast.Sub):
        for gradient in b.gradients - a.gradients:
            gradient.updates.append(node)
    if isinstance(node.op, ast.Div):
        for gradient in a.gradients:
            gradient.divided = True
        if a.total and b.total and b.mask and b.shares and b.mask in a.masked:
            return replace(found, ratio=node)
    elif found.counted:
        for gradient in found.gradients:
            gradient.divided = True
    if isinstance(node.op, ast.Mult):
        masks = {each.mask for each in (a, b) if each.mask and not each.total}
        found = replace(found, masked=found.masked | masks)
        if a.mask and b.mask:
            found = replace(found, mask=a.mask)
    if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        for one, other in ((a, b), (b, a)):
            if other.shares:
                continue
            if one.mask and not isinstance(node.op, ast.Mult):
                found = replace(found, mask=one.mask, total=one.total)
            if one.ratio is not None:
                found = replace(found, ratio=one.ratio)
    return found


def _array(value: Value) -> Array:
    return value if isinstance(value, Array) else mixed((value,))


def _leaf(tree: Value) -> Value:
    """What a function of ``jax.tree.map`` is given of a tree."""
    if isinstance(tree, Items) and tree.items:
        found = tree.items[0]
        for other in tree.items[1:]:
            found = joined(found, other)
        return found
    return tree if isinstance(tree, Array) else part(tree, UNKNOWN)


def _same(value: Value) -> Value:
    return value if isinstance(value, Array) else mixed((value,))


def _total(value: Value, where: Value | None) -> Value:
    """The sum of all elements."""
    array = _array(value)
    masked = array.masked
    if array.mask:
        masked |= {array.mask}
    if isinstance(where, Array) and where.mask:
        masked |= {where.mask}
    return replace(mixed((array,)), total=True, mask=array.mask, masked=masked)


def _bounded(name: str, args: tuple[Value, ...]) -> Value:
    """``maximum(count, 1)`` is still that count; ``where(mask, x, 0)`` is `x` under a mask."""
    arrays = [_array(each) for each in args]
    found = mixed(args)
    if name in ("jax.numpy.where", "jax.lax.select") and len(args) == 3:
        test, *choices = arrays
        if test.mask and not any(choice.shares for choice in choices):
            return replace(found, mask=test.mask)
        ratios = [choice for choice in choices if choice.ratio is not None]
        if len(ratios) == 1 and all(choice is ratios[0] or not choice.shares for choice in choices):
            return replace(found, ratio=ratios[0].ratio)
        return replace(found, masked=found.masked | {test.mask}) if test.mask else found
    first, *rest = arrays
    if name == "jax.numpy.maximum" and rest and not first.shares:
        first, rest = rest[0], [first]
    if first.shares and not any(each.shares for each in rest):
        return replace(found, mask=first.mask, total=first.total)
    return found


def _update(given: tuple[Value, ...], node: ast.Call) -> None:
    for value in given:
        for array in leaves(value):
            if array.is_gradient:
                for gradient in array.gradients:
                    gradient.updates.append(node)


def _gradient_of(
    flow: Evaluation, name: str, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
) -> Value:
    if not args:
        return Partial(Named(name), (), keywords) if keywords else UNKNOWN
    given = args[1] if len(args) > 1 else keywords.get("argnums", Constant(0))
    argnums: tuple[int, ...] | None = None
    if isinstance(given, Constant) and isinstance(given.value, int):
        argnums = (given.value,)
    elif isinstance(given, Items):
        numbers = [each.value for each in given.items if isinstance(each, Constant)]
        integers = [number for number in numbers if isinstance(number, int)]
        argnums = tuple(integers) if len(integers) == len(given.items) else None
    aux = keywords.get("has_aux", Constant(False))
    has_aux = aux != Constant(False)
    return GradientOf(args[0], "value_and_grad" in name, has_aux, argnums, isinstance(given, Items))


def _collective(
    flow: Evaluation, name: str, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
) -> Value:
    short = name.rpartition(".")[2]
    axis = keywords.get("axis_name")
    if axis is None and len(args) > COLLECTIVES[name]:
        axis = args[COLLECTIVES[name]]
    if short in ("axis_index", "axis_size"):
        return Array(shares=frozenset({"axis_index"}) if short == "axis_index" else frozenset(), counted=True)
    value = args[0] if args else keywords.get("x", UNKNOWN)
    literal = axis.value if isinstance(axis, Constant) else None
    if flow.axis is not None and literal is not None and literal != flow.axis:
        return mixed((value,))  # over an axis of `vmap`, or another one of the mesh
    flow.events.reductions.append(Reduction(node, short, literal, value))
    for array in leaves(value):
        for gradient in array.gradients:
            gradient.synced.add(name)
    return _reduced(value, node if name in REDUCTIONS else None)


def _reduced(value: Value, node: ast.Call | None) -> Value:
    """What is the same on all devices after a collective: no longer of any share."""
    if isinstance(value, Items):
        return Items(tuple(_reduced(each, node) for each in value.items))
    if isinstance(value, Fields):
        return Fields(tuple((key, _reduced(each, node)) for key, each in value.items))
    if isinstance(value, Same):
        return Same(_reduced(value.element, node))
    array = _array(value)
    is_count = isinstance(value, Constant)
    return Array(
        shapes=array.shapes,
        gradients=array.gradients,
        reduced=node,
        counted=array.counted or is_count,
        is_gradient=array.is_gradient,
    )


def _control(
    flow: Evaluation, name: str, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
) -> Value | None:
    """Loops and branches of jax, whose bodies are run once."""
    short = name.removeprefix("jax.lax.")
    if short == "scan" and len(args) >= 2:
        xs = args[2] if len(args) > 2 else keywords.get("xs", Constant(None))
        return flow.call(args[0], (args[1], part(xs, UNKNOWN)), {}, node)
    if short == "fori_loop" and len(args) == 4:
        return flow.call(args[2], (UNKNOWN, args[3]), {}, node)
    if short == "while_loop" and len(args) == 3:
        return flow.call(args[1], (args[2],), {}, node)
    if short == "cond" and len(args) >= 3:
        return joined(flow.call(args[1], args[3:], {}, node), flow.call(args[2], args[3:], {}, node))
    if short == "switch" and len(args) >= 2 and isinstance(args[1], Items) and args[1].items:
        return flow.call(Either(args[1].items), args[2:], {}, node)
    return None


def _random(
    flow: Evaluation, name: str, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
) -> Value:
    key = _array(args[0] if args else keywords.get("key", UNKNOWN))
    rest = mixed((*args[1:], *(value for word, value in keywords.items() if word != "key")))
    if name in _KEYS:
        same = key.key if not rest.shares else ""
        return Array(key=same, shares=key.shares | rest.shares)
    if name.rpartition(".")[2] in _DRAWS and key.key and (rest.shares or rest.shapes):
        flow.events.draws.append(Draw(node, key.key))
    return mixed((key, rest))


def _dropout(flow: Evaluation, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call) -> None:
    """A layer of another module that is given data and a key: ``rngs={"dropout": key}``, ``key=key``."""
    rngs = keywords.get("rngs")
    keys = [value for kind, value in rngs.items if kind == "dropout"] if isinstance(rngs, Fields) else []
    if "key" in keywords:
        keys.append(keywords["key"])
    given = mixed((*args, *(value for word, value in keywords.items() if word not in ("rngs", "key"))))
    for key in keys:
        if isinstance(key, Array) and key.key and given.shares:
            flow.events.draws.append(Draw(node, key.key))
