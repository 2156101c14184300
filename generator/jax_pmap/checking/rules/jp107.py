"""JP107: what jax no longer has."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.removed import uses
from jax_pmap.checking.rule import rule

INVALID = (
    """\
import jax


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())
""",
    """\
from jax.experimental import maps

mesh = maps.Mesh([[0]], ("x", "y"))
""",
    """\
from jax.experimental.maps import xmap
""",
    """\
from jax.experimental.maps import Mesh as M
""",
    """\
import jax
import jax.numpy as jnp

kind = jax.sharding.PmapSharding.default((8, 2))
""",
    """\
from jax.interpreters import pxla


def is_pmap(equation):
    return equation.primitive is pxla.xla_pmap_p
""",
    """\
import jax

jax.config.update("jax_pmap_shmap_merge", False)
step = jax.pmap(lambda x: 2 * x)
""",
    """\
from jax import config

config.jax_pmap_no_rank_reduction = True
""",
    """\
import functools

import jax
from jax.sharding import PartitionSpec as P
from mine import mesh


@functools.partial(jax.shard_map, mesh=mesh, in_specs=P("i"), out_specs=P(), check_rep=False)
def total(x):
    return jax.lax.psum(x, "i")
""",
    """\
import jax
from jax.sharding import PartitionSpec as P
from mine import body, mesh

step = jax.shard_map(body, mesh, P("i"), P())
""",
    """\
import jax


def varying(x):
    return jax.typeof(x).vma
""",
    """\
import jax.tree_util
from jax import lax, tree_map


def average(tree):
    return tree_map(lambda x: lax.pmean(x, "i"), tree)
""",
    """\
import jax.experimental.host_callback as hcb
""",
)
VALID = (
    """\
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicate(tree):
    mesh = Mesh(np.array(jax.local_devices()), ("batch",))
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
""",
    """\
import jax

if hasattr(jax, "device_put_replicated"):
    put = jax.device_put_replicated
try:
    from jax.experimental.maps import Mesh
except ImportError:
    from jax.sharding import Mesh
if jax.__version_info__ < (0, 10):
    jax.config.update("jax_pmap_shmap_merge", False)
try:
    jax.config.update("jax_pmap_no_rank_reduction", False)
except AttributeError:
    pass
""",
    """\
import contextlib

import jax

with contextlib.suppress(AttributeError):
    jax.config.update("jax_pmap_shmap_merge", False)
jax.config.update("jax_threefry_partitionable", True)
""",
    """\
class Mine:
    device_put_replicated = None
    config = None


jax = Mine()
jax.device_put_replicated
jax.config.update("jax_pmap_shmap_merge", False)
""",
    """\
import jax
from jax.sharding import PartitionSpec as P
from mine import body, mesh

step = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False)


def average(tree):
    return jax.tree.map(lambda x: jax.lax.pmean(x, "i"), tree)
""",
)


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
    invalid=INVALID,
    valid=VALID,
)
DIAGNOSTIC = RULE.diagnostic
