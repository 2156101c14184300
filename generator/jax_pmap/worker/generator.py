"""A random number generator whose draws on a share of the batch are that share of the draws on all of it.

Numbers drawn for examples cannot be those of one device: on a share, jax draws another set from
the same key. To compare a function with itself on shares all the same, both are run with a
generator that knows where a share lies in the whole. Its keys carry the number of a block: an
element of a draw gets its number from its place within its block and from the sum of its block and
its key's. On the whole batch the blocks of a draw are the shares, in order; on a share there is one
block, and the key carries the device's index, once it was folded with it. So equal examples get
equal numbers, different shares get different ones, and whatever mixes examples (a permutation, the
mean of some noise over the batch) still comes out differently.
"""

import contextlib
import functools
import math
import sys
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np

from .drawn_keys import DRAWING
from .jaxpr.versions import primitive_name
from .jaxpr.walk import equations
from .leaves import is_key, mapped

#: How what is drawn for so many times the rows is grouped; see `Shares.groups`.
Groups: TypeAlias = "tuple[tuple[int | Fraction, int], ...]"
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
#: The second word of a key holds the number of a block above as many bits, and above those whether it is the
#: own key of a share: words that nobody else's keys have there, but by chance.
BLOCK_BITS, OWN_BITS = 16, 24
BELOW_BLOCK = np.uint32((1 << BLOCK_BITS) - 1)
LAST_BLOCK = np.uint32((1 << (OWN_BITS - BLOCK_BITS)) - 1)
OF_SHARE = np.uint32(0xA5)


def mixed(word: Any) -> Any:
    """A 32-bit word with every bit depending on every bit (the finaliser of MurmurHash3)."""
    word = jnp.asarray(word).astype(jnp.uint32)
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


