# flags: gen contrastive_step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def project(weights, x, key):
    hidden = jax.nn.relu(x @ weights["in"])
    kept = jax.random.bernoulli(key, 0.9, hidden.shape)
    return jnp.where(kept, hidden / 0.9, 0) @ weights["out"]


def views_loss(weights, x, key):
    key, noise_key = jax.random.split(key)
    both = jnp.concatenate([x, x])
    both = both + 0.1 * jax.random.normal(noise_key, both.shape)
    one, other = jnp.split(project(weights, both, key), 2)
    return jnp.mean(jnp.sum((one - other) ** 2, axis=-1))


def contrastive_step(weights, x, key):
    loss, grads = jax.value_and_grad(views_loss)(weights, x, key)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    weights = {"in": rng.normal(size=(6, 8)), "out": rng.normal(size=(8, 4))}
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, "float32"), weights)
    return weights, rng.normal(size=(24, 6)).astype("float32"), jax.random.key(seed)
# output
"""Data-parallel `contrastive_step`: same call and same results as joined_views.py::contrastive_step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from joined_views import project

AXIS = "batch"


def views_loss(weights, x, key):
    key, noise_key = jax.random.split(key)
    both = jnp.concatenate([x, x])
    both = both + 0.1 * jax.random.normal(
        jax.random.fold_in(noise_key, jax.lax.axis_index(AXIS)), both.shape
    )
    one, other = jnp.split(
        project(weights, both, jax.random.fold_in(key, jax.lax.axis_index(AXIS))), 2
    )
    return jnp.mean(jnp.sum((one - other) ** 2, axis=-1))


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, None), out_axes=None)
def p_contrastive_step(weights, x, key):
    """`contrastive_step` on one device's share; `x` leaves are (devices, per_device, ...)."""
    # Asked once for each form, while it is traced.
    as_proved(
        "contrastive_step: `weights`",
        weights,
        ("float", None, None),
        ("float", None, None),
    )
    loss, grads = jax.value_and_grad(views_loss)(weights, x, key)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


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
            f"contrastive_step: {name} is {found}{list(shape)}; expected {kind} "
            f"of rank {rank}, axis 0 a multiple of {count} (devices)"
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


def contrastive_step(weights, x, key):
    return p_contrastive_step(replicate(weights), shard(x), key)
