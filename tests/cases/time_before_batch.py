# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(w, played):
    """Eight steps in time come before the players, whose states lead."""

    def loss(w):
        def move(state, seen):
            x, done = seen
            state = jnp.tanh(x @ w + jnp.where(done[:, None], 0.0, state))
            return state, jnp.sum(state**2)

        _, losses = jax.lax.scan(move, played["state"], (played["x"], played["done"]))
        return jnp.sum(losses)

    return w - 0.1 * jax.grad(loss)(w), jnp.mean(played["reward"]), jnp.mean(played["rate"])


def inputs(seed):
    rng = np.random.default_rng(seed)
    played = {name: rng.random((8, 24)).astype("float32") for name in ("reward", "rate")}
    played |= {"done": rng.random((8, 24)) < 0.1, "x": rng.normal(size=(8, 24, 5)).astype("float32")}
    return np.ones((5, 4), np.float32), {**played, "state": np.zeros((24, 4), np.float32)}
# output
"""Data-parallel `step`: same call and same results as time_before_batch.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap,
    axis_name=AXIS,
    in_axes=(None, {"done": 1, "rate": 1, "reward": 1, "state": 0, "x": 1}),
    out_axes=None,
)
def p_step(w, played):
    """`step` on one device's share.

    `played` leaves that are split have (devices, per_device) at axis 0 or 1.
    """

    def loss(w):
        def move(state, seen):
            x, done = seen
            state = jnp.tanh(x @ w + jnp.where(done[:, None], 0.0, state))
            return state, jnp.sum(state**2)

        _, losses = jax.lax.scan(move, played["state"], (played["x"], played["done"]))
        return jnp.sum(losses)

    return (
        w - 0.1 * jax.lax.psum(jax.grad(loss)(w), axis_name=AXIS),
        jax.lax.pmean(jnp.mean(played["reward"]), axis_name=AXIS),
        jax.lax.pmean(jnp.mean(played["rate"]), axis_name=AXIS),
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
PROVED = {
    "played['done']": ("bool", 2),
    "played['rate']": ("float", 2),
    "played['reward']": ("float", 2),
    "played['state']": ("float", 2),
    "played['x']": ("float", 3),
}


def is_split(name, leaf, axis, sizes):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if (
        getattr(leaf, "sharding", None) is sharding(*[None] * axis, AXIS)
        and len(shape) == rank + 1
    ):
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[axis : axis + 1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[axis] % count:
        raise ValueError(
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis {axis} a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )
    return False


def shard(played):
    """Split along `axes`: B becomes (devices, B // devices); what has None stays whole."""
    sizes = set()

    def split(path, leaf, axis):
        if axis is None or is_split(
            f"played{jax.tree_util.keystr(path)}", leaf, axis, sizes
        ):
            return leaf
        leaf = leaf.reshape(
            *leaf.shape[:axis], jax.local_device_count(), -1, *leaf.shape[axis + 1 :]
        )
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(*[None] * axis, AXIS))

    axes = jax.tree.broadcast(
        {"done": 1, "rate": 1, "reward": 1, "state": 0, "x": 1},
        played,
        is_leaf=lambda axis: axis is None,
    )
    return jax.tree.map_with_path(split, played, axes)


def step(w, played):
    """Eight steps in time come before the players, whose states lead."""
    return p_step(replicate(w), shard(played))