@dataclass(frozen=True)
class Shares:
    """How a batch of `rows` is cut: into shares of `size`, the last of which may be shorter.

    With `siblings`, a key that is split into as many as there are shares gives each device its own, like one
    that is folded with the device's index. Where several axes of a mesh divide the rows, `strides` are how
    many shares further the next device along each of them has its own.
    """

    size: int
    rows: int
    siblings: bool = False
    strides: tuple[tuple[str, int], ...] = ()
    #: Of the draws for so many times the rows, in how many groups these lie: of each, a share has its part.
    #: Where there are none they lie in one, and what is drawn for a multiple of the rows is for all of them.
    #: One for four rows each is for a quarter of the rows.
    groups: Groups = ()

    def stride(self, axis: Any) -> int:
        """How many shares the index along an axis of the devices counts."""
        return dict(self.strides).get(axis, 1)

    def places(self, shape: tuple[int, ...], key: Any) -> tuple[Any, Any]:
        """For every element of a draw of `shape`, a word for its place in its block, and its block.

        One of three shares that draws for three batches draws as many numbers as are drawn for one batch of
        all: with a `key` of its own.
        """
        multiples: dict[int | Fraction, int] | None = dict(self.groups) or None
        word = jnp.full(shape, 0x9E3779B9, jnp.uint32)
        block = jnp.zeros(shape, jnp.uint32)
        for axis, length in enumerate(shape):
            place = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
            times = Fraction(length, self.rows)
            known = times.denominator == 1 if multiples is None else times in multiples
            if length and known and (times * self.size).denominator == 1:
                groups = 1 if multiples is None else multiples[times]
                rows, unit = np.uint32(length // groups), np.uint32(times * self.size // groups)
                group, within = place // rows, place % rows
                there, part = group * unit + within % unit, within // unit
                if multiples is not None and Fraction(length, self.size) in multiples:
                    there, part = jnp.where(is_own(key), place, there), jnp.where(is_own(key), 0, part)
                block, place = block + part, there
            word = mixed(word + place + np.uint32(1))
        return word, block


def drawn_sizes(program: Any) -> set[int]:
    """Sizes of the axes of what a program draws, and of the keys that it makes; of None there are none."""
    drawn = (
        each
        for each in (equations(program) if program is not None else ())
        if primitive_name(each) in DRAWING | {"random_split"}
    )
    return {size for each in drawn for size in each.outvars[0].aval.shape}


def groupings(sizes: Collection[int], others: Collection[int], rows: int) -> Iterator[Groups]:
    """The ways in which what a program draws, of some `sizes`, may lie on shares of its `rows`.

    Two batches that are joined have a share of the one and a share of the other on each device, and so has
    what is drawn for them: they are two groups of rows. What is drawn for several rows each is for a part of
    them; for another number of rows such draws have `others` of these sizes. See `Shares.groups`.
    """
    multiples = sorted({size // rows for size in sizes if size and size % rows == 0})
    parts = [(Fraction(size, rows), 1) for size in sorted({*sizes} - {0, *others}) if size < rows]
    most = max(multiples, default=1)
    for groups in (most, *range(1, most)) if most > 1 or parts else ():
        yield (*((times, math.gcd(times, groups)) for times in multiples), *parts)


def block_of(key: Any) -> Any:
    """The block a key carries."""
    return key[1] >> BLOCK_BITS & LAST_BLOCK


def is_own(key: Any) -> Any:
    """Whether a key is the own one of a share."""
    return key[1] >> OWN_BITS == OF_SHARE


def moved(key: Any, blocks: Any) -> Any:
    """`key` for as many blocks further on."""
    block = (block_of(key) + jnp.asarray(blocks).astype(jnp.uint32)) & LAST_BLOCK
    return key.at[1].set(key[1] & ~(LAST_BLOCK << BLOCK_BITS) | block << BLOCK_BITS)


def own_key(key: Any, share: Any, shares: Shares) -> Any:
    """The key of a share's own that `key` gives it; it says so where that is asked for."""
    key = moved(key, share)
    if not shares.groups:
        return key
    return key.at[1].set(key[1] & ((np.uint32(1) << OWN_BITS) - 1) | OF_SHARE << OWN_BITS)


def digest(key: Any) -> Any:
    """One word made of a key, but for its block."""
    word = mixed(key[0] + np.uint32(0x9E3779B9))
    for index in range(1, key.shape[0]):
        part = key[index] & BELOW_BLOCK if index == 1 else key[index]
        word = mixed(word ^ (part + np.uint32(0x85EBCA6B)))
    return word


def child(key: Any, word: Any) -> Any:
    """The key that follows from `key` and a number, in the same block."""
    start = mixed(digest(key) ^ mixed(word))
    words = jnp.stack([mixed(start + np.uint32(index)) for index in range(key.shape[0])])
    return words.at[1].set((words[1] & BELOW_BLOCK) | (key[1] & ~BELOW_BLOCK))


@functools.cache
def repeating(shares: Shares, key_shape: tuple[int, ...]) -> Any:
    """The generator for `shares`, with keys of `key_shape` words."""

    def seed(number: Any) -> Any:
        return child(jnp.zeros(key_shape, jnp.uint32), number)

    def split(key: Any, shape: tuple[int, ...]) -> Any:
        if shares.siblings and tuple(shape) == (-(-shares.rows // shares.size),):
            return jax.vmap(lambda share: own_key(key, share, shares))(jnp.arange(shape[0], dtype=jnp.uint32))
        words, blocks = (part.reshape(-1) for part in shares.places(tuple(shape), key))
        keys = jax.vmap(lambda word, block: moved(child(key, word), block))(words, blocks)
        return keys.reshape(*shape, *key_shape)

    def random_bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Any:
        words, blocks = shares.places(tuple(shape), key)
        # The carried block has 8 bits, and so has the sum.
        block = (block_of(key) + blocks) & LAST_BLOCK
        high = mixed(mixed(digest(key) ^ words) + block)
        if bit_width == 64:
            low = mixed(high + np.uint32(1))
            return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
        kind = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[bit_width]
        return (high >> (32 - bit_width)).astype(kind)

    def fold_in(key: Any, number: Any) -> Any:
        # Numbers of examples, such as those of an arange, start again on every share.
        number = jnp.asarray(number).astype(jnp.uint32)
        size = np.uint32(shares.size)
        return moved(child(key, number % size), number // size)

    return jax.extend.random.define_prng_impl(
        key_shape=key_shape,
        seed=seed,
        split=split,
        random_bits=random_bits,
        fold_in=fold_in,
        name=f"shares_{shares.size}_{shares.rows}_{shares.siblings}_{shares.strides}_{shares.groups}",
        tag=f"shares{shares.size}of{shares.rows}{'s' if shares.siblings else ''}",
    )


@contextlib.contextmanager
def in_every_module(function: Any, instead: Callable[..., Any]) -> Iterator[None]:
    """Have `instead` called for a function of jax, under whatever name a module has imported it.

    It is given the function as it was, and the arguments by position.
    """
    code, name = function.__code__, f"_jax_pmap_{function.__name__}"
    own = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    takes = ", ".join(code.co_varnames[: code.co_argcount])
    made: dict[str, Any] = {}
    exec(f"def {function.__name__}({takes}): return {name}({takes})", made)
    function.__globals__[name] = functools.partial(instead, own)
    function.__code__ = made[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = code
        del function.__globals__[name]


@contextlib.contextmanager
def repeat_draws(shares: Shares | None) -> Iterator[None]:
    """Let every key draw from `repeating`; None changes nothing.

    Typed keys carry their generator with them: those in arguments go through `rekeyed` before, so that a
    loop gets and gives back keys of one type; others are changed as they are used.
    """
    if shares is None:
        yield
        return
    saved = dict(REGISTRY)
    offset = jax.config.jax_random_seed_offset
    for name, impl in saved.items():
        REGISTRY[name] = repeating(shares, tuple(impl.key_shape))._impl
    for holder in HOLDERS:
        vars(holder)["threefry_prng_impl"] = REGISTRY["threefry2x32"]
    # Part of the key of jax's caches, so that nothing compiled with another generator is used again.
    strides = sum(1_000_003 * stride for _, stride in shares.strides)
    layouts = sum(int(7_368_787 * (times + 31 * groups)) for times, groups in shares.groups)
    number = 2 * (1009 * shares.size + shares.rows) + int(shares.siblings)
    # It is added to seeds, which 32 bits hold.
    jax.config.update("jax_random_seed_offset", (number + strides + layouts) % np.iinfo(np.int32).max)
    invert = jax.core.Tracer.__invert__
    #: What stands for a device's index along an axis, that index, and the axis: as it is, or counting down
    #: from the largest number.
    indices: list[tuple[Any, Any, Any]] = []

    def marked_index(own: Callable[..., Any], axis_name: Any) -> Any:
        index = own(axis_name)
        indices.append((index, index, axis_name))
        return index

    def marked_inverse(value: Any) -> Any:
        inverse = invert(value)
        indices.extend(
            [(inverse, index, axis) for made, index, axis in indices if made is value and value is index]
        )
        return inverse

    def fold_in_or_move(own: Callable[..., Any], key: Any, data: Any) -> Any:
        found = next(((index, axis) for made, index, axis in indices if made is data), None)
        if found is None or (words := jax.random.key_data(key)).ndim != 1:
            return own(key, data)
        index, axis = found
        # A fold with the device's own index keeps the draws of the devices apart: its share is that block.
        there = own_key(words, index * shares.stride(axis), shares)
        return jax.random.wrap_key_data(there, impl=jax.random.key_impl(key)) if is_key(key) else there

    gate = SAMPLING.get(GATE)

    def rekeying_gate(name: str, key: Any, **options: Any) -> Any:
        assert gate is not None
        # Only to look at a key changes nothing, and `rekeyed` itself does it.
        return gate(name, key if name == "key_data" else rekeyed(key, shares), **options)

    jax.core.Tracer.__invert__ = marked_inverse
    if gate is not None:
        SAMPLING[GATE] = rekeying_gate
    try:
        with (
            in_every_module(jax.random.fold_in, fold_in_or_move),
            in_every_module(jax.lax.axis_index, marked_index),
        ):
            yield
    finally:
        jax.core.Tracer.__invert__ = invert
        if gate is not None:
            SAMPLING[GATE] = gate
        jax.config.update("jax_random_seed_offset", offset)
        REGISTRY.clear()
        REGISTRY.update(saved)
        for holder in HOLDERS:
            vars(holder)["threefry_prng_impl"] = THREEFRY


def rekeyed(value: Any, shares: Shares | None) -> Any:
    """`value` with its typed keys made keys of `repeating`; None changes nothing."""

    def one(leaf: Any) -> Any:
        if not is_key(leaf) or leaf.dtype._impl not in OWN:
            return leaf
        words = jax.random.key_data(leaf)
        return jax.random.wrap_key_data(words, impl=repeating(shares, words.shape[leaf.ndim :]))

    return value if shares is None else mapped(one, value)
