"""The average of sharded weights is updated in a gathered copy, which is dropped.

source: https://github.com/OpenRLHF/OpenRLHF/pull/1357
class: an update is lost
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("batch",))


def inputs(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=24).astype(np.float32), random.normal(size=24).astype(np.float32)


def reference(average, w):
    average = 0.9 * average + 0.1 * w
    return average, jnp.sum((average - w) ** 2)


def body(average, w):
    average = 0.9 * average + 0.1 * w
    return average, jax.lax.psum(jnp.sum((average - w) ** 2), "batch")


right = jax.jit(
    jax.shard_map(body, mesh=mesh, in_specs=(P("batch"), P("batch")), out_specs=(P("batch"), P()))
)


# wrong
def dropped(average, w):
    whole, weights = jax.lax.all_gather((average, w), "batch", tiled=True)
    whole = 0.9 * whole + 0.1 * weights
    return average, jnp.sum((whole - weights) ** 2)


wrong = jax.jit(
    jax.shard_map(
        dropped,
        mesh=mesh,
        in_specs=(P("batch"), P("batch")),
        out_specs=(P("batch"), P()),
        check_vma=False,
    )
)
