# flags: gen evaluate --inputs this::inputs --shard batch:0
import jax
import optax
from flax import nnx


class Metrics(nnx.MultiMetric):
    """What adds up, and beside it a variance by Welford's algorithm, which does not only add."""

    def __init__(self):
        super().__init__(accuracy=nnx.metrics.Accuracy(), spread=nnx.metrics.Welford("losses"))


def evaluate(model, metrics, batch):
    logits = model(batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    metrics.update(logits=logits, labels=batch["label"], losses=losses)


def inputs(seed):
    x, label = jax.random.split(jax.random.key(seed))
    batch = {"x": jax.random.normal(x, (24, 5)), "label": jax.random.randint(label, (24,), 0, 3)}
    return nnx.Linear(5, 3, rngs=nnx.Rngs(seed)), Metrics(), batch
# output
"""Data-parallel `evaluate`: same call and same results as metrics_of_all_examples.py::evaluate, on N devices."""

import functools

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, None, 0), out_axes=None)
def p_evaluate(model, metrics, batch):
    """`evaluate` on one device's share; `batch` leaves are (devices, per_device, ...)."""
    logits = model(batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    all_logits = jax.lax.all_gather(logits, axis_name=AXIS, axis=0, tiled=True)
    all_label = jax.lax.all_gather(batch["label"], axis_name=AXIS, axis=0, tiled=True)
    all_losses = jax.lax.all_gather(losses, axis_name=AXIS, axis=0, tiled=True)
    metrics.update(logits=all_logits, labels=all_label, losses=all_losses)
    return metrics


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
PROVED = {"batch['label']": ("int", 1), "batch['x']": ("float", 2)}


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


def shard(batch):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        if is_split(f"batch{jax.tree_util.keystr(path)}", leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, batch)


def evaluate(model, metrics, batch):
    changed = p_evaluate(model, replicate(metrics), shard(batch))
    nnx.update(metrics, nnx.state(changed))
