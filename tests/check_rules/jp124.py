"""What JP124 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax
import numpy as np
from jax.sharding import Mesh

mesh = Mesh(np.array(jax.devices()), ("data",))
step = jax.jit(lambda x: 2 * x)


def run(x):
    with mesh:
        return step(x)
""",
    """\
import jax

step = jax.pmap(lambda x: 2 * x)


def run(x):
    with jax.make_mesh((8,), ("data",)):
        return step(x)
""",
    """\
import jax
from jax.experimental import mesh_utils
from jax.experimental.pjit import pjit

step = pjit(lambda x: jax.lax.psum(x, "i"))
""",
    """\
from jax.interpreters import pxla

mesh = pxla.thread_resources.env.physical_mesh
""",
)
VALID = (
    """\
import jax
import numpy as np
from jax.sharding import Mesh

mesh = Mesh(np.array(jax.devices()), ("data",))
step = jax.jit(lambda x: 2 * x)


def run(x, lock):
    with jax.set_mesh(mesh), lock:
        return step(x)
""",
    """\
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map
from jax.sharding import PartitionSpec as P
from mine import body, mesh

step = shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P())
""",
)
