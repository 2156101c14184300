"""Each device holds a part of the weights, and the norms of the parts are averaged.

source: https://github.com/deepspeedai/DeepSpeed/issues/8469
class: clipping by another norm
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


def reference(w, grad):
    return w - grad * jnp.minimum(1.0, 0.1 / jnp.sqrt(jnp.sum(grad**2)))


def body(w, grad):
    norm = jnp.sqrt(jax.lax.psum(jnp.sum(grad**2), "batch"))
    return w - grad * jnp.minimum(1.0, 0.1 / norm)


right = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("batch"), out_specs=P("batch")))


# wrong
def averaged(w, grad):
    norm = jax.lax.pmean(jnp.sqrt(jnp.sum(grad**2)), "batch")
    return w - grad * jnp.minimum(1.0, 0.1 / norm)


wrong = jax.jit(jax.shard_map(averaged, mesh=mesh, in_specs=P("batch"), out_specs=P("batch")))
