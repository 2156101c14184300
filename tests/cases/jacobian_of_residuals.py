# flags: gen fit --arg params={w:f32[5,8],v:f32[8]} --arg x=f32[24,5] --arg y=f32[24]
import jax
import jax.flatten_util
import jax.numpy as jnp


def fit(params, x, y):
    """A Levenberg-Marquardt step: each row of the Jacobian is of one example."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def residuals(flat):
        params = unravel(flat)
        return jax.nn.relu(x @ params["w"]) @ params["v"] - y

    r, jacobian = residuals(flat), jax.jacobian(residuals)(flat)
    normal = jacobian.T @ jacobian + 1e-2 * jnp.eye(flat.size)
    step = jnp.linalg.solve(normal, jacobian.T @ r)
    return unravel(flat - step), jnp.mean(r**2)
# output
"""Data-parallel `fit`: same call and same results as jacobian_of_residuals.py::fit, on N devices."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_fit(params, x, y):
    """`fit` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def residuals(flat):
        params = unravel(flat)
        return jax.nn.relu(x @ params["w"]) @ params["v"] - y

    r, jacobian = residuals(flat), jax.jacobian(residuals)(flat)
    total = jax.lax.psum(jacobian.T @ jacobian, axis_name=AXIS)
    normal = total + 1e-2 * jnp.eye(flat.size)
    step = jnp.linalg.solve(normal, jax.lax.psum(jacobian.T @ r, axis_name=AXIS))
    return unravel(flat - step), jax.lax.pmean(jnp.mean(r**2), axis_name=AXIS)


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
PROVED = {"x": ("float", 2), "y": ("float", 1)}


def is_split(name, leaf, sizes):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[:1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % count:
        raise ValueError(
            f"fit: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(x, y):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, y))


def fit(params, x, y):
    """A Levenberg-Marquardt step: each row of the Jacobian is of one example."""
    x, y = shard(x, y)
    return p_fit(replicate(params), x, y)
