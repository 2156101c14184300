"""Gradients for each example in shard_map, of weights that all devices hold.

source: https://github.com/jax-ml/jax/issues/36886
class: gradients are summed by shard_map already
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("batch",))


def inputs(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=3).astype(np.float32), random.normal(size=(24, 3)).astype(np.float32)


def net(w, x):
    return jnp.tanh(w @ x)


def reference(w, x):
    return jax.vmap(jax.grad(net), in_axes=(None, 0))(w, x)


def body(w, x):
    return jax.vmap(jax.grad(net), in_axes=(None, 0))(w, x)


right = jax.jit(
    jax.shard_map(body, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P("batch"), check_vma=False)
)

# wrong
wrong = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P("batch")))
