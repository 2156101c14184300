"""The keys that a program draws from, computed, to see whether draws of two kinds ever have the same one.

`draws` tells keys apart by where they are made, which is one place for all rounds of a loop. That
``fold_in(key, i)`` of a round is ``fold_in(key, i + 1)`` of the one before shows only in the keys themselves.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jax.sharding import PartitionSpec

from .budget import COMPUTING, peak
from .jaxpr.forward import Forward
from .jaxpr.versions import bind, inner_jaxpr, opened, primitive_name, scan_parts, while_parts
from .jaxpr.walk import MAPS, equations, is_mapped
from .leaves import is_key, is_key_leaf
from .work import work

#: Equations that draw from the key in their first operand.
DRAWING = frozenset({"random_bits", "random_gamma", "rng_bit_generator"})
#: Rounds of a loop of unknown length that are looked at.
ROUNDS = 64
#: Bytes and seconds that the keys of a program may take to compute; what takes more is not looked at.
ROOM, SECONDS = 1 << 30, 10.0

#: Words of the keys that a draw takes, one key a row, and which of them it takes indeed.
Taken = tuple[Any, Any]


def of_both_kinds(closed: Any, leaves: Sequence[Any], examples: Sequence[bool]) -> list[int]:
    """Which draws for examples ever draw from the very key of a draw for everybody.

    On one device their numbers depend on each other; with keys of the devices' own they would not.

    Args:
        closed: a program for one device, as `draws.follow` went through it.
        leaves: what it is called with; shapes will do, and of keys shapes are all that counts.
        examples: of each draw, in that order, whether it is for examples.
    """
    if all(examples) or not any(examples) or is_mapped(closed):
        return []
    keys = keys_of(closed, leaves)
    if keys is None:
        return []
    of_all = set().union(*(each for each, example in zip(keys, examples, strict=True) if not example))
    return [
        at for at, (each, example) in enumerate(zip(keys, examples, strict=True)) if example and each & of_all
    ]


def made_one(whole: Any, parts: Any, leaves: Sequence[Any]) -> "tuple[int, int] | None":
    """Two draws with keys apart on one device, of which one has on some device the other's on some device.

    `fold_in(key, 1)` is the key that device 1 makes with its index, and the first of `split(key, devices)` is
    `split(key)[0]`: numbers that do not depend on each other on one device then do.

    Args:
        whole: a program for one device.
        parts: the same mapped over devices, all of which are there.
        leaves: what both are called with.
    """
    maps = [each.params for each in equations(parts) if each.primitive.name in MAPS]
    if not is_mapped(parts) or not all("newly_manual_axes" in params for params in maps):
        return None  # Before jax 0.7 a pmap was no shard_map, and the specs of that were others.
    try:
        before, after = keys_of(whole, leaves), keys_of(parts, leaves)
    except (TypeError, ValueError, NotImplementedError):
        return None  # What jax does not map once more is not looked at.
    if before is None or after is None or len(before) != len(after):
        return None
    pairs = itertools.combinations(range(len(before)), 2)
    return next((pair for pair in pairs if not meet(before, *pair) and meet(after, *pair)), None)


def meet(keys: Sequence[set[Any]], one: int, other: int) -> bool:
    """Whether two draws have a key in common."""
    return not keys[one].isdisjoint(keys[other])


def keys_of(closed: Any, leaves: Sequence[Any]) -> "list[set[tuple[int, ...]]] | None":
    """The keys that each draw of a program takes, on any device; None where they are not computed."""
    if any("Debug" not in type(effect).__name__ for effect in closed.effects):
        return None  # What it does to the world it is not to do once more.
    program = jax.make_jaxpr(lambda *given: _taken(closed, given))(*leaves)
    jaxpr, used = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    needed = jax.extend.core.ClosedJaxpr(jaxpr, program.consts)
    if peak(needed) > ROOM or work(needed) > SECONDS * COMPUTING:
        return None
    given = [concrete(at, leaf) for at, leaf in enumerate(leaves) if used[at]]
    words = jax.jit(jax.extend.core.jaxpr_as_fun(needed))(*given)
    return [
        {tuple(key) for key in np.asarray(rows)[np.asarray(flags)].tolist()}
        for rows, flags in zip(words[::2], words[1::2], strict=True)
    ]


def concrete(at: int, leaf: Any) -> Any:
    """The leaf of number `at`, zeros in place of a shape; another key in place of one, no two the same."""
    if not is_key_leaf(leaf):
        return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    words = (*leaf.shape, *leaf.dtype._impl.key_shape) if is_key(leaf) else leaf.shape
    key = np.random.default_rng(at).integers(1 << 32, size=words, dtype=np.uint32)
    return jax.random.wrap_key_data(key, impl=leaf.dtype._impl) if is_key(leaf) else key


def _taken(closed: Any, given: Sequence[Any]) -> list[Taken]:
    """What each draw of a program takes."""
    run = _Drawing()
    run.run(closed, given)
    return [(words.reshape(-1, words.shape[-1]), flags.reshape(-1)) for words, flags in run.taken]


class _Drawing(Forward[Any]):
    """Runs a program, and keeps the keys of its draws, in the order in which `draws` meets them."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Taken] = []

    def operation(self, equation: Any, values: list[Any]) -> list[Any]:
        if equation.effects and not equation.outvars:
            return []  # It prints.
        inner = inner_jaxpr(equation.params)
        if primitive_name(equation) in DRAWING:
            words = jax.random.key_data(values[0]) if is_key(values[0]) else values[0]
            self.taken.append((words, jnp.ones(words.shape[:-1], bool)))
        elif inner is not None and len(opened(inner)[0].invars) == len(values):
            return self.inside(0, inner, values)
        return bind(equation, values)

    def part(self, jaxpr: Any, values: Sequence[Any]) -> tuple[list[Any], list[Taken]]:
        """Results of a jaxpr in the present equation, and what its draws take."""
        run = _Drawing()
        return run.run(jaxpr, values), run.taken

    def mapped(self, equation: Any, values: list[Any]) -> list[Any]:
        """What is mapped over devices; behind its results, the keys of all of them."""
        params = equation.params
        whole = PartitionSpec(tuple(params["newly_manual_axes"]))

        def body(*given: Any) -> Any:
            results, taken = self.part(params["jaxpr"], given)
            return results, [
                (words.reshape(-1, words.shape[-1]), flags.reshape(-1)) for words, flags in taken
            ]

        run = jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=params["in_specs"],
            out_specs=(list(params["out_specs"]), whole),
            axis_names=params["newly_manual_axes"],
            check_vma=params["check_vma"],
        )
        results, taken = run(*values)
        self.taken += taken
        return list(results)

    def scan(self, equation: Any, values: list[Any]) -> list[Any]:
        params = equation.params
        fixed, first, over = scan_parts(params, values)

        def body(carry: list[Any], each: list[Any]) -> tuple[list[Any], Any]:
            results, taken = self.part(params["jaxpr"], [*fixed, *carry, *each])
            return results[: len(carry)], (results[len(carry) :], taken)

        last, (stacked, taken) = jax.lax.scan(
            body, first, over, length=params["length"], reverse=params["reverse"]
        )
        self.taken += taken
        return [*last, *stacked]

    def while_loop(self, equation: Any, values: list[Any]) -> list[Any]:
        """A loop of unknown length, in its first rounds."""
        params = equation.params
        tests, fixed, first = while_parts(params, values)

        def body(state: tuple[list[Any], Any], _: Any) -> tuple[tuple[list[Any], Any], Any]:
            carry, was_on = state
            (goes_on,), tested = self.part(params["cond_jaxpr"], [*tests, *carry])
            on = was_on & jnp.any(goes_on)
            made, taken = self.part(params["body_jaxpr"], [*fixed, *carry])
            after = [jnp.where(on, new, old) for new, old in zip(made, carry, strict=True)]
            return (after, on), [*only(tested, was_on), *only(taken, on)]

        (last, _), taken = jax.lax.scan(body, (first, jnp.ones((), bool)), None, length=ROUNDS)
        self.taken += taken
        return list(last)

    def cond(self, equation: Any, values: list[Any]) -> list[Any]:
        index, *operands = values
        for number, branch in enumerate(equation.params["branches"]):
            _, taken = self.part(branch, operands)
            self.taken += only(taken, index == number)
        return bind(equation, values)


def only(taken: Sequence[Taken], when: Any) -> list[Taken]:
    """What is taken `when` something holds, and not otherwise."""
    return [(words, flags & when) for words, flags in taken]
