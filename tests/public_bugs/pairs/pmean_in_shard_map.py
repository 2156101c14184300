"""A body of pmap, with the pmean of its gradients, put into shard_map.

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
    x = random.normal(size=(24, 3)).astype(np.float32)
    y = random.normal(size=24).astype(np.float32)
    return random.normal(size=3).astype(np.float32), x, y


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def reference(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    return w - 0.1 * grad, loss


def body(w, x, y):
    def total(w):
        return jax.lax.pmean(loss_fn(w, x, y), "batch")

    loss, grad = jax.value_and_grad(total)(w)
    return w - 0.1 * grad, loss


right = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(), P("batch"), P("batch")), out_specs=(P(), P())))


# wrong
def body_of_pmap(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    loss, grad = jax.lax.pmean((loss, grad), "batch")
    return w - 0.1 * grad, loss


wrong = jax.jit(
    jax.shard_map(body_of_pmap, mesh=mesh, in_specs=(P(), P("batch"), P("batch")), out_specs=(P(), P()))
)
