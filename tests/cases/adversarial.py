# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def loss(w, x, y):
    return jnp.mean(jnp.logaddexp(0.0, -y * jnp.tanh(x @ w).sum(-1)))


def step(w, x, y):
    """One step on inputs that were moved to where the loss is larger."""

    def ascend(_, moved):
        by_rows = jax.grad(loss, argnums=1)(w, moved, y)
        length = jnp.linalg.norm(by_rows, axis=-1, keepdims=True)
        return jnp.clip(moved + 0.1 * by_rows / (length + 1e-3), x - 0.2, x + 0.2)

    moved = jax.lax.fori_loop(0, 3, ascend, x)
    value, grads = jax.value_and_grad(loss)(w, moved, y)
    return w - 0.1 * grads, value


def inputs():
    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 4), (24, 5)))
    return w, x, np.sign(x[:, 0])


# output
"""Data-parallel `step`: same call and same results as adversarial.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from adversarial import loss

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_step(w, x, y):
    """`step` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    # Asked once for each form, while it is traced.
    as_proved("step: `w`", w, ("float", None, None))

    def ascend(_, moved):
        devices = jax.lax.psum(1, axis_name=AXIS)
        by_rows = jax.grad(loss, argnums=1)(w, moved, y) / devices
        length = jnp.linalg.norm(by_rows, axis=-1, keepdims=True)
        return jnp.clip(moved + 0.1 * by_rows / (length + 1e-3), x - 0.2, x + 0.2)

    moved = jax.lax.fori_loop(0, 3, ascend, x)
    value, grads = jax.value_and_grad(loss)(w, moved, y)
    value, grads = jax.lax.pmean((value, grads), axis_name=AXIS)
    return w - 0.1 * grads, value


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
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def as_proved(name, value, *forms):
    """Raise unless the leaves of `value` are of these kinds and sizes; None stands for any size."""
    found = [
        (jax.dtypes.scalar_type_of(leaf).__name__, *np.shape(leaf))
        for leaf in jax.tree.leaves(value)
    ]
    pairs = [pair for own, form in zip(found, forms) for pair in zip(own, form)]
    if [*map(len, found)] != [*map(len, forms)] or any(
        form not in (None, own) for own, form in pairs
    ):
        raise ValueError(
            f"{name} is {found} on a device; this code is proved for {[*forms]} alone"
        )


def step(w, x, y):
    """One step on inputs that were moved to where the loss is larger."""
    x, y = shard(x, y)
    return p_step(replicate(w), x, y)
