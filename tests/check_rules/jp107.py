"""What JP107 finds and what it leaves alone, besides its own example."""

INVALID = (
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
