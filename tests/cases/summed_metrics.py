# flags: gen train_step --inputs this::inputs
import jax
import optax
from flax import nnx


class Tagger(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(50, 8, rngs=rngs)
        self.head = nnx.Linear(8, 20, rngs=rngs)

    def __call__(self, words):
        return self.head(nnx.relu(self.embed(words)))


class Metrics(nnx.Module):
    def __init__(self):
        self.tags = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
        self.known = nnx.metrics.Average("losses")

    def note(self, losses, logits, batch):
        # Of the loss it adds up means, of known words their losses.
        self.tags.update(loss=losses.mean(), logits=logits, labels=batch["tags"])
        self.known.update(losses=losses, mask=batch["words"] > 9)


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    def loss_fn(model):
        logits = model(batch["words"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tags"])
        return losses.mean(), (losses, logits)

    (loss, (losses, logits)), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    metrics.note(losses, logits, batch)
    optimizer.update(model, grads)
    return loss


def inputs(seed):
    words, tags = jax.random.split(jax.random.key(seed))
    model = Tagger(nnx.Rngs(seed))
    batch = {
        "words": jax.random.randint(words, (24, 6), 0, 50),
        "tags": jax.random.randint(tags, (24, 6), 0, 20),
    }
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), Metrics(), batch
# output
"""Data-parallel `train_step`: same call and same results as summed_metrics.py::train_step, on N devices."""

import contextlib
import functools

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from summed_metrics import Metrics

AXIS = "batch"


def metrics_note(self, losses, logits, batch):
    if type(self).note is not Metrics.note:
        raise TypeError(
            f"`{type(self).__name__}.note` is not `Metrics.note`, which this "
            "code was proved with; to allow it, generate again with inputs "
            "that use it"
        )
    # Of the loss it adds up means, of known words their losses.
    with summed(self.tags.accuracy):
        mean = jax.lax.pmean(losses.mean(), axis_name=AXIS)
        self.tags.update(loss=mean, logits=logits, labels=batch["tags"])
    with summed(self.known):
        self.known.update(losses=losses, mask=batch["words"] > 9)


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, None, 0), out_axes=(None, None)
)
def p_train_step(model, optimizer, metrics, batch):
    """`train_step` on one device's share; `batch` leaves are (devices, per_device, ...)."""

    def loss_fn(model):
        logits = model(batch["words"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tags"])
        return losses.mean(), (losses, logits)

    (loss, (losses, logits)), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    metrics_note(metrics, losses, logits, batch)
    optimizer.update(model, grads)
    return loss, (model, optimizer, metrics)


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
PROVED = {"batch['tags']": ("int", 2), "batch['words']": ("int", 2)}


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
            f"train_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
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


def unproved(expected, found):
    """The error for an input that is not as in the run this file was made from."""
    return ValueError(
        f"train_step: {expected}, as in the run this file was made from, not {found!r:.200}; "
        "to allow it, generate again with inputs that use it"
    )


def train_step(model, optimizer, metrics, batch):
    if overlap(model, optimizer, metrics):
        raise ValueError(
            "train_step: `model` and `optimizer` and `metrics` have variables "
            "in common that they had not in the proof; generate again with "
            "inputs that have them"
        )
    if type(metrics).__qualname__ != "Metrics":
        raise unproved(
            "`type(metrics).__qualname__` must be 'Metrics'", type(metrics).__qualname__
        )
    result, changed = p_train_step(
        replicate(model), replicate(optimizer), replicate(metrics), shard(batch)
    )
    nnx.update((model, optimizer, metrics), nnx.state(changed))
    return result
