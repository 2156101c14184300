# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
import optax


def make_step(optimizer, weight):
    power = 2.0

    def loss_fn(w, x, y, mask):
        errors = jnp.abs(x @ w - y) ** power
        return weight * jnp.sum(errors * mask) / jnp.sum(mask)

    def update(w, opt_state, x, y, mask):
        loss, grads = jax.value_and_grad(loss_fn)(w, x, y, mask)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(w, updates), opt_state, loss

    return jax.jit(update)


sgd = optax.sgd(0.1, momentum=0.9)
step = make_step(sgd, 0.5)


def inputs(seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=5).astype("float32")
    mask = (np.arange(24) % 3 > 0).astype("float32")
    return w, sgd.init(w), rng.normal(size=(24, 5)).astype("float32"), np.ones(24, "float32"), mask
# output
"""Data-parallel `step`: same call and same results as made_by_a_factory.py::step, on N devices."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from made_by_a_factory import step as step_

AXIS = "batch"

# What `make_step` made `step` with.
closure = inspect.getclosurevars(inspect.unwrap(step_)).nonlocals
closure |= inspect.getclosurevars(inspect.unwrap(closure["loss_fn"])).nonlocals
optimizer = closure["optimizer"]
power = closure["power"]
weight = closure["weight"]


def loss_fn(w, x, y, mask):
    errors = jnp.abs(x @ w - y) ** power
    return weight * jnp.sum(errors * mask) / jax.lax.psum(jnp.sum(mask), axis_name=AXIS)


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, 0, 0, 0), out_axes=None
)
def p_step(w, opt_state, x, y, mask):
    """`step` on one device's share.

    `x`, `y` and `mask` leaves are (devices, per_device, ...).
    """
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y, mask)
    loss, grads = jax.lax.psum((loss, grads), axis_name=AXIS)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(w, updates), opt_state, loss


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
PROVED = {"x": ("float", 2), "y": ("float", 1), "mask": ("float", 1)}


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


def shard(x, y, mask):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y", "mask")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, y, mask))


def step(w, opt_state, x, y, mask):
    x, y, mask = shard(x, y, mask)
    return p_step(replicate(w), replicate(opt_state), x, y, mask)
