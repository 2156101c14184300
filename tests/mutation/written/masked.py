"""A masked sequence loss under shard_map: sums and counts are added up before they are divided."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def logits_of(table, tokens):
    return jnp.tanh(table[tokens]) @ table.T


def loss_fn(table, tokens, targets, mask):
    logp = jax.nn.log_softmax(logits_of(table, tokens))
    picked = jnp.take_along_axis(logp, targets[..., None], -1)[..., 0]
    return -jnp.sum(picked * mask) / jnp.sum(mask)


def step(table, tokens, targets, mask):
    loss, grads = jax.value_and_grad(loss_fn)(table, tokens, targets, mask)
    return table - 0.5 * grads, loss


def inputs(seed=0):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 7, (24, 5))
    mask = (np.arange(5) < random.integers(1, 6, (24, 1))).astype(np.float32)
    return random.normal(size=(7, 3)).astype(np.float32), tokens, np.roll(tokens, -1, 1), mask


# parallel: sharded_step
def total(table, tokens, targets, mask):
    logp = jax.nn.log_softmax(logits_of(table, tokens))
    picked = jnp.take_along_axis(logp, targets[..., None], -1)[..., 0]
    return -jnp.sum(picked * mask)


def per_device(table, tokens, targets, mask):
    loss, grads = jax.value_and_grad(total)(table, tokens, targets, mask)
    count = jax.lax.psum(jnp.sum(mask), "data")
    grads = jax.lax.psum(grads, "data") / count
    loss = jax.lax.psum(loss, "data") / count
    return table - 0.5 * grads, loss


mesh = Mesh(np.array(jax.devices()), ("data",))
mapped = jax.shard_map(
    per_device,
    mesh=mesh,
    in_specs=(P(), P("data"), P("data"), P("data")),
    out_specs=(P(), P()),
    check_vma=False,
)
sharded_step = jax.jit(mapped)
