# flags: gen critic_step --inputs this::inputs
"""Noise with the number of rows of the batch, which is a constant: each device has its rows of both."""

import jax
import jax.numpy as jnp
import numpy as np

BATCH, LATENT = 24, 4


def generate(g, z):
    return jnp.tanh(z @ g)


def critic_step(w, g, real, key):
    key, noise_key = jax.random.split(key)
    fake = generate(g, jax.random.normal(noise_key, (BATCH, LATENT)))

    def loss(w):
        return jnp.mean(jax.nn.softplus(-(real @ w))) + jnp.mean(jax.nn.softplus(fake @ w))

    value, slope = jax.value_and_grad(loss)(w)
    return w - 0.1 * slope, key, value


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return draw(6), draw(4, 6), draw(24, 6), jax.random.key(seed)
# output
"""Data-parallel `critic_step`: same call and same results as noise_beside_batch.py::critic_step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from noise_beside_batch import BATCH, LATENT, generate

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, 0, None), out_axes=None
)
def p_critic_step(w, g, real, key):
    """`critic_step` on one device's share; `real` leaves are (devices, per_device, ...)."""
    key, noise_key = jax.random.split(key)
    fake = generate(g, own_share(jax.random.normal(noise_key, (BATCH, LATENT))))

    def loss(w):
        return jnp.mean(jax.nn.softplus(-(real @ w))) + jnp.mean(
            jax.nn.softplus(fake @ w)
        )

    value, slope = jax.value_and_grad(loss)(w)
    value, slope = jax.lax.pmean((value, slope), axis_name=AXIS)
    return w - 0.1 * slope, key, value


def shard(real):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(real):
        name = f"real{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"critic_step: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"critic_step: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    real = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), real
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(real, sharding)


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"critic_step: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AXIS) * size, size, axis)


def critic_step(w, g, real, key):
    return p_critic_step(w, g, shard(real), key)
