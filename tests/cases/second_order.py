# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg


def f(w, x, y):
    """Newton's method by conjugate gradients, a Gauss-Newton step, and a ridge solved without a matrix.

    And the curvature and the slope of a masked loss.
    """

    def objective(p):
        return jnp.mean((jnp.tanh(x @ p) - y) ** 2) + 0.05 * jnp.sum(p**2)

    def curvature(v):
        return jax.jvp(jax.grad(objective), (w,), (v,))[1] + v

    newton, _ = cg(curvature, jax.grad(objective)(w), maxiter=5)
    errors, along = jax.linearize(lambda p: jnp.tanh(x @ p) - y, w)
    back = jax.linear_transpose(along, w)
    gauss, _ = cg(lambda v: back(along(v))[0] + 0.1 * v, back(errors)[0], maxiter=4)

    def normal(v):
        return x.T @ (x @ v) + 0.1 * v

    ridge = jax.lax.custom_linear_solve(normal, w, lambda solve, b: cg(solve, b)[0], symmetric=True)

    def masked(p):
        errors = (jnp.tanh(x @ p) - y) ** 2
        return jnp.sum(errors * (y > 0)) / jnp.sum(y > 0)

    bend = jax.jvp(jax.grad(masked), (w,), (w,))[1]
    loss, pull = jax.vjp(masked, w)
    return w - newton, w - gauss, ridge, bend, pull(loss)[0]


def inputs(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype("float32") for s in ((3,), (48, 3), (48,)))
# output
"""Data-parallel `f`: same call and same results as second_order.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_f(w, x, y):
    """`f` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""

    def objective(p):
        return jnp.mean((jnp.tanh(x @ p) - y) ** 2) + 0.05 * jnp.sum(p**2)

    def curvature(v):
        return jax.lax.pmean(
            jax.jvp(jax.grad(objective), (w,), (v,))[1] + v, axis_name=AXIS
        )

    mean = jax.lax.pmean(jax.grad(objective)(w), axis_name=AXIS)
    newton, _ = cg(curvature, mean, maxiter=5)
    errors, along = jax.linearize(lambda p: jnp.tanh(x @ p) - y, w)
    back = jax.linear_transpose(along, w)
    gauss, _ = cg(
        lambda v: jax.lax.psum(back(along(v))[0], axis_name=AXIS) + 0.1 * v,
        jax.lax.psum(back(errors)[0], axis_name=AXIS),
        maxiter=4,
    )

    def normal(v):
        return jax.lax.psum(x.T @ (x @ v), axis_name=AXIS) + 0.1 * v

    ridge = jax.lax.custom_linear_solve(
        normal, w, lambda solve, b: cg(solve, b)[0], symmetric=True
    )

    def masked(p):
        errors = (jnp.tanh(x @ p) - y) ** 2
        total, total_2 = jax.lax.psum(
            (jnp.sum(errors * (y > 0)), jnp.sum(y > 0)), axis_name=AXIS
        )
        return total / total_2

    bend = jax.jvp(jax.grad(masked), (w,), (w,))[1]
    bend = jax.lax.pmean(bend, axis_name=AXIS)
    loss, pull = jax.vjp(masked, w)
    return (
        w - newton,
        w - gauss,
        ridge,
        bend,
        jax.lax.pmean(pull(loss)[0], axis_name=AXIS),
    )


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
            f"f: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def f(w, x, y):
    """Newton's method by conjugate gradients, a Gauss-Newton step, and a ridge solved without a matrix.

    And the curvature and the slope of a masked loss.
    """
    x, y = shard(x, y)
    return p_f(replicate(w), x, y)
