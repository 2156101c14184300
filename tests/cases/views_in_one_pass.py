# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def encode(params, x):
    z = jax.nn.relu(x @ params["w1"]) @ params["w2"]
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


def nt_xent(z, temperature=0.5):
    """Each view is to be nearest to the other one of the same example."""
    n = z.shape[0] // 2
    scores = z @ z.T / temperature
    scores = jnp.where(jnp.eye(2 * n, dtype=bool), -1e9, scores)
    pairs = jnp.concatenate([jnp.diag(scores, n), jnp.diag(scores, -n)])
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - pairs)


def step(params, one, other):
    def loss_fn(params):
        z = encode(params, jnp.concatenate([one, other]))
        return nt_xent(z) + 0.01 * jnp.mean((z @ z.T) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, loss


def inputs():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {"w1": normal(12, 64), "w2": normal(64, 8)}
    return params, normal(24, 12), normal(24, 12)


# output
"""Data-parallel `step`: same call and same results as views_in_one_pass.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from views_in_one_pass import encode

AXIS = "batch"


def nt_xent(z, temperature=0.5):
    """Each view is to be nearest to the other one of the same example."""
    n = z.shape[0] // 2
    all_z = gather_joined(z, 2, z.shape[0] // 2)
    scores = all_z @ all_z.T / temperature
    total_n = jax.lax.psum(n, axis_name=AXIS)
    scores = jnp.where(jnp.eye(2 * total_n, dtype=bool), -1e9, scores)
    pairs = jnp.concatenate([jnp.diag(scores, total_n), jnp.diag(scores, -total_n)])
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - pairs)


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_step(params, one, other):
    """`step` on one device's share; `one` and `other` leaves are (devices, per_device, ...)."""
    # Asked once for each form, while it is traced.
    as_proved("step: `params`", params, ("float", None, None), ("float", None, None))

    def loss_fn(params):
        z = encode(params, jnp.concatenate([one, other]))
        all_z = gather_joined(z, 2, one.shape[0])
        return nt_xent(z) + 0.01 * jnp.mean((all_z @ all_z.T) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    # The loss is whole on every device, the gradient only that through its own rows.
    grads = jax.lax.pmean(grads, axis_name=AXIS)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, loss


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


def step(params, one, other):
    one, other = shard(one, other)
    return p_step(replicate(params), one, other)
