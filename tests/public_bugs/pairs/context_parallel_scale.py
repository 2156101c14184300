"""The loss is scaled by the devices of one mesh axis, and averaged over those of both.

source: https://github.com/NVIDIA/Megatron-LM/issues/906
class: scaled by the number of devices
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

#: Examples over the first axis, the tokens of an example over the second.
mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "context"))
BOTH = ("data", "context")
SPEC = P("data", "context")


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(24, 4, 3)).astype(np.float32)
    return random.normal(size=3).astype(np.float32), x, random.normal(size=(24, 4)).astype(np.float32)


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def reference(w, x, y):
    return w - 0.1 * jax.grad(loss_fn)(w, x, y)


def body(w, x, y):
    return w - 0.1 * jax.lax.pmean(jax.grad(loss_fn)(w, x, y), BOTH)


def mapped(body):
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(), SPEC, SPEC), out_specs=P(), check_vma=False))


right = mapped(body)


# wrong
def scaled(w, x, y):
    parts = jax.lax.psum(1, "context")
    grad = jax.grad(lambda w: loss_fn(w, x, y) * parts)(w)
    return w - 0.1 * jax.lax.pmean(grad, BOTH)


wrong = mapped(scaled)
