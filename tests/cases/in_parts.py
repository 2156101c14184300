# flags: gen train_step --inputs this::inputs --backend shard_map --mesh data=4 --fsdp
"""Fully sharded data parallelism, written out: parts are gathered, gradients scattered."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.adam(1e-3)


def loss_fn(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["wide"]["kernel"] + params["wide"]["bias"])
    return jnp.mean((hidden @ params["narrow"]["kernel"] - batch["y"]) ** 2)


def train_step(params, opt_state, batch):
    """One step of Adam, and how often the first layer was above its middle before it."""
    above = jnp.mean(batch["x"] @ params["wide"]["kernel"] > 0)
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "above": above}


def inputs(seed):
    rng = np.random.default_rng(seed)

    def weights(*shape):
        return (rng.normal(size=shape) / shape[0]).astype("float32")

    params = {
        "wide": {"kernel": weights(64, 128), "bias": weights(128)},
        "narrow": {"kernel": weights(128, 1)},
    }
    batch = {"x": weights(24, 64), "y": weights(24, 1)}
    return params, optimizer.init(params), batch
# output
"""Parallel `train_step`: same call and same results as in_parts.py::train_step, on a mesh of data=4."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from in_parts import loss_fn, optimizer

AXIS = "data"


#: Where arrays lie that are not whole on every device, by the end of their paths.
SPECS = {
    "wide.kernel": P(None, AXIS),
}


@functools.cache
def mesh():
    """The devices as data=4; made at the first call, so importing this file starts none."""
    devices = jax.devices()
    if len(devices) != 4:
        raise RuntimeError(
            f"train_step: a mesh of data=4 takes 4 devices, found {len(devices)}"
        )
    return jax.make_mesh(
        (4,),
        (AXIS,),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=devices,
    )


@functools.cache
def shardings(name, structure):
    """The sharding of every array of an argument, or of the result, with this structure."""

    def of(path, _):
        keys = [
            *name.split("."),
            *(jax.tree_util.keystr((key,), simple=True) for key in path),
        ]
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


def specs_of(name, tree):
    """How the arrays of `name`, an argument or a part of one, lie on the mesh."""
    lie = shardings(name, jax.tree.structure(tree))
    return jax.tree.map(lambda sharding: sharding.spec, lie)


def gathered(name, tree):
    """The arrays of `name` whole, of which each device has a part."""

    def whole(leaf, spec):
        for dimension, axis in enumerate(spec):
            if axis is not None:
                leaf = jax.lax.all_gather(leaf, axis, axis=dimension, tiled=True)
        return leaf

    return jax.tree.map(whole, tree, specs_of(name, tree))


def scattered(name, tree):
    """The mean of `tree` over the devices, of which each keeps the part that it has of `name`."""

    def own(leaf, spec):
        if AXIS not in tuple(spec):
            return jax.lax.pmean(leaf, AXIS)
        dimension = tuple(spec).index(AXIS)
        total = jax.lax.psum_scatter(
            leaf, AXIS, scatter_dimension=dimension, tiled=True
        )
        return total / mesh().shape[AXIS]

    return jax.tree.map(own, tree, specs_of(name, tree))


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(mesh(), P(*axes))


def p_train_step(params, opt_state, batch):
    """`train_step` over the mesh: whole arrays outside, one device's share inside."""

    # check_vma=False: the collectives here are written out. With True, gradients of
    # replicated arguments arrive already summed, and a pmean after them is wrong.
    @functools.partial(
        jax.shard_map,
        mesh=mesh(),
        in_specs=(
            specs_of("params", params),
            specs_of("opt_state", opt_state),
            P(AXIS),
        ),
        out_specs=(specs_of("params", params), specs_of("opt_state", opt_state), P()),
        check_vma=False,
    )
    def per_device(params, opt_state, batch):
        above = jnp.mean(
            batch["x"] @ gathered("params.wide.kernel", params["wide"]["kernel"]) > 0
        )
        loss, grads = jax.value_and_grad(loss_fn)(gathered("params", params), batch)
        grads = scattered("params", grads)
        above, loss = jax.lax.pmean((above, loss), axis_name=AXIS)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (
            optax.apply_updates(params, updates),
            opt_state,
            {"loss": loss, "above": above},
        )

    return per_device(params, opt_state, batch)


@functools.cache
def compiled():
    """`p_train_step` compiled for the mesh; made at the first call."""
    return jax.jit(p_train_step)


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"batch['x']": ("float", 2), "batch['y']": ("float", 2)}


def check(name, leaf, sizes):
    """Raise unless `leaf` is as in the proof and divisible among the devices."""
    shape, count = np.shape(leaf), mesh().shape[AXIS]
    kind, rank = PROVED.get(name, ("no leaf", -1))
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[:1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % count:
        raise ValueError(
            f"train_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )


def shard(batch):
    """Put arrays on the devices, split along axis 0."""
    sizes = set()

    def split(path, leaf):
        check(f"batch{jax.tree_util.keystr(path)}", leaf, sizes)
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, batch)


def train_step(params, opt_state, batch):
    """One step of Adam, and how often the first layer was above its middle before it."""
    return compiled()(put("params", params), put("opt_state", opt_state), shard(batch))
