# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(factors, x):
    """Of three factors, two are contracted first on 24 rows, and others on the 3 rows of a share."""

    def loss(factors):
        rows, one, other = factors
        table = jnp.einsum("br,ir,jr->bij", x @ rows, one, other)
        return jnp.mean(jnp.einsum("bij,bkj,ir->bkr", table, table, one) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, factors, jax.grad(loss)(factors))


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return (draw(5, 4), draw(6, 4), draw(7, 4)), draw(24, 5)
# output
"""Data-parallel `step`: same call and same results as trilinear.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_step(factors, x):
    """`step` on one device's share; `x` leaves are (devices, per_device, ...)."""

    def loss(factors):
        rows, one, other = factors
        table = jnp.einsum("br,ir,jr->bij", x @ rows, one, other)
        return jnp.mean(jnp.einsum("bij,bkj,ir->bkr", table, table, one) ** 2)

    mean = jax.lax.pmean(jax.grad(loss)(factors), axis_name=AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, factors, mean)


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


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


def step(factors, x):
    """Of three factors, two are contracted first on 24 rows, and others on the 3 rows of a share."""
    return p_step(factors, shard(x))
