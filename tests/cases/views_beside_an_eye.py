# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(params, one, other):
    """Each view is to be nearest to the other one of the same example, which an eye that is rolled tells."""

    def loss_fn(params):
        z = jax.nn.relu(jnp.concatenate([one, other]) @ params["w1"]) @ params["w2"]
        z = z / (jnp.linalg.norm(z, axis=1, keepdims=True) + 1e-6)
        count = z.shape[0]
        scores = z @ z.T / 0.2 - 1e9 * jnp.eye(count)
        partner = jnp.roll(jnp.eye(count), count // 2, axis=1)
        return -jnp.mean(jnp.sum(partner * jax.nn.log_softmax(scores), axis=1))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"w1": rng.normal(size=(6, 32)), "w2": rng.normal(size=(32, 4))}
    params = jax.tree.map(lambda p: p.astype("float32"), params)
    one = rng.normal(size=(24, 6)).astype("float32")
    return params, one, (one + 0.1 * rng.normal(size=one.shape)).astype("float32")
# output
"""Data-parallel `step`: same call and same results as views_beside_an_eye.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_step(params, one, other):
    """`step` on one device's share; `one` and `other` leaves are (devices, per_device, ...)."""

    def loss_fn(params):
        z = jax.nn.relu(jnp.concatenate([one, other]) @ params["w1"]) @ params["w2"]
        z = z / (jnp.linalg.norm(z, axis=1, keepdims=True) + 1e-6)
        count = z.shape[0]
        all_z = gather_joined(z, 2, one.shape[0])
        total_count = jax.lax.psum(count, axis_name=AXIS)
        scores = all_z @ all_z.T / 0.2 - 1e9 * jnp.eye(total_count)
        partner = jnp.roll(jnp.eye(total_count), total_count // 2, axis=1)
        return -jnp.mean(jnp.sum(partner * jax.nn.log_softmax(scores), axis=1))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    # The loss is whole on every device, the gradient only that through its own rows.
    grads = jax.lax.pmean(grads, axis_name=AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


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
PROVED = {"one": ("float", 2), "other": ("float", 2)}


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


def shard(one, other):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("one", "other")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (one, other))


def gather_joined(x, count, rows, axis=0):
    """All of `x`, of which each device has its `rows` of each of `count` batches, joined along `axis`."""
    if x.shape[axis] != count * rows:
        raise ValueError(
            f"step: expected {count} times {rows} rows along axis {axis}, got {x.shape}"
        )
    parts = x.reshape(*x.shape[:axis], count, rows, *x.shape[axis + 1 :])
    whole = jax.lax.all_gather(parts, AXIS, axis=axis + 1, tiled=True)
    return whole.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])


def step(params, one, other):
    """Each view is to be nearest to the other one of the same example, which an eye that is rolled tells."""
    one, other = shard(one, other)
    return p_step(replicate(params), one, other)
