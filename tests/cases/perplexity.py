# flags: gen evaluate --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def evaluate(logits, labels):
    """Metrics of one batch of token predictions."""
    log_probs = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()
    accuracy = (logits.argmax(-1) == labels).mean()
    return {"nll": nll, "perplexity": jnp.exp(nll), "accuracy": accuracy, "count": labels.shape[0]}


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(48, 7)).astype("float32"), rng.integers(0, 7, 48)
# output
"""Data-parallel `evaluate`: same call and same results as perplexity.py::evaluate, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_evaluate(logits, labels):
    """`evaluate` on one device's share.

    `logits` and `labels` leaves are (devices, per_device, ...).
    """
    log_probs = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()
    accuracy = (logits.argmax(-1) == labels).mean()
    nll, accuracy = jax.lax.pmean((nll, accuracy), axis_name=AXIS)
    return {
        "nll": nll,
        "perplexity": jnp.exp(nll),
        "accuracy": accuracy,
        "count": jax.lax.psum(labels.shape[0], axis_name=AXIS),
    }


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"logits": ("float", 2), "labels": ("int", 1)}


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
            f"evaluate: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(logits, labels):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("logits", "labels")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (logits, labels))


def evaluate(logits, labels):
    """Metrics of one batch of token predictions."""
    if (
        getattr(labels, "dtype", None) in ("int64", "uint64")
        and (abs(labels) > 2147483647).any()
    ):
        raise ValueError(
            "evaluate: `labels` goes above 2147483647, where 32 bits may not "
            "hold what is computed with it; do before the call what `evaluate` "
            "does with it in Python or NumPy"
        )
    logits, labels = shard(logits, labels)
    return p_evaluate(logits, labels)
