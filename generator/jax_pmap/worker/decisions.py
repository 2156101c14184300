"""The decisions of a traced program, and which ways they go on some inputs.

Inputs on which a clip never clips, a mask is all ones or a counter stays small say nothing of what a
function does elsewhere. Every comparison, branch, extreme and rounding of a program is a decision here, and
`Decisions` runs the program for the ways they go alone.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .exchanged import Chosen, kept_apart
from .jaxpr.forward import Forward
from .jaxpr.versions import bind, inner_jaxpr, primitive_name, scan_parts, while_parts
from .jaxpr.walk import control, equations, subjaxprs, walk
from .leaves import is_key
from .placements.interpreter import COLLECTIVES

#: Ways a decision went, one traced bool for each that it has.
Ways = list[Any]
#: Rounds of a loop of unknown length, to begin with, and at most.
FEW_ROUNDS, MOST_ROUNDS = 64, 1 << 20
#: More rounds than on the inputs given are followed up to this many times as many.
MORE_ROUNDS = 8

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "is_finite", "reduce_and", "reduce_or"})
EXTREMES = frozenset({"max", "min"})
SIGNS = frozenset({"abs", "sign"})
ROUNDINGS = frozenset({"round", "floor", "ceil"})
#: What moves a number's zero: ``exp(-(loss - 3) ** 2 / 1e-6)`` is a gate, too.
SHIFTS = frozenset({"add", "sub"})
PLACES = frozenset({"argmax", "argmin"})
#: What compares with a number, or makes remainders by it.
LIMITING = COMPARISONS | EXTREMES | {"rem", "div", "clamp"}
#: What devices take part in together.
EXCHANGES = COLLECTIVES - {"axis_index"}
PRINTING = frozenset({"debug_print", "debug_callback"})
#: Equations whose own decisions and those inside are followed.
FOLLOWED = frozenset({"jit", "scan", "while", "cond", "shard_map"})
#: Functions of jax that are decisions where a user writes them; others only hold some, as `logsumexp` does.
WRITTEN = frozenset(
    (
        *("where", "select", "maximum", "minimum", "max", "min", "clip", "abs", "sign", "any", "all"),
        *("isnan", "isfinite", "isinf", "isclose", "nanmean", "nansum", "nan_to_num", "heaviside"),
        *("cond", "switch", "while_loop", "fori_loop", "argmax", "argmin", "round", "floor", "ceil"),
        *("relu", "relu6", "leaky_relu", "elu", "selu", "op", "ufunc", "deferring_binary_op"),
        *("equal", "not_equal", "greater", "less", "greater_equal", "less_equal"),
    )
)


@dataclass(frozen=True)
class Site:
    """A decision of a program."""

    #: Name of its primitive.
    name: str
    #: ``file:line`` in code that is no library's, or ``""`` where a library decided of its own accord.
    where: str
    #: How many ways it can go.
    ways: int
    #: Whether devices exchange something else in one of the ways than in another.
    exchanges: bool = False


def ways_of(equation: Any) -> int:
    """In how many ways an equation can go by itself; 0 where it decides nothing."""
    name = equation.primitive.name
    if name == "while":
        return 2  # Whether it is entered at all.
    if name == "cond":
        return len(equation.params["branches"])
    if name == "shard_map":
        # That it went so on the first device and not on another, and the reverse.
        return 2 * sum(site.ways for site in sites(inner_jaxpr(equation.params)))
    if name in COMPARISONS or name == "select_n":
        operand = equation.invars[0]
        if name == "select_n" and (operand.aval.dtype != np.bool_ or len(equation.invars) != 3):
            return 0
        # Negative indices of jax's own are no decision of anybody's.
        others = [v for v in equation.invars[1:] if hasattr(v, "val")]
        integer = np.issubdtype(operand.aval.dtype, np.integer) if name == "lt" else False
        return 0 if integer and others and np.ndim(others[0].val) == 0 and int(others[0].val) == 0 else 2
    if name in EXTREMES:
        # The least element of nothing, with which reductions begin.
        return 0 if any(hasattr(v, "val") and np.isinf(np.max(v.val)) for v in equation.invars) else 2
    if name in SIGNS or name in PLACES:
        return 2
    if name in SHIFTS:
        out = equation.outvars[0].aval
        written = any(hasattr(v, "val") and np.any(v.val) for v in equation.invars)
        return 2 if written and not out.shape and jax.dtypes.issubdtype(out.dtype, np.floating) else 0
    if name in ROUNDINGS:
        return 3
    if name == "clamp":
        return 3
    if name == "convert_element_type":
        narrowed = np.issubdtype(equation.params["new_dtype"], np.integer)
        return 3 if narrowed and jax.dtypes.issubdtype(equation.invars[0].aval.dtype, np.floating) else 0
    return 0


def followed(equation: Any) -> bool:
    """Whether the decisions inside an equation are looked at."""
    return control(equation) in FOLLOWED


def sites(*jaxprs: Any, apart: Chosen = frozenset()) -> list[Site]:
    """Every decision in some jaxprs, in the order of `taken`, each where it was written.

    Of `apart`, see `kept_apart`, it is known that devices exchange something else one way.
    """
    found = []
    for jaxpr in jaxprs:
        for rows in walk(jaxpr, into=followed):
            *around, equation = (row[0] for row in rows)
            if ways := ways_of(equation):
                # jax keeps the traces of its own functions, with the places they were first called from.
                written = (each for each in around if str(each.params.get("name", "")).lstrip("_") in WRITTEN)
                name = equation.primitive.name
                exchanges = name == "cond" and exchanges_apart(equation)
                if apart and name == "select_n":
                    exchanges = tuple(id(row[0]) for row in rows) in apart
                at = next(written, equation)
                # What a `select_n` chooses by is a decision already.
                known = name in SHIFTS or (at is equation and name == "select_n" and not exchanges)
                found.append(Site(name, "" if known else place_of(at), ways, exchanges))
    return found


def exchanges_apart(equation: Any) -> bool:
    """Whether the branches of an equation have other collectives."""
    branches = [
        sorted(name for each in equations(branch) if (name := primitive_name(each)) in EXCHANGES)
        for branch in equation.params["branches"]
    ]
    return any(branch != branches[0] for branch in branches)


def decide(equation: Any, values: Sequence[Any], results: Sequence[Any]) -> Ways:
    """The ways an equation goes by itself."""
    name = equation.primitive.name
    if name in COMPARISONS:
        return [jnp.any(results[0]), jnp.any(~results[0])]
    if name == "select_n":
        return [jnp.any(values[0]), jnp.any(~values[0])]
    if name in EXTREMES:
        return [jnp.any(values[0] > values[1]), jnp.any(values[0] < values[1])]
    if name in SIGNS or name in SHIFTS:
        real = jnp.real(values[0] if name in SIGNS else results[0])
        return [jnp.any(real > 0), jnp.any(real < 0)]
    if name == "clamp":
        low, x, high = values
        return [jnp.any(x < low), jnp.any(x > high), jnp.any((x >= low) & (x <= high))]
    if name in PLACES:
        return [jnp.any(results[0] == 0), jnp.any(results[0] != 0)]
    # To zero, to a number that is off by much of itself, and to one that is hardly off.
    rounded = jnp.abs(results[0])
    return [jnp.any(rounded == 0), jnp.any((rounded > 0) & (rounded < 50)), jnp.any(rounded >= 50)]


def taken(jaxpr: Any, arguments: Sequence[Any], limit: Any) -> tuple[list[Any], Ways, Any]:
    """Results of a jaxpr, the ways its decisions go, in the order of `sites`, and whether it was cut off.

    It is where a loop of unknown length goes on for more than `limit` rounds: it ends there.
    """
    run = _Taken(limit)
    return run.run(jaxpr, arguments), run.ways, run.cut_off


class _Taken(Forward[Any]):
    """Runs a program, and notes which ways its decisions go."""

    enters = FOLLOWED

    def __init__(self, limit: Any) -> None:
        super().__init__()
        self.limit = limit
        self.ways: Ways = []
        self.cut_off = jnp.zeros((), bool)

    def equation(self, equation: Any, values: list[Any]) -> list[Any]:
        if equation.primitive.name in PRINTING:
            return []
        # What decides nothing runs as it stands.
        decides = ways_of(equation) or (followed(equation) and sites(*subjaxprs(equation)))
        return super().equation(equation, values) if decides else bind(equation, values)

    def operation(self, equation: Any, values: list[Any]) -> list[Any]:
        results = bind(equation, values)
        self.ways += decide(equation, values, results)
        return results

    def note(self, ways: Ways, cut_off: Any) -> None:
        """Ways that the decisions inside an equation went, and whether it was cut off."""
        self.ways += ways
        self.cut_off |= cut_off

    def scan(self, equation: Any, values: list[Any]) -> list[Any]:
        """A loop of known length; a decision went as it went in any round."""
        params = equation.params
        fixed, carry, over = scan_parts(params, values)

        def body(carry: list[Any], each: list[Any]) -> tuple[list[Any], Any]:
            results, ways, cut_off = taken(params["jaxpr"], [*fixed, *carry, *each], self.limit)
            return results[: len(carry)], (results[len(carry) :], ways, cut_off)

        last, (stacked, ways, cut_off) = lax.scan(
            body, carry, over, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
        )
        self.note([jnp.any(way) for way in ways], jnp.any(cut_off))
        return [*last, *stacked]

    def while_loop(self, equation: Any, values: list[Any]) -> list[Any]:
        """A loop of unknown length: whether it is entered at all; the decisions in it, as in any round."""
        params = equation.params
        fixed, consts, first = while_parts(params, values)

        def test(carry: Sequence[Any]) -> tuple[Any, Ways, Any]:
            (goes_on,), ways, cut_off = taken(params["cond_jaxpr"], [*fixed, *carry], self.limit)
            return goes_on, ways, cut_off

        def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
            carry, goes_on, before, inside, was_cut_off, rounds = state
            results, ways, cut_off = taken(params["body_jaxpr"], [*consts, *carry], self.limit)
            # Under vmap one that is done stays as it is, while others go on.
            results = [
                jnp.where(in_front(goes_on, new), new, old) for new, old in zip(results, carry, strict=True)
            ]
            goes_on, now, too = test(results)
            return (
                results,
                goes_on,
                either(before, now),
                either(inside, ways),
                was_cut_off | cut_off | too,
                rounds + 1,
            )

        def either(ways: Ways, others: Ways) -> Ways:
            return [one | other for one, other in zip(ways, others, strict=True)]

        enters, ways, cut_off = test(first)
        last, goes_on, ways, inside, cut_off, _ = lax.while_loop(
            lambda state: jnp.any(state[1]) & (state[-1] < self.limit),
            step,
            (first, enters, ways, never(params["body_jaxpr"]), cut_off, jnp.zeros((), jnp.int32)),
        )
        self.note([jnp.any(enters), jnp.any(~enters), *ways, *inside], cut_off | jnp.any(goes_on))
        return list(last)

    def cond(self, equation: Any, values: list[Any]) -> list[Any]:
        """A branch: which one is taken, and the decisions in that one."""
        index, *operands = values
        branches = equation.params["branches"]

        def guarded(number: int) -> Callable[..., tuple[list[Any], Ways, Any]]:
            def call(*operands: Any) -> tuple[list[Any], Ways, Any]:
                results, own, cut_off = taken(branches[number], operands, self.limit)
                before, after = never(*branches[:number]), never(*branches[number + 1 :])
                return results, [*before, *own, *after], cut_off

            return call

        numbers = range(len(branches))
        at = jnp.clip(jnp.asarray(index, jnp.int32), 0, len(branches) - 1)
        results, ways, cut_off = lax.switch(at, [guarded(number) for number in numbers], *operands)
        self.note([*(at == number for number in numbers), *ways], cut_off)
        return list(results)

    def mapped(self, equation: Any, values: list[Any]) -> list[Any]:
        """A function mapped over devices; a decision went as it went on any of them."""
        params, spec = equation.params, jax.sharding.PartitionSpec
        names = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]

        def body(limit: Any, *arguments: Any) -> tuple[list[Any], Any, Any]:
            results, ways, cut_off = taken(inner_jaxpr(params), arguments, limit)
            return results, jnp.stack(ways)[None], cut_off[None]

        mapped = jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=(spec(), *params["in_specs"]),
            out_specs=(list(params["out_specs"]), *[spec(tuple(names))] * 2),
            axis_names=set(names),
            check_vma=params["check_vma"],
        )
        results, ways, cut_off = mapped(self.limit, *values)
        first, some, every = ways[0], jnp.any(ways, axis=0), jnp.all(ways, axis=0)
        self.note([*(first & ~every), *(some & ~first), *some], jnp.any(cut_off))
        return list(results)


def never(*jaxprs: Any) -> Ways:
    """The ways of the decisions in some jaxprs that do not run."""
    return [jnp.zeros((), bool)] * sum(site.ways for site in sites(*jaxprs))


def in_front(flags: Any, leaf: Any) -> Any:
    """`flags` with as many axes as `leaf`, its own in front."""
    return jnp.reshape(flags, (*jnp.shape(flags), *(1,) * (jnp.ndim(leaf) - jnp.ndim(flags))))


#: Folders of jax whose functions users call.
PUBLIC = tuple(f"{os.sep}jax{os.sep}_src{os.sep}{name}{os.sep}" for name in ("numpy", "lax", "nn", "scipy"))


def place_of(equation: Any) -> str:
    """Where an equation was written as a decision, ``file:line``; ``""`` where a library made it one."""
    called, ours = "", os.path.dirname(os.path.abspath(__file__))
    trace = getattr(equation.source_info, "traceback", None)
    for frame in getattr(trace, "frames", ()):
        path = frame.file_name
        if any(part in path for part in PUBLIC):
            called = frame.function_name.removesuffix(".__call__").rpartition(".")[2].lstrip("_")
        elif f"{os.sep}jax{os.sep}" not in path:
            installed = any(f"{os.sep}{name}-packages{os.sep}" in path for name in ("site", "dist"))
            foreign = installed or path.startswith((ours, "<")) or called not in WRITTEN
            return "" if foreign else f"{path}:{frame.line_num}"
    return ""


class Decisions:
    """The decisions of a function of leaves.

    Loops of unknown length are followed for several times as many rounds as they go on for with the
    `leaves` given: on others they may go on for ever.

    Raises:
        Exception: whatever keeps the function from being traced.
    """

    def __init__(self, program: Callable[[Sequence[Any]], Any], leaves: Sequence[Any]) -> None:
        closed = jax.make_jaxpr(program)(leaves)
        # What has effects is not run for its decisions alone; what only prints is, without the printing.
        effects = [effect for effect in closed.effects if "Debug" not in type(effect).__name__]
        chosen, own = kept_apart(closed)
        #: In order.
        self.sites: list[Site] = [] if effects else sites(closed, apart=chosen)
        #: Where results are made, ``file:line``, that are taken as those of all devices, and are each's own.
        self.own = tuple(dict.fromkeys(filter(None, map(place_of, own))))

        def ways(leaves: Sequence[Any], limit: Any) -> Any:
            flat = jax.tree.leaves(leaves)
            _, found, cut_off = taken(closed, flat, limit)
            return jnp.stack([cut_off, *found])

        # XLA leaves out what no decision depends on.
        self._run = jax.jit(ways)
        self._cut_off = jax.jit(lambda leaves, limit: taken(closed, jax.tree.leaves(leaves), limit)[2])
        self._limit = FEW_ROUNDS
        self._loops = any(site.name == "while" for site in self.sites)
        if self._loops:
            while not self.end(leaves) and self._limit < MOST_ROUNDS:
                self._limit *= 4
            self._limit *= MORE_ROUNDS
        self.numbers = constants_of(closed)
        self.lengths = indexed_lengths(closed)

    def __call__(self, leaves: Sequence[Any]) -> np.ndarray | None:
        """For each way of each decision, whether it is taken anywhere on these leaves; None where cut off."""
        if not self.sites:
            return np.zeros(0, bool)
        cut_off, *ways = np.asarray(self._run(leaves, np.int32(self._limit)))
        return None if cut_off else np.asarray(ways)

    def end(self, leaves: Sequence[Any]) -> bool:
        """Whether all loops come to an end on these leaves, after as many rounds as they are followed for."""
        return not (self._loops and bool(self._cut_off(leaves, np.int32(self._limit))))


def indexed_lengths(closed: Any) -> list[int]:
    """How long axes are of which a negative index counts from the end: what jax adds to one below 0."""
    below, added = set(), dict[Any, list[int]]()
    for equation in equations(closed):
        name = equation.primitive.name
        if name not in ("lt", "add"):
            continue
        of, *others = equation.invars
        if not hasattr(others[0], "val") or hasattr(of, "val"):
            continue
        number = others[0].val
        if np.ndim(number) or not np.issubdtype(of.aval.dtype, np.integer):
            continue
        if name == "add":
            added.setdefault(of, []).append(int(number))
        elif not int(number):
            below.add(of)
    return sorted({number for of in below for number in added.get(of, ())})


def constants_of(closed: Any, among: frozenset[str] = LIMITING) -> list[float]:
    """The numbers that are written in a program and are operands of an operation `among` these; each once."""
    numbers = _Numbers(among)
    numbers.run(closed, [None] * len(closed.in_avals))
    return list(numbers.found)


class _Numbers(Forward[Any]):
    """Follows numbers that are written in a program; of other values, and of arrays, nothing is known."""

    def __init__(self, among: frozenset[str]) -> None:
        super().__init__()
        self.among = among
        self.found: dict[float, None] = {}

    def constant(self, value: Any) -> Any:
        return None if np.ndim(value) or is_key(value) else value

    def join(self, one: Any, other: Any) -> Any:
        return one if one is not None and other is not None and one == other else None

    def operation(self, equation: Any, values: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in self.among:
            real = (float(np.real(value)) for value in values if value is not None)
            self.found.update(dict.fromkeys(number for number in real if math.isfinite(number)))
        # In another dtype or shape it is still the number that was written.
        kept = name in ("convert_element_type", "broadcast_in_dim")
        return [values[0] if kept else None] * len(equation.outvars)
