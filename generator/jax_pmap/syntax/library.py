"""Functions of jax and its libraries that take functions, by their qualified names; and the collectives."""

from __future__ import annotations

COMPILERS = frozenset({"jax.jit", "equinox.filter_jit", "flax.nnx.jit", "jax_dataclasses.jit"})
MAPPERS = frozenset({"jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap"})
#: Map a function over the devices of a mesh.
SHARD_MAPS = frozenset({"jax.shard_map", "flax.nnx.shard_map"})
#: Run a function for every slice of its arguments.
BATCHERS = frozenset({"jax.vmap", "equinox.filter_vmap", "flax.nnx.vmap"})
#: Say something of the function that they are given, and give it back.
MARKERS = frozenset(
    {
        "typing.no_type_check",
        "typing.final",
        "typing.override",
        "typing_extensions.final",
        "typing_extensions.override",
        # How a method is looked up, not what it does.
        "builtins.staticmethod",
        "builtins.classmethod",
    }
)
#: Give names to what runs, or check it, and leave every result as it is.
OBSERVERS = frozenset(
    {
        "jax.named_call",
        "jax.named_scope",
        "jax.profiler.annotate_function",
        "chex.assert_max_traces",
        "beartype.beartype",
        "jaxtyping.jaxtyped",
        "typeguard.typechecked",
    }
)
#: Change when values are computed, not which: a copy of a function that has one keeps it.
RECOMPUTERS = frozenset({"jax.checkpoint", "equinox.filter_checkpoint", "flax.nnx.remat"})
#: Run a function once for every slice, each with what the one before has made of the state.
SCANS = frozenset({"flax.nnx.scan"})
#: Give a function other keys than it is called with.
KEY_SPLITTERS = frozenset({"flax.nnx.split_rngs"})
#: Make a function which does the same, once for all.
WRAPPERS = COMPILERS | RECOMPUTERS
#: Make an object which holds a function, to be run by a method of it.
HOLDERS = frozenset(
    {
        "haiku.transform",
        "haiku.transform_with_state",
        "haiku.with_empty_state",
        "haiku.without_apply_rng",
        "haiku.without_state",
    }
)
#: Decorate methods of modules, which the library that runs these looks at.
OF_MODULES = frozenset({"flax.linen.compact", "flax.linen.module.compact"})
#: Make a gradient function; those called ``value_and_grad`` one that gives the value, too.
GRADIENTS = frozenset(
    {
        "jax.grad",
        "jax.value_and_grad",
        "equinox.filter_grad",
        "equinox.filter_value_and_grad",
        "flax.nnx.grad",
        "flax.nnx.value_and_grad",
        "haiku.grad",
        "haiku.value_and_grad",
    }
)
#: Have their first argument called with arrays of NumPy, outside of the traced program.
CALLBACKS = frozenset({"jax.pure_callback", "jax.experimental.io_callback", "jax.debug.callback"})
#: Collectives, with the position of their axis name.
COLLECTIVES = {
    "jax.lax.psum": 1,
    "jax.lax.pmean": 1,
    "jax.lax.pmax": 1,
    "jax.lax.pmin": 1,
    "jax.lax.all_gather": 1,
    "jax.lax.all_to_all": 1,
    "jax.lax.psum_scatter": 1,
    "jax.lax.ppermute": 1,
    "jax.lax.pshuffle": 1,
    "jax.lax.pbroadcast": 1,
    "jax.lax.axis_index": 0,
    "jax.lax.axis_size": 0,
}
