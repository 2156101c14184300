"""A random number generator whose draws on a share of the batch are that share of the draws on all of it.

Numbers drawn for examples cannot be those of one device: on a share, jax draws another set from
the same key. To compare a function with itself on shares all the same, both are run with a
generator whose numbers repeat along every axis with the period of one share. Whole and shares then
draw equal numbers for equal examples, while a permutation, a sort or anything else that mixes
examples still comes out differently.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np

from .arguments import is_key

#: jax's table of generators by name. Raw keys and new ones take theirs from it when they are used.
REGISTRY: dict[str, Any] = jax.extend.random.define_prng_impl.__globals__["prng"].prngs
#: jax's own generators; the one `jax.random.poisson` insists on, and the modules of jax that hold it.
OWN = tuple(REGISTRY.values())
THREEFRY = REGISTRY["threefry2x32"]
HOLDERS = [
    module
    for name, module in list(sys.modules.items())
    if name.startswith("jax._src.") and vars(module).get("threefry_prng_impl") is THREEFRY
]
#: The namespace of jax's sampling functions, and the gate in it that every key passes. A jax without
#: that gate would leave typed keys that are no arguments to their own generator, and their draws
#: refused as unequal.
SAMPLING: dict[str, Any] = getattr(jax.random.split, "__globals__", {})
GATE = "_check_prng_key"


def mixed(word: Any) -> Any:
    """A 32-bit word with every bit depending on every bit (the finaliser of MurmurHash3)."""
    word = jnp.asarray(word).astype(jnp.uint32)
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def positions(shape: tuple[int, ...], period: int) -> Any:
    """A word for every element of `shape` that repeats along each axis with `period`."""
    word = jnp.full(shape, 0x9E3779B9, jnp.uint32)
    for axis in range(len(shape)):
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        word = mixed(word + place % np.uint32(period) + np.uint32(1))
    return word


def digest(key: Any) -> Any:
    """One word made of all words of a key."""
    word = jnp.uint32(0)
    for index in range(key.shape[0]):
        word = mixed(word ^ (key[index] + np.uint32(0x9E3779B9)))
    return word


def child(key: Any, word: Any) -> Any:
    """The key that follows from `key` and a number."""
    start = mixed(digest(key) ^ mixed(word))
    return jnp.stack([mixed(start + np.uint32(index)) for index in range(key.shape[0])])


@functools.cache
def repeating(period: int, key_shape: tuple[int, ...]) -> Any:
    """The generator for shares of `period` examples, with keys of `key_shape` words."""

    def seed(number: Any) -> Any:
        return child(jnp.zeros(key_shape, jnp.uint32), number)

    def split(key: Any, shape: tuple[int, ...]) -> Any:
        words = positions(tuple(shape), period).reshape(-1)
        return jax.vmap(lambda word: child(key, word))(words).reshape(*shape, *key_shape)

    def random_bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Any:
        high = mixed(digest(key) ^ positions(tuple(shape), period))
        if bit_width == 64:
            low = mixed(high + np.uint32(1))
            return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
        kind = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[bit_width]
        return (high >> (32 - bit_width)).astype(kind)

    def fold_in(key: Any, number: Any) -> Any:
        # Numbers of examples, such as those of an arange, start again on every share.
        return child(key, jnp.asarray(number).astype(jnp.uint32) % np.uint32(period))

    return jax.extend.random.define_prng_impl(
        key_shape=key_shape,
        seed=seed,
        split=split,
        random_bits=random_bits,
        fold_in=fold_in,
        name=f"repeating{period}",
        tag=f"repeat{period}",
    )


@contextlib.contextmanager
def repeat_draws(period: int | None) -> Iterator[None]:
    """Let every key draw from `repeating`; None changes nothing.

    Typed keys carry their generator with them: those in arguments go through `rekeyed` before, so that a
    loop gets and gives back keys of one type; others are changed as they are used.
    """
    if period is None:
        yield
        return
    saved = dict(REGISTRY)
    offset = jax.config.jax_random_seed_offset
    for name, impl in saved.items():
        REGISTRY[name] = repeating(period, tuple(impl.key_shape))._impl
    for holder in HOLDERS:
        vars(holder)["threefry_prng_impl"] = REGISTRY["threefry2x32"]
    # Part of the key of jax's caches, so that nothing compiled with another generator is used again.
    jax.config.update("jax_random_seed_offset", period)
    fold_in, axis_index = jax.random.fold_in, jax.lax.axis_index
    indices: list[Any] = []

    def marked_index(axis_name: Any) -> Any:
        indices.append(axis_index(axis_name))
        return indices[-1]

    def fold_in_unless_index(key: Any, data: Any) -> Any:
        # A fold with the device's own index only keeps the draws of the devices apart.
        return key if any(data is index for index in indices) else fold_in(key, data)

    gate = SAMPLING.get(GATE)

    def rekeying_gate(name: str, key: Any, **options: Any) -> Any:
        assert gate is not None
        # Only to look at a key changes nothing, and `rekeyed` itself does it.
        return gate(name, key if name == "key_data" else rekeyed(key, period), **options)

    jax.random.fold_in, jax.lax.axis_index = fold_in_unless_index, marked_index
    if gate is not None:
        SAMPLING[GATE] = rekeying_gate
    try:
        yield
    finally:
        jax.random.fold_in, jax.lax.axis_index = fold_in, axis_index
        if gate is not None:
            SAMPLING[GATE] = gate
        jax.config.update("jax_random_seed_offset", offset)
        REGISTRY.clear()
        REGISTRY.update(saved)
        for holder in HOLDERS:
            vars(holder)["threefry_prng_impl"] = THREEFRY


def rekeyed(value: Any, period: int | None) -> Any:
    """`value` with its typed keys made keys of `repeating`; None changes nothing."""

    def one(leaf: Any) -> Any:
        if not is_key(leaf) or leaf.dtype._impl not in OWN:
            return leaf
        words = jax.random.key_data(leaf)
        return jax.random.wrap_key_data(words, impl=repeating(period, words.shape[leaf.ndim :]))

    return value if period is None else jax.tree.map(one, value)
