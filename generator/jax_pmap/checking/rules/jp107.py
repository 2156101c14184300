"""JP107: what jax no longer has."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.removed import uses
from jax_pmap.checking.rule import rule


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Names, parameters and options that are gone, where the code does not ask whether they are there."""
    for use in uses(module):
        if use.removal.gone:
            yield module.finding("JP107", use.node, use.message, use.hint, use.edits)


RULE = rule(
    "JP107",
    "removed from jax",
    find,
    meaning="The code uses what current versions of jax no longer have: a name, a parameter, an option.",
    why="It is an `AttributeError`, `ImportError` or `TypeError` as soon as jax is upgraded.",
    cure=(
        "Each finding names the version and what to write instead; `--fix` writes it where a name has a "
        "new one. Code that asks first (`hasattr`, `try`, a version) is left alone."
    ),
    example="""\
import jax


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())
""",
    fixed="""\
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicate(tree):
    mesh = Mesh(np.array(jax.local_devices()), ("batch",))
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
""",
)
DIAGNOSTIC = RULE.diagnostic
