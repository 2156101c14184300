# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
import optax


def step(w, x, key):
    """Times in strata, noise with its negative, and a half of each label, for the rows of the whole batch."""
    n = x.shape[0]
    start, noisy = jax.random.split(key)
    times = jnp.mod(jax.random.uniform(start) + jnp.arange(0.0, 1.0, step=1 / n), 1.0)
    rate = jnp.exp(-times)[:, None]
    half = jax.random.normal(noisy, (n // 2, x.shape[1]))
    noise = jnp.concatenate([half, -half])
    labels = jnp.concatenate([jnp.zeros(n // 2), jnp.ones(n // 2)])
    group = jnp.tile(jnp.arange(n // 2), 2)

    def loss_fn(w):
        scores = (rate * x + (1 - rate) * noise) @ w + jnp.sin(times)
        return jnp.mean(jnp.cos(group) * optax.sigmoid_binary_cross_entropy(scores, labels))

    return w - 0.1 * jax.grad(loss_fn)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=3).astype("float32"), rng.normal(size=(48, 3)).astype("float32"), jax.random.key(1)
# output
"""Data-parallel `step`: same call and same results as numbers_for_all_rows.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, None), out_axes=None)
def p_step(w, x, key):
    """`step` on one device's share; `x` leaves are (devices, per_device, ...)."""
    n = x.shape[0]
    start, noisy = jax.random.split(key)
    total_n = jax.lax.psum(n, axis_name=AXIS)
    times = jnp.mod(
        jax.random.uniform(start) + own_share(jnp.arange(0.0, 1.0, step=1 / total_n)),
        1.0,
    )
    rate = jnp.exp(-times)[:, None]
    half = jax.random.normal(noisy, (total_n // 2, x.shape[1]))
    noise = own_share(jnp.concatenate([half, -half]))
    labels = own_share(
        jnp.concatenate([jnp.zeros(total_n // 2), jnp.ones(total_n // 2)])
    )
    group = own_share(jnp.tile(jnp.arange(total_n // 2), 2))

    def loss_fn(w):
        scores = (rate * x + (1 - rate) * noise) @ w + jnp.sin(times)
        return jnp.mean(
            jnp.cos(group) * optax.sigmoid_binary_cross_entropy(scores, labels)
        )

    return w - 0.1 * jax.lax.pmean(jax.grad(loss_fn)(w), axis_name=AXIS)


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
PROVED = {"x": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"x{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, x)


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"step: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def step(w, x, key):
    """Times in strata, noise with its negative, and a half of each label, for the rows of the whole batch."""
    return p_step(replicate(w), shard(x), key)
