# flags: gen loss --inputs this::inputs
import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class Normal:
    """A batch of normal distributions, which looks at its parts whenever it is made."""

    def __init__(self, mean, scale):
        # jax makes trees of plain objects.
        if type(scale) is not object and jnp.ndim(scale) == 0:
            raise ValueError("a scale for each dimension is needed")
        self.mean, self.scale = mean, scale

    def tree_flatten(self):
        return (self.mean, self.scale), None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)

    def log_prob(self, x):
        return -(((x - self.mean) / self.scale) ** 2) / 2 - jnp.log(self.scale)


def loss(w, policy, actions):
    return -jnp.mean(policy.log_prob(actions @ w))


def inputs(seed):
    keys = jax.random.split(jax.random.key(seed), 4)
    scale = jax.random.uniform(keys[1], (24, 3)) + 0.5
    policy = Normal(jax.random.normal(keys[0], (24, 3)), scale)
    return jax.random.normal(keys[2], (2, 3)), policy, jax.random.normal(keys[3], (24, 2))
# output
"""Data-parallel `loss`: same call and same results as checked_parts.py::loss, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_loss(w, policy, actions):
    """`loss` on one device's share.

    `policy` and `actions` leaves are (devices, per_device, ...).
    """
    return jax.lax.pmean(-jnp.mean(policy.log_prob(actions @ w)), axis_name=AXIS)


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {
    "policy[<flat index 0>]": ("float", 2),
    "policy[<flat index 1>]": ("float", 2),
    "actions": ("float", 2),
}


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
            f"loss: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(policy, actions):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("policy", "actions")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (policy, actions))


def unproved(expected, found):
    """The error for an input that is not as in the run this file was made from."""
    return ValueError(
        f"loss: {expected}, as in the run this file was made from, not {found!r:.200}; "
        "to allow it, generate again with inputs that use it"
    )


def loss(w, policy, actions):
    if type(policy).__qualname__ != "Normal":
        raise unproved(
            "`type(policy).__qualname__` must be 'Normal'", type(policy).__qualname__
        )
    policy, actions = shard(policy, actions)
    return p_loss(w, policy, actions)
