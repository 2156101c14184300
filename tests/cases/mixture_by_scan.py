# flags: gen fit --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def fit(model, x):
    """Four steps of expectation maximisation for a mixture of normal distributions."""

    def step(model, _):
        means, log_weights = model
        log_p = -0.5 * (x[:, None] - means) ** 2 + log_weights
        shares = jax.nn.softmax(log_p, axis=-1)
        counts = shares.sum(axis=0)
        means = (shares * x[:, None]).sum(axis=0) / counts
        fit = jax.scipy.special.logsumexp(log_p, axis=-1).mean()
        return (means, jnp.log(counts / x.shape[0])), fit

    model, fits = jax.lax.scan(step, model, None, length=4)
    spread = jax.vmap(lambda mean: jnp.sqrt(jnp.mean((x - mean) ** 2)))(model[0])

    def pulled(x):
        def move(carry, _):
            near, centre, level = carry
            level = -jax.nn.logsumexp(near - x, axis=0)
            near = jnp.tanh(centre - x) + level
            centre = jnp.mean(near)
            return (near, centre, level), None

        start = jnp.zeros(x.shape[0]), jnp.zeros(()), jnp.zeros(())
        (_, centre, level), _ = jax.lax.scan(move, start, None, length=3)
        return jnp.sum(jnp.exp(centre + level - x))

    moved = jax.lax.fori_loop(0, 2, lambda i, m: m - jnp.tanh(jnp.mean(x) * m[0]), model[0])
    return moved, fits, spread, jax.grad(pulled)(x)


def inputs(seed):
    rng = np.random.default_rng(seed)
    model = rng.normal(size=3).astype("float32"), np.log(np.full(3, 1 / 3, "float32"))
    return model, rng.normal(size=48).astype("float32")
# output
"""Data-parallel `fit`: same call and same results as mixture_by_scan.py::fit, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=(None, None, None, 0)
)
def p_fit(model, x):
    """`fit` on one device's share; `x` leaves are (devices, per_device, ...)."""

    def step(model, _):
        means, log_weights = model
        log_p = -0.5 * (x[:, None] - means) ** 2 + log_weights
        shares = jax.nn.softmax(log_p, axis=-1)
        counts = shares.sum(axis=0)
        counts = jax.lax.psum(counts, axis_name=AXIS)
        means = jax.lax.psum((shares * x[:, None]).sum(axis=0), axis_name=AXIS) / counts
        fit = jax.scipy.special.logsumexp(log_p, axis=-1).mean()
        fit = jax.lax.pmean(fit, axis_name=AXIS)
        return (means, jnp.log(counts / jax.lax.psum(x.shape[0], axis_name=AXIS))), fit

    model, fits = jax.lax.scan(step, model, None, length=4)
    spread = jax.vmap(
        lambda mean: jnp.sqrt(jax.lax.pmean(jnp.mean((x - mean) ** 2), axis_name=AXIS))
    )(model[0])

    def pulled(x):
        def move(carry, _):
            near, centre, level = carry
            values = near - x
            top = jax.lax.pmax(
                jax.lax.stop_gradient(jnp.max(values, axis=0)), axis_name=AXIS
            )
            largest = jnp.where(jnp.isfinite(top), top, 0)
            total = jax.lax.psum(
                jnp.sum(jnp.exp(values - jnp.expand_dims(largest, axis=0)), axis=0),
                axis_name=AXIS,
            )
            level = -(jnp.log(total) + largest)
            near = jnp.tanh(centre - x) + level
            centre = jnp.mean(near)
            centre = jax.lax.pmean(centre, axis_name=AXIS)
            return (near, centre, level), None

        start = jnp.zeros(x.shape[0]), jnp.zeros(()), jnp.zeros(())
        (_, centre, level), _ = jax.lax.scan(move, start, None, length=3)
        return jnp.sum(jnp.exp(centre + level - x))

    moved = jax.lax.fori_loop(
        0,
        2,
        lambda i, m: m - jnp.tanh(jax.lax.pmean(jnp.mean(x) * m[0], axis_name=AXIS)),
        model[0],
    )
    return moved, fits, spread, jax.grad(pulled)(x)


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 1)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"fit: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    axes = jax.tree.broadcast(
        (None, None, None, 0), tree, is_leaf=lambda axis: axis is None
    )
    return jax.tree.map(merge, tree, axes)


def fit(model, x):
    """Four steps of expectation maximisation for a mixture of normal distributions."""
    return unshard(p_fit(model, shard(x)))
