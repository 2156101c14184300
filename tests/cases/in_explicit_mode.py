# flags: gen step --inputs this::inputs --backend jit --explicit --mesh data=2,model=2 --spec 'params=None,model'
"""A table of which each device has some columns, in jax's explicit mode."""

import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(params, x):
    return jnp.mean(jnp.tanh(x @ params) ** 2)


def step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return params - 0.1 * grads, loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4, 6)).astype("float32"), rng.normal(size=(24, 4)).astype("float32")
# output
"""Parallel `step`: same call and same results as in_explicit_mode.py::step, on a mesh of data=2, model=2."""

import functools

import jax
import numpy as np
from jax.sharding import NamedSharding

from in_explicit_mode import loss_fn

AXIS = "data"


#: Where arrays lie that are not whole on every device, by the end of their paths.
SPECS = {
    "params": jax.P(None, "model"),
    "0": jax.P(None, "model"),
}


@functools.cache
def mesh():
    """The devices as data=2, model=2; made at the first call, so importing this file starts none."""
    devices = jax.devices()
    if len(devices) != 4:
        raise RuntimeError(
            f"step: a mesh of data=2, model=2 takes 4 devices, found {len(devices)}"
        )
    return jax.make_mesh(
        (2, 2),
        (AXIS, "model"),
        axis_types=(jax.sharding.AxisType.Explicit,) * 2,
        devices=devices,
    )


@functools.cache
def shardings(name, structure):
    """The sharding of every array of an argument, or of the result, with this structure."""

    def of(path, _):
        keys = [name, *(jax.tree_util.keystr((key,), simple=True) for key in path)]
        ends = (".".join(keys[start:]) for start in range(len(keys)))
        spec = next((SPECS[end] for end in ends if end in SPECS), jax.P())
        return NamedSharding(mesh(), spec)

    tree = structure.unflatten(range(structure.num_leaves))
    return jax.tree_util.tree_map_with_path(of, tree)


def put(name, tree):
    """The arrays of argument `name` where they belong on the mesh; what is there already stays."""
    leaves, structure = jax.tree.flatten(tree)
    places = shardings(name, structure)
    there = [getattr(leaf, "sharding", None) for leaf in leaves] == jax.tree.leaves(
        places
    )
    return tree if there else jax.device_put(tree, places)


@functools.cache
def sharding(*axes):
    """`jax.P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(mesh(), jax.P(*axes))


def p_step(params, x):
    """`step` on the whole batch; the compiler divides the work."""
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return params - 0.1 * grads, loss


@functools.cache
def compiled():
    """`p_step` compiled for the mesh; made at the first call."""

    def on_mesh(*arguments):
        result = p_step(*arguments)
        structure = jax.tree.structure(result)
        return jax.sharding.reshard(result, shardings("result", structure))

    return jax.jit(on_mesh)


def check(name, leaf):
    """Raise unless `leaf` is divisible among the devices."""
    shape, count = np.shape(leaf), mesh().shape[AXIS]
    if not shape or shape[0] % count:
        raise ValueError(
            f"step: {name} is of shape {shape}; expected axis 0 a multiple of "
            f"{count} (devices along {AXIS})"
        )


def shard(x):
    """Put arrays on the devices, split along axis 0."""

    def split(path, leaf):
        check(f"x{jax.tree_util.keystr(path)}", leaf)
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, x)


def step(params, x):
    with jax.set_mesh(mesh()):
        return compiled()(put("params", params), shard(x))
