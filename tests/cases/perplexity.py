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


def shard(logits, labels):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"logits": 2, "labels": 1}
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"logits": logits, "labels": labels}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"evaluate: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"evaluate: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"evaluate: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["logits"], arrays["labels"]


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
