# flags: gen run_rnn --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def run_rnn(wh, wx, xs, h0):
    """As wide as the batch is large; time comes first."""

    def step(h, x):
        h = jnp.tanh(h @ wh + x @ wx)
        return h, h

    last, states = jax.lax.scan(step, h0, xs)
    return last.mean(axis=0), states


def inputs(seed):
    rng = np.random.default_rng(seed)
    shapes = ((24, 24), (3, 24), (5, 24, 3), (24, 24))
    return tuple(rng.normal(size=shape, scale=0.2).astype("float32") for shape in shapes)
# output
"""Data-parallel `run_rnn`: same call and same results as square_rnn.py::run_rnn, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, 1, 0), out_axes=(None, 1)
)
def p_run_rnn(wh, wx, xs, h0):
    """`run_rnn` on one device's share.

    `xs` leaves have (devices, per_device) at axis 1, `h0` leaves are (devices,
    per_device, ...).
    """

    def step(h, x):
        h = jnp.tanh(h @ wh + x @ wx)
        return h, h

    last, states = jax.lax.scan(step, h0, xs)
    return jax.lax.pmean(last.mean(axis=0), axis_name=AXIS), states


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"xs": ("float", 3), "h0": ("float", 2)}


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
            f"run_rnn: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis {axis} a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )
    return False


def shard(xs, h0):
    """Split along `axes`: B becomes (devices, B // devices); what has None stays whole."""
    sizes = set()

    def split(path, leaf, axis):
        name = ("xs", "h0")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if axis is None or is_split(name, leaf, axis, sizes):
            return leaf
        leaf = leaf.reshape(
            *leaf.shape[:axis], jax.local_device_count(), -1, *leaf.shape[axis + 1 :]
        )
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(*[None] * axis, AXIS))

    axes = jax.tree.broadcast((1, 0), (xs, h0), is_leaf=lambda axis: axis is None)
    return jax.tree.map_with_path(split, (xs, h0), axes)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(
            leaf.shape[0], leaf.shape[1] * leaf.shape[2], *leaf.shape[3:]
        )

    axes = jax.tree.broadcast((None, 1), tree, is_leaf=lambda axis: axis is None)
    return jax.tree.map(merge, tree, axes)


def run_rnn(wh, wx, xs, h0):
    """As wide as the batch is large; time comes first."""
    xs, h0 = shard(xs, h0)
    return unshard(p_run_rnn(wh, wx, xs, h0))
