"""JP106: one key for all devices."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Function, Module, names_in, parameters
from jax_pmap.checking.rule import Rule, diagnostic

INVALID = (
    """\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def add_noise(key, x):
    return x + jax.random.normal(key, x.shape)
""",
    """\
import jax
from jax import random

key = random.PRNGKey(0)


@jax.pmap
def drop(x):
    mask = random.bernoulli(key, 0.5, x.shape)
    return x * mask
""",
    """\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, None))
def train_step(params, x, rng):
    return model.apply(params, x, rngs={"dropout": rng})
""",
)
VALID = (
    """\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def add_noise(key, x):
    key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
    return x + jax.random.normal(key, x.shape)
""",
    """\
import jax


@jax.pmap
def one_key_per_device(key, x):
    return x + jax.random.normal(key, x.shape)


def parameters_are_the_same_everywhere(key):
    return jax.random.normal(key, (8, 8))


init = jax.pmap(parameters_are_the_same_everywhere, in_axes=None, axis_size=8)
""",
)

_DRAWS = (
    "bernoulli",
    "normal",
    "uniform",
    "randint",
    "categorical",
    "gumbel",
    "truncated_normal",
    "permutation",
)


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Draws in the shape of a device's share from a key that is the same on all devices."""
    for mapping in mappings.pmaps:
        if mapping.function is None or mapping.function.bound or not mapping.is_jax_pmap:
            continue
        function = mapping.function.node
        if any(
            collective.name == "axis_index"
            for node in mappings.reachable(function)
            for collective in mappings.collectives(node)
        ):
            continue
        whole, split = _parameters(module, mapping, function)
        for call in module.calls(function):
            key = _key_of(module, call, split)
            if key is None or not _is_shared(module, key, whole, function):
                continue
            yield module.finding(
                "JP106",
                call,
                f"`{key.id}` is the same key on all devices: every device draws the same numbers for its "
                "share",
                f'Make it differ: `{key.id} = jax.random.fold_in({key.id}, jax.lax.axis_index("'
                f'{mapping.axis if isinstance(mapping.axis, str) else "batch"}"))`',
            )


def _parameters(module: Module, mapping: Mapping, function: Function) -> tuple[set[str], set[str]]:
    """Names of the parameters that every device gets whole, and of those that are split."""
    names = parameters(function)
    node = mapping.application.argument(99, "in_axes")
    axes = module.constant(node) if node is not None else 0
    if isinstance(axes, tuple) and len(axes) == len(names):
        whole = {name for name, axis in zip(names, axes, strict=True) if axis is None}
        split = {name for name, axis in zip(names, axes, strict=True) if isinstance(axis, int)}
        return whole, split
    return (set(), set(names)) if isinstance(axes, int) else (set(), set())


def _key_of(module: Module, call: ast.Call, split: set[str]) -> ast.Name | None:
    """The key of a draw whose shape is that of a split argument, or of a dropout layer."""
    name = module.qualname(call.func) or ""
    if name.startswith("jax.random.") and name.rpartition(".")[2] in _DRAWS and call.args:
        rest = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
        used = set().union(*(names_in(each) for each in rest)) if rest else set()
        return call.args[0] if isinstance(call.args[0], ast.Name) and used & split else None
    for keyword in call.keywords:
        if keyword.arg == "rngs" and isinstance(keyword.value, ast.Dict):
            for kind, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                given = set().union(*(names_in(each) for each in call.args)) if call.args else set()
                if module.constant(kind) == "dropout" and isinstance(value, ast.Name) and given & split:
                    return value
    return None


def _is_shared(module: Module, key: ast.Name, whole: set[str], function: Function) -> bool:
    """Whether `key` is an argument given whole, or made outside the mapped function, and used as it is."""
    found = module.bindings(key) or []
    if len(found) != 1:
        return False
    if found[0].kind == "param":
        return key.id in whole and module.scopes[key].node is function
    made = found[0].value
    inside = made is not None and function in module.ancestors(made)
    return (
        not inside
        and isinstance(made, ast.Call)
        and (module.qualname(made.func) or "")
        in ("jax.random.PRNGKey", "jax.random.split", "jax.random.fold_in")
    )


RULE = Rule(
    diagnostic(
        "JP106",
        "same random key on every device",
        meaning="A mapped function draws noise for its share of the batch from a key that all devices share.",
        why=(
            "Each device then draws the same numbers: the same dropout mask, the same noise, N times over. "
            "Nothing fails; the randomness is just less than it looks."
        ),
        cure="Fold the device's index into the key, or give every device a key of its own.",
        invalid=INVALID[0],
        valid=VALID[0],
    ),
    find,
    VALID,
    INVALID,
)
DIAGNOSTIC = RULE.diagnostic
