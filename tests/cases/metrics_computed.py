# flags: gen evaluate --inputs this::inputs --shard batch:0
import jax
import optax
from flax import nnx


@nnx.jit
def evaluate(model, metrics, best, batch):
    metrics.reset()
    logits = model(batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    metrics.update(loss=losses, logits=logits, labels=batch["label"])
    best.update(values=losses)
    now = metrics.compute()
    return now["accuracy"], now, best.compute()


def inputs(seed):
    x, label = jax.random.split(jax.random.key(seed))
    batch = {"x": jax.random.normal(x, (24, 5)), "label": jax.random.randint(label, (24,), 0, 3)}
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    metrics.update(loss=jax.numpy.ones(7), logits=jax.numpy.eye(3), labels=jax.numpy.zeros(3, "int32"))
    return nnx.Linear(5, 3, rngs=nnx.Rngs(seed)), metrics, nnx.metrics.Average(), batch
# output
"""Data-parallel `evaluate`: same call and same results as metrics_computed.py::evaluate, on N devices."""

import contextlib
import functools

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, None, 0), out_axes=(None, None)
)
def p_evaluate(model, metrics, best, batch):
    """`evaluate` on one device's share; `batch` leaves are (devices, per_device, ...)."""
    metrics.reset()
    logits = model(batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    with summed(metrics):
        metrics.update(loss=losses, logits=logits, labels=batch["label"])
    with summed(best):
        best.update(values=losses)
    now = metrics.compute()
    return (now["accuracy"], now, best.compute()), (metrics, best)


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


@contextlib.contextmanager
def summed(*objects):
    """Sum up over the devices what is added inside to the variables of `objects`, which begin with zeros."""
    # A copy: what `state` gives are the variables themselves.
    before = jax.tree.map(lambda old: old, nnx.state(objects))
    nnx.update(objects, jax.tree.map(jax.numpy.zeros_like, before))
    yield
    added = jax.lax.psum(nnx.state(objects), AXIS)
    nnx.update(objects, jax.tree.map(jax.numpy.add, before, added))


def overlap(*objects, but=()):
    """Whether Flax NNX objects have a variable in common that is in none of those in `but`."""

    def variables(value):
        return {
            id(node)
            for _, node in nnx.iter_graph(value)
            if isinstance(node, nnx.Variable)
        }

    found = [variables(each) - variables(but) for each in objects]
    return len(set.union(*found)) < sum(map(len, found))


def evaluate(model, metrics, best, batch):
    if overlap(metrics, best):
        raise ValueError(
            "evaluate: `metrics` and `best` have variables in common that they "
            "had not in the proof; generate again with inputs that have them"
        )
    result, changed = p_evaluate(
        model, replicate(metrics), replicate(best), shard(batch)
    )
    nnx.update((metrics, best), nnx.state(changed))
    return result
