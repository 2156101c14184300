# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(w, x):
    """Weights over the batch, and penalties on its covariance and its spread."""

    def loss(w):
        z = jnp.tanh(x @ w)
        pooled = jax.nn.softmax(z[:, 0], axis=0) @ z
        spread = jnp.std(z - pooled, axis=0, ddof=1)
        return jnp.sum(jnp.cov(z.T) ** 2) - jnp.mean(spread) + jax.nn.logsumexp(z * pooled)

    return jax.value_and_grad(loss)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(5, 3)).astype("float32"), rng.normal(size=(24, 5)).astype("float32")
# output
"""Data-parallel `f`: same call and same results as pooled.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_f(w, x):
    """`f` on one device's share; `x` leaves are (devices, per_device, ...)."""

    def loss(w):
        z = jnp.tanh(x @ w)
        pooled = (
            lambda weights: weights
            / jax.lax.psum(
                jax.numpy.sum(weights, axis=0, keepdims=True), axis_name=AXIS
            )
        )(
            jax.numpy.exp(
                z[:, 0]
                - jax.lax.pmax(
                    jax.lax.stop_gradient(
                        jax.numpy.max(z[:, 0], axis=0, keepdims=True)
                    ),
                    axis_name=AXIS,
                )
            )
        ) @ z
        pooled = jax.lax.psum(pooled, axis_name=AXIS)
        spread = (
            lambda values: jnp.sqrt(
                jax.lax.psum(
                    jnp.sum(
                        (
                            values
                            - jax.lax.pmean(
                                jnp.mean(values, axis=0, keepdims=True), axis_name=AXIS
                            )
                        )
                        ** 2,
                        axis=0,
                    ),
                    axis_name=AXIS,
                )
                / (jax.lax.psum(jnp.size(values, axis=0), axis_name=AXIS) - 1)
            )
        )(z - pooled)
        return (
            jnp.sum(
                (
                    lambda apart: jnp.squeeze(
                        jax.lax.psum(apart @ apart.T, axis_name=AXIS)
                        / (jax.lax.psum(apart.shape[1], axis_name=AXIS) - 1)
                    )
                )(
                    (
                        lambda rows: rows
                        - jax.lax.pmean(
                            jnp.mean(rows, axis=1, keepdims=True), axis_name=AXIS
                        )
                    )(jnp.atleast_2d(z.T))
                )
                ** 2
            )
            - jnp.mean(spread)
            + (
                lambda values: (
                    lambda largest: jax.numpy.log(
                        jax.lax.psum(
                            jax.numpy.sum(jax.numpy.exp(values - largest)),
                            axis_name=AXIS,
                        )
                    )
                    + largest
                )(
                    (lambda top: jax.numpy.where(jax.numpy.isfinite(top), top, 0))(
                        jax.lax.pmax(
                            jax.lax.stop_gradient(jax.numpy.max(values)), axis_name=AXIS
                        )
                    )
                )
            )(z * pooled)
        )

    return jax.lax.pmean(jax.value_and_grad(loss)(w), axis_name=AXIS)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"f: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"f: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def f(w, x):
    """Weights over the batch, and penalties on its covariance and its spread."""
    return p_f(w, shard(x))
