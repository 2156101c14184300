# flags: gen standardise --inputs this::inputs --backend shard_map --processes 2
"""Rows of several processes, standardised together."""

import jax.numpy as jnp
import numpy as np


def standardise(scale, x, *, shift=None):
    """Each row, with the mean and the spread of all."""
    mean = jnp.mean(x, axis=0)
    spread = jnp.sqrt(jnp.mean((x - mean) ** 2, axis=0))
    return scale * (x - mean) / spread, spread


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=3).astype("float32"), rng.normal(size=(24, 3)).astype("float32")
# output
"""Data-parallel `standardise`: same call and same results as in_processes.py::standardise, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.cache
def mesh():
    """The devices as one axis; made at the first call, so importing this file starts none."""
    return Mesh(np.array(jax.devices()), (AXIS,))


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(mesh(), P(*axes))


def p_standardise(scale, x, shift):
    """`standardise` over the mesh: whole arrays outside, one device's share inside."""

    # check_vma=False: the collectives here are written out. With True, gradients of
    # replicated arguments arrive already summed, and a pmean after them is wrong.
    @functools.partial(
        jax.shard_map,
        mesh=mesh(),
        in_specs=(P(), P(AXIS), P()),
        out_specs=(P(AXIS), P()),
        check_vma=False,
    )
    def per_device(scale, x, shift):
        mean = jnp.mean(x, axis=0)
        mean = jax.lax.pmean(mean, axis_name=AXIS)
        mean_square = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=0), axis_name=AXIS)
        spread = jnp.sqrt(mean_square)
        return scale * (x - mean) / spread, spread

    return per_device(scale, x, shift)


@functools.cache
def compiled():
    """`p_standardise` compiled for the mesh; made at the first call."""
    return jax.jit(
        p_standardise,
        in_shardings=(sharding(), sharding(AXIS), sharding()),
        out_shardings=(sharding(AXIS), sharding()),
    )


def replicate(tree):
    """`tree` whole on every device, where results are too: a call that gets these back compiles nothing anew."""
    whole = sharding()
    if all(getattr(leaf, "sharding", None) == whole for leaf in jax.tree.leaves(tree)):
        return tree
    # Not by `device_put`, which takes no keys to devices of other processes.
    return jax.jit(lambda tree: tree, out_shardings=whole)(tree)


def assemble(leaf, sharding):
    """An array of all processes, of which `leaf` has the rows of this one; one that is such stays."""
    if jax.process_count() == 1:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))


@functools.cache
def same_rows(rows):
    """Raise unless all processes have as many `rows`; they ask each other once for each number of these."""
    if jax.process_count() > 1:
        with jax.ensure_compile_time_eval():
            every = multihost_utils.process_allgather(np.asarray(rows)).tolist()
        if set(every) != {rows}:
            raise ValueError(
                f"standardise: the processes have {every} rows; expected as many in each"
            )


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 2)}


def check(name, leaf):
    """Raise unless `leaf` is as in the proof and divisible among the devices."""
    shape, count = np.shape(leaf), mesh().local_mesh.shape[AXIS]
    # A call returns rows as an array of all processes, which the next one may be given.
    if jax.process_count() > 1 and not getattr(leaf, "is_fully_addressable", True):
        parts = zip(shape, leaf.sharding.shard_shape(shape))
        shape = tuple(size if size == part else part * count for size, part in parts)
    kind, rank = PROVED.get(name, ("no leaf", -1))
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"standardise: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices of this "
            "process)"
        )
    same_rows(shape[0])


def shard(x):
    """The rows of this process on its devices, as part of all processes' batch, along axis 0."""

    def split(path, leaf):
        check(f"x{jax.tree_util.keystr(path)}", leaf)
        return assemble(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, x)


def unproved(expected, found):
    """The error for an input that is not as in the run this file was made from."""
    return ValueError(
        f"standardise: {expected}, as in the run this file was made from, not {found!r:.200}; "
        "to allow it, generate again with inputs that use it"
    )


def standardise(scale, x, *, shift=None):
    """Each row, with the mean and the spread of all."""
    if shift is not None:
        raise unproved("`shift` must be None", shift)
    return compiled()(replicate(scale), shard(x), shift)
