# flags: gen balanced --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def errors(params, x, y):
    """Of the module, and of the name that a local value of `terms` has."""
    return [abs(y - x @ params) for _ in range(3)]


def balanced(params, x, y):
    """Gradients of a sum and of a mean over the batch, one after the other, each by its norm."""

    def terms(p):
        errors = x @ p - y
        by_sign = jax.ops.segment_sum(errors**2, (y > 0).astype(int), 2)
        late = jax.lax.stop_gradient(jnp.exp(-jnp.cumsum(by_sign)))
        return {"fit": jnp.sum(late * by_sign), "size": jnp.mean(jnp.tanh(x @ p) ** 2)}

    def tall(p):
        return jnp.sum(x @ p)

    def wide(p):
        return jnp.mean(x @ p)

    step, sizes = jnp.zeros_like(params), []
    for name in ("fit", "size"):
        value, grads = jax.value_and_grad(lambda p: terms(p)[name])(params)
        step = step + grads / (1e-6 + jnp.linalg.norm(grads))
        sizes.append(value)
    slopes = [jnp.linalg.norm(jax.grad(each)(params)) for each in (tall, wide)]
    return params - 0.1 * step, sizes, slopes, [jnp.log1p(terms(params)[name] ** 2) for name in ("size", "fit")]


def inputs(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype("float32") for s in ((3,), (48, 3), (48,)))
# output
"""Data-parallel `balanced`: same call and same results as terms_of_two_kinds.py::balanced, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_balanced(params, x, y):
    """`balanced` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""

    def terms(p):
        errors = x @ p - y
        by_sign = jax.ops.segment_sum(errors**2, (y > 0).astype(int), 2)
        by_sign = jax.lax.psum(by_sign, axis_name=AXIS)
        late = jax.lax.stop_gradient(jnp.exp(-jnp.cumsum(by_sign)))
        return {
            "fit": jnp.sum(late * by_sign),
            "size": jax.lax.pmean(jnp.mean(jnp.tanh(x @ p) ** 2), axis_name=AXIS),
        }

    def tall(p):
        return jax.lax.psum(jnp.sum(x @ p), axis_name=AXIS)

    def wide(p):
        return jax.lax.pmean(jnp.mean(x @ p), axis_name=AXIS)

    step, sizes = jnp.zeros_like(params), []
    for name in ("fit", "size"):
        value, grads = jax.value_and_grad(lambda p: terms(p)[name])(params)
        # The loss is whole on every device, the gradient only that through its own rows.
        grads = jax.lax.pmean(grads, axis_name=AXIS)
        step = step + grads / (1e-6 + jnp.linalg.norm(grads))
        sizes.append(value)
    slopes = [
        jnp.linalg.norm(jax.lax.pmean(jax.grad(each)(params), axis_name=AXIS))
        for each in (tall, wide)
    ]
    return (
        params - 0.1 * step,
        sizes,
        slopes,
        [jnp.log1p(terms(params)[name] ** 2) for name in ("size", "fit")],
    )


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
            f"balanced: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def balanced(params, x, y):
    """Gradients of a sum and of a mean over the batch, one after the other, each by its norm."""
    x, y = shard(x, y)
    return p_balanced(replicate(params), x, y)
