# flags: gen train_step --inputs this::inputs --backend jit --devices 4 --mesh data=2,model=2 --spec '.*wide.kernel=None,model' --spec '.*narrow.kernel=model' --fsdp
"""A step of two layers: one by columns, one by rows, and both divided over the data axis, too."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.adam(1e-3)


def loss_fn(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["wide"]["kernel"] + params["wide"]["bias"])
    error = (hidden @ params["narrow"]["kernel"] - batch["y"]) ** 2
    return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])


def train_step(params, opt_state, batch):
    """One step of Adam; the hidden layer comes back, too."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    hidden = batch["x"] @ params["wide"]["kernel"]
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "hidden": hidden}


def inputs(seed):
    rng = np.random.default_rng(seed)

    def weights(*shape):
        return (rng.normal(size=shape) / shape[0]).astype("float32")

    params = {
        "wide": {"kernel": weights(64, 128), "bias": weights(128)},
        "narrow": {"kernel": weights(128, 1)},
    }
    mask = (np.arange(24) % 5 != 0).astype("float32")[:, None]
    batch = {"x": weights(24, 64), "y": weights(24, 1), "mask": mask}
    return params, optimizer.init(params), batch
# output
"""Parallel `train_step`: same call and same results as on_a_mesh.py::train_step, on a mesh of data=2, model=2."""

import functools

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from on_a_mesh import loss_fn, optimizer

AXIS = "data"


def devices_in_use():
    """The first 4 devices: `train_step` runs on these."""
    found = jax.devices()
    if len(found) < 4:
        raise RuntimeError(f"train_step: needs 4 devices, found {len(found)}")
    return found[:4]


#: Where arrays lie that are not whole on every device, by the end of their paths.
SPECS = {
    "narrow.kernel": P("model"),
    "wide.kernel": P(AXIS, "model"),
    "hidden": P(AXIS),
}


@functools.cache
def mesh():
    """The devices as data=2, model=2; made at the first call, so importing this file starts none."""
    devices = devices_in_use()
    if len(devices) != 4:
        raise RuntimeError(
            f"train_step: a mesh of data=2, model=2 takes 4 devices, found {len(devices)}"
        )
    return jax.make_mesh(
        (2, 2),
        (AXIS, "model"),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=devices,
    )


@functools.cache
def shardings(name, structure):
    """The sharding of every array of an argument, or of the result, with this structure."""

    def of(path, _):
        keys = [name, *(jax.tree_util.keystr((key,), simple=True) for key in path)]
        ends = (".".join(keys[start:]) for start in range(len(keys)))
        spec = next((SPECS[end] for end in ends if end in SPECS), P())
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
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(mesh(), P(*axes))


def p_train_step(params, opt_state, batch):
    """`train_step` on the whole batch; the compiler divides the work."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    hidden = batch["x"] @ params["wide"]["kernel"]
    return (
        optax.apply_updates(params, updates),
        opt_state,
        {"loss": loss, "hidden": hidden},
    )


@functools.cache
def compiled():
    """`p_train_step` compiled for the mesh; made at the first call."""

    def on_mesh(*arguments):
        result = p_train_step(*arguments)
        structure = jax.tree.structure(result)
        return jax.lax.with_sharding_constraint(result, shardings("result", structure))

    return jax.jit(on_mesh)


def check(name, leaf, sizes):
    """Raise unless `leaf` is divisible among the devices."""
    shape, count = np.shape(leaf), mesh().shape[AXIS]
    sizes.update(shape[:1])
    if not shape or len(sizes) > 1 or shape[0] % count:
        raise ValueError(
            f"train_step: {name} is of shape {shape}; expected axis 0 a "
            f"multiple of {count} (devices along {AXIS}), the same in all of "
            f"the batch (found {sizes})"
        )


def shard(batch):
    """Put arrays on the devices, split along axis 0."""
    sizes = set()

    def split(path, leaf):
        check(f"batch{jax.tree_util.keystr(path)}", leaf, sizes)
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, batch)


def train_step(params, opt_state, batch):
    """One step of Adam; the hidden layer comes back, too."""
    return compiled()(put("params", params), put("opt_state", opt_state), shard(batch))
