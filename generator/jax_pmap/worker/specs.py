"""Example values from specs (JSON; the generator's `inputs.spec` documents them)."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .leaves import is_key

#: Of the values that are made where nobody gave any.
SEED = 20260

Spec = dict[str, Any]
#: Makes the value of an array or key leaf from its spec and its path.
MakeLeaf = Callable[[Spec, str], Any]


def materialize(spec: Spec, seed: int, namespace: Mapping[str, Any]) -> Any:
    """One argument in generic position; `python` expressions are evaluated in `namespace`."""
    return build(spec, namespace, lambda leaf, path: make_leaf(leaf, generator(seed, path)), "")


def materialize_arguments(
    specs: Mapping[str, Spec], seed: int, namespace: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments by name; `python` expressions see the other arguments. Defaults are left out."""
    return build_arguments(specs, namespace, lambda leaf, path: make_leaf(leaf, generator(seed, path)))


def build_arguments(
    specs: Mapping[str, Spec], namespace: Mapping[str, Any], leaf: MakeLeaf
) -> dict[str, Any]:
    """Containers and scalars by name, with `leaf` called for every array and key."""
    late = [name for name, spec in specs.items() if contains_expression(spec)]
    values = {
        name: build(spec, namespace, leaf, name)
        for name, spec in specs.items()
        if name not in late and spec["kind"] != "default"
    }
    # An expression may use another one (`tx.init(params)` where params is `model.init(…)`).
    for _ in range(len(late)):
        for name in [name for name in late if name not in values]:
            others = [other for other in late if other not in values and other != name]
            if not any(mentions(specs[name], other) for other in others):
                values[name] = build(specs[name], {**namespace, **values}, leaf, name)
    for name in late:
        if name not in values:
            values[name] = build(specs[name], {**namespace, **values}, leaf, name)
    return {name: values[name] for name in specs if name in values}


def build(spec: Spec, namespace: Mapping[str, Any], leaf: MakeLeaf, path: str) -> Any:
    """One value, with `leaf` called for every array and key."""
    kind = spec["kind"]
    if kind == "dict":
        return {name: build(item, namespace, leaf, f"{path}[{name!r}]") for name, item in spec["items"]}
    if kind in ("tuple", "list"):
        items = [build(item, namespace, leaf, f"{path}[{i}]") for i, item in enumerate(spec["items"])]
        return tuple(items) if kind == "tuple" else items
    if kind == "object":
        fields = {name: build(item, namespace, leaf, f"{path}.{name}") for name, item in spec["items"]}
        return evaluate(spec["type"], namespace)(**fields)
    if kind == "scalar":
        return spec["value"]
    if kind == "literal":
        return evaluate(spec["value"], {})
    if kind == "python":
        return evaluate(spec["expr"], namespace)
    return leaf(spec, path)


def evaluate(expression: str, namespace: Mapping[str, Any]) -> Any:
    """An expression in the user's module, where `jax`, `jnp` and `np` are always known."""
    return eval(expression, {"jax": jax, "jnp": jnp, "np": np, **namespace})


def contains_expression(spec: Spec) -> bool:
    """Whether a `python` expression is anywhere in the spec."""
    return spec["kind"] == "python" or any(contains_expression(item) for item in children(spec))


def children(spec: Spec) -> list[Spec]:
    """Specs directly inside a container."""
    if spec["kind"] in ("dict", "object"):
        return [item for _, item in spec["items"]]
    return list(spec["items"]) if spec["kind"] in ("tuple", "list") else []


def mentions(spec: Spec, name: str) -> bool:
    """Whether an expression in the spec uses `name`."""
    if spec["kind"] == "python":
        return name in compile(spec["expr"], "<spec>", "eval").co_names
    return any(mentions(item, name) for item in children(spec))


def generator(seed: int, path: str) -> np.random.Generator:
    """Random numbers of one leaf: they depend on its path, not on the leaves before it."""
    return np.random.default_rng([seed, zlib.crc32(path.encode())])


def abstract(spec: Spec) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array or key leaf."""
    if spec["kind"] == "key":
        made: jax.ShapeDtypeStruct = jax.eval_shape(lambda: make_key(spec, np.random.default_rng(0)))
        return made
    return jax.ShapeDtypeStruct(tuple(spec["shape"]), jax.dtypes.canonicalize_dtype(jnp.dtype(spec["dtype"])))


def make_leaf(spec: Spec, random: np.random.Generator) -> Any:
    """An array or a key with values in generic position."""
    if spec["kind"] == "key":
        return make_key(spec, random)
    shape: tuple[int, ...] = tuple(spec["shape"])
    dtype = np.dtype(jnp.dtype(spec["dtype"]))
    if spec.get("mask") or dtype.kind == "b":
        return both_values(random, shape).astype(dtype)
    low, high = spec.get("low"), spec.get("high")
    if dtype.kind in "iu":
        low = 0 if low is None else low
        return random.integers(low, integer_bound(dtype, low) if high is None else high, shape).astype(dtype)
    if dtype.kind == "c":
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
    if low is not None and high is not None:
        made = random.uniform(low, high, shape)
    else:
        made = random.standard_normal(shape)
        if low is not None:
            # Off the bound: a logarithm or a division there would swamp every other error.
            made = low + 0.1 + abs(made)
        elif high is not None:
            made = high - 0.1 - abs(made)
    return np.asarray(made).astype(dtype)


def drawn(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name with arrays for what is a shape among them: small positive numbers, as some are of.

    An optimiser takes roots of what it holds, and a net of many layers of large numbers overflows.
    """

    def one(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        random = generator(SEED, path)
        if is_key(leaf):
            key = jax.random.key(int(random.integers(2**31)), impl=leaf.dtype._impl.name)
            return jax.random.split(key, leaf.shape) if leaf.shape else key
        array = make_leaf({"kind": "array", "shape": leaf.shape, "dtype": str(leaf.dtype)}, random)
        return (0.1 * abs(array)).astype(array.dtype) if array.dtype.kind == "f" else array

    return {
        name: jax.tree_util.tree_map_with_path(
            lambda path, leaf, name=name: one(name + jax.tree_util.keystr(path), leaf), value
        )
        for name, value in values.items()
    }


def integer_bound(dtype: np.dtype, low: int) -> int:
    """Upper bound of integers nobody bounded: small, but bytes are pixels."""
    return 256 if dtype == np.uint8 else low + 10


def both_values(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Zeros and ones, three quarters of them ones, at least one of each where there is room."""
    flat = random.random(int(np.prod(shape))) < 0.75
    if flat.size > 1 and flat.all() | ~flat.any():
        flat[random.integers(flat.size)] ^= True
    return flat.reshape(shape)


def make_key(spec: Spec, random: np.random.Generator) -> Any:
    """A key, or an array of keys when the spec has a shape."""
    make = jax.random.key if spec["typed"] else jax.random.PRNGKey
    key = make(int(random.integers(2**31)))
    shape = tuple(spec.get("shape", ()))
    return jax.random.split(key, shape) if shape else key
