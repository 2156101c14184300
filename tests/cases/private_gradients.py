# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

TX = contrib.dpsgd(learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=0.5, seed=0)


def error(w, x, y):
    return (jax.nn.relu(x @ w["in"]) @ w["out"] - y) ** 2


def f(w, state, x, y):
    """A private step: a library clips the gradient of each example, averages them and adds noise."""
    gradients = jax.vmap(jax.grad(error), in_axes=(None, 0, 0))(w, x, y)
    updates, state = TX.update(gradients, state, w)
    return optax.apply_updates(w, updates), state


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, a, x, y = (rng.normal(size=s).astype("float32") for s in ((8, 32), (32,), (24, 8), (24,)))
    w = {"in": w, "out": a}
    return w, TX.init(w), jnp.asarray(x), jnp.asarray(y)
# output
"""Data-parallel `f`: same call and same results as private_gradients.py::f, on N devices."""

import functools

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from private_gradients import TX, error

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, None, 0, 0), out_axes=None)
def p_f(w, state, x, y):
    """`f` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    gradients = jax.vmap(jax.grad(error), in_axes=(None, 0, 0))(w, x, y)
    all_gradients = jax.lax.all_gather(gradients, axis_name=AXIS, axis=0, tiled=True)
    updates, state = TX.update(all_gradients, state, w)
    return optax.apply_updates(w, updates), state


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


def f(w, state, x, y):
    """A private step: a library clips the gradient of each example, averages them and adds noise."""
    x, y = shard(x, y)
    return p_f(replicate(w), replicate(state), x, y)
