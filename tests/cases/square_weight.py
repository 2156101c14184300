# flags: gen apply --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def apply(w, b, x):
    """All three have 24 rows; only `x` is the batch."""
    hidden = jnp.tanh(x @ w + b)
    return hidden, hidden.mean(axis=0)


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, x = (rng.normal(size=(24, 24)).astype("float32") for _ in range(2))
    return w, rng.normal(size=24).astype("float32"), x
# output
"""Data-parallel `apply`: same call and same results as square_weight.py::apply, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, 0), out_axes=(0, None)
)
def p_apply(w, b, x):
    """`apply` on one device's share; `x` leaves are (devices, per_device, ...)."""
    # Asked once for each form, while it is traced.
    as_proved("apply: `w`", w, ("float", None, None))
    hidden = jnp.tanh(x @ w + b)
    return hidden, jax.lax.pmean(hidden.mean(axis=0), axis_name=AXIS)


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
            f"apply: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    axes = jax.tree.broadcast((0, None), tree, is_leaf=lambda axis: axis is None)
    return jax.tree.map(merge, tree, axes)


def apply(w, b, x):
    """All three have 24 rows; only `x` is the batch."""
    return unshard(p_apply(w, replicate(b), shard(x)))
