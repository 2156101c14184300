"""What JP108 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("data",))


@jax.pmap
def step(x):
    return 2 * x


def run(x):
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    return step(x)
""",
)
VALID = (
    """\
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("batch",))
step = jax.pmap(lambda x: 2 * x, axis_name="batch")


def run(x):
    x = jax.device_put(x, NamedSharding(mesh, P("batch")))
    with jax.set_mesh(jax.make_mesh((8,), ("other",))):
        y = jax.jit(lambda a: a + 1)(x)
    return step(x), y
""",
)
