"""What a call computes in NumPy or Python, and for which other values that is what jax computes.

A proof is about the values that are given. Where NumPy computes with a leaf, the caller may come with 64 bits
next time, which jax takes in 32, or with NumPy's array in place of one of jax's.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np

from .arguments import Packed, Values, copied
from .call_traces import (
    alike,
    apart,
    beyond,
    goes_on,
    is_of_jax,
    is_wide,
    kind_of,
    replaced,
    results,
    where_parted,
)
from .exceptions import attempted
from .following import Followed, follow
from .leaves import category
from .protocol import CompareWithCall, Narrowed, Site
from .specs import SEED
from .type_tests import parted

#: Leaves of one argument, up to which each is looked at by itself.
MOST_LEAVES = 16
#: How much of the time there is one size of a number may take: it is tried at several, and may be how often
#: a loop goes round.
TRIED = 1 / 64
#: Sizes up to which integers are tried, the largest that 32 bits hold first.
SIZES = ((1 << 31) - 1, 1 << 29, 1 << 24, 1 << 20, 1 << 15, 1 << 10)
#: Values up to a size that are tried in place of the given ones: spread out, those moved there, and the size.
Draw = Callable[[Any, int, np.random.Generator], Any]
DRAWS: tuple[Draw, ...] = (
    lambda given, size, rng: size * _signed(given, rng.random(np.shape(given))),
    lambda given, size, _: given + (size - np.max(given, initial=0)),
    lambda given, size, _: np.full(np.shape(given), size),
)
#: What a call and its trace give, where it can be seen in time.
Agreement = Literal["same", "other", "too long"]
#: The types of 64 bits, by the kinds of those that have fewer.
WIDE = {"i": np.int64, "u": np.uint64}


class InNumpy:
    """The leaves that NumPy computes with in a call, and what the emitted code can take for them.

    Args:
        values: the arguments.
        traced: the trace of all their leaves.
        names: of these leaves.
        request: says what is constant, and what computing may take.
    """

    def __init__(
        self, values: Values, traced: Followed, names: Sequence[str], request: CompareWithCall
    ) -> None:
        self.values, self.statics, self.traced, self.names = values, request.statics, traced, names
        self.data, self.room, self.seconds = request.data, request.room, request.seconds * TRIED
        self._made: dict[tuple[Any, ...], Followed] = {}

    def as_given(self, call: Followed) -> tuple[Narrowed, ...]:
        """The leaves that NumPy or Python computes with in a call, and how large their values may be."""
        leaves = Packed(self.values, self.statics).leaves
        own = [i for i, leaf in enumerate(leaves) if not is_of_jax(i, leaf)]
        some = self._computed_with(
            self.values, call, [i for i in own if is_wide(leaves[i]) or may_be_wider(leaves[i])]
        )
        return tuple(Narrowed(self.names[i], kind_of(leaves[i]), self._reach(self.values, i)) for i in some)

    def as_numpy(self) -> "tuple[tuple[Narrowed, ...], Site | None]":
        """The same of NumPy's arrays in place of jax's, and where the function goes another way with them."""
        packed = Packed(self.values, self.statics)
        leaves, owners = packed.leaves, packed.owners
        given = [
            i
            for i, leaf in enumerate(leaves)
            if owners[i][0] in self.data and category(leaf) == "array" and is_of_jax(i, leaf)
        ]
        if not given:
            return (), None
        values = replaced(self.values, self.statics, lambda i, leaf: np.asarray(leaf) if i in given else leaf)
        call = attempted(follow, values, self.statics, is_of_jax)
        if call is None:
            return (), None  # The function takes no arrays of NumPy's.
        place = where_parted(call, self.traced)
        if place is not None and (again := attempted(follow, self.values, self.statics)) is not None:
            # What the first trace made once, as a table, none makes later.
            place = where_parted(call, again)
        if place is not None or alike(self.traced, call, Packed(values, self.statics).leaves):
            return (), place
        some = self._computed_with(values, call, [i for i in given if may_be_wider(leaves[i])])
        return tuple(Narrowed(self.names[i], kind_of(leaves[i]), self._reach(values, i)) for i in some), None

    def _computed_with(self, values: Values, call: Followed, which: Sequence[int]) -> list[int]:
        """The leaves of `which` without whose values the call is another program."""
        packed = Packed(values, self.statics)

        def needed(some: Sequence[int]) -> bool:
            again = attempted(
                lambda: follow(values, self.statics, lambda i, leaf: i in some or is_of_jax(i, leaf))
            )
            if again is None:
                return True  # NumPy takes no tracer.
            ways = again.watch.asked.keys() != call.watch.asked.keys() or parted(call.watch, again.watch)
            return bool(ways) or not alike(again, call, packed.leaves)

        def those(some: Sequence[int]) -> list[int]:
            # Each question is a trace: that none of many counts is seen in one.
            if not some or not needed(some):
                return []
            names = {packed.owners[i][0] for i in some}
            if len(some) == 1 or (len(some) > MOST_LEAVES and len(names) == 1):
                return [*some]
            half = len(some) // 2
            return those(some[:half]) + those(some[half:])

        return those(which)

    def _reach(self, values: Values, index: int) -> int | None:
        """Up to which size integers of a leaf may be for call and trace to give the same, as far as tried.

        What the call computes with them in 64 bits may pass 32 where they do not. None: no limit was seen.
        """
        given = Packed(values, self.statics).leaves[index]
        if kind_of(given).startswith("float"):
            return None
        wide = given if is_wide(given) else np.asarray(given, WIDE[given.dtype.kind])
        rng, differed = np.random.default_rng(SEED), False
        least = int(np.max(np.abs(given), initial=0))

        def agree(limit: int) -> Agreement:
            ways = (self._agree(values, index, wide, draw(given, limit, rng)) for draw in DRAWS)
            return next((way for way in ways if way != "same"), "same")

        for limit in SIZES:
            if limit <= least:
                break
            way = attempted(agree, limit)
            if way == "same":
                return limit if differed or limit == SIZES[0] else None
            if way == "too long" and np.ndim(given):
                break  # Of an array, other numbers take no less to compute with.
            # None: the call itself refuses such numbers, as an index.
            differed = differed or way == "other"
        return least if differed else None

    def _agree(self, values: Values, index: int, like: Any, made: Any) -> Agreement:
        """Whether the call and the trace give the same for another value of a leaf, of the type of `like`.

        It may take too long to see, as of a count of steps nobody waits for the end.
        """

        def other(i: int, leaf: Any) -> Any:
            if i != index:
                return leaf
            return np.asarray(made, like.dtype) if hasattr(like, "dtype") else int(made)

        values = replaced(copied(values), self.statics, other)
        call, trace = follow(values, self.statics, is_of_jax), self._traced(values)
        if alike(trace, call, Packed(values, self.statics).leaves, computes=True):
            return "same"
        if beyond(self.room, self.seconds, trace, call):
            return "too long"
        if goes_on(trace, self.seconds) or goes_on(call, self.seconds):
            return "too long"
        return "other" if apart(results(trace), results(call), None) else "same"

    def _traced(self, values: Values) -> Followed:
        """The trace of all leaves, which knows no more of them than their types."""
        leaves = Packed(values, self.statics).leaves
        types = tuple(jax.eval_shape(lambda each: each, leaves))
        if types not in self._made:
            self._made[types] = follow(values, self.statics)
        return dataclasses.replace(self._made[types], given=leaves)


def may_be_wider(leaf: Any) -> bool:
    """Whether there are arrays like this one of 64 bits, in which NumPy computes and jax does not.

    A single integer counts something, which does not come to what 32 bits do not hold.
    """
    if category(leaf) != "array" or leaf.dtype.kind not in WIDE or leaf.ndim == 0:
        return False
    wide = WIDE[leaf.dtype.kind]
    return bool(jax.dtypes.canonicalize_dtype(wide) != wide)


def _signed(given: Any, part: Any) -> Any:
    """Numbers from 0 to 1, or from -1 where given ones are below zero."""
    return 2 * part - 1 if np.min(given, initial=0) < 0 else part
