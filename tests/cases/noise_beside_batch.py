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


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


def replicate(tree):
    """`tree` whole on every device, where results are too: a call that gets these back compiles nothing anew."""
    whole = sharding()
    if all(getattr(leaf, "sharding", None) == whole for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.device_put(tree, whole)


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"real": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"critic_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(real):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"real{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, real)


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"critic_step: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def critic_step(w, g, real, key):
    return p_critic_step(replicate(w), g, shard(real), replicate(key))
