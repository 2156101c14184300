"""JP106: one key for all devices."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import rule
from jax_pmap.syntax.scopes import Function

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
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.function is None or _tells_devices_apart(mappings, mapping.function.node):
            continue
        axis = mapping.axis if isinstance(mapping.axis, str) else "batch"
        unnamed = mapping.axis is None
        for draw in events(mappings, mapping).draws:
            if draw.call in seen:
                continue
            seen.add(draw.call)
            yield module.finding(
                "JP106",
                draw.call,
                f"`{draw.key}` is the same key on all devices: every device draws the same numbers for its "
                "share",
                (f'Give the map an axis to name, `axis_name="{axis}"`. ' if unnamed else "")
                + f"Make it differ: `{draw.key} = jax.random.fold_in({draw.key}, "
                f'jax.lax.axis_index("{axis}"))`',
            )


def _tells_devices_apart(mappings: Mappings, function: Function) -> bool:
    return any(
        collective.name == "axis_index"
        for node in mappings.reachable(function)
        for collective in mappings.collectives(node)
    )


RULE = rule(
    "JP106",
    "same random key on every device",
    find,
    meaning="A mapped function draws noise for its share of the batch from a key that all devices share.",
    why=(
        "Each device then draws the same numbers: the same dropout mask, the same noise, N times over. "
        "Nothing fails; the randomness is just less than it looks."
    ),
    cure="Fold the device's index into the key, or give every device a key of its own.",
    example="""\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def add_noise(key, x):
    return x + jax.random.normal(key, x.shape)
""",
    fixed="""\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def add_noise(key, x):
    key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
    return x + jax.random.normal(key, x.shape)
""",
)
DIAGNOSTIC = RULE.diagnostic
