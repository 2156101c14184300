"""The decisions of a traced program, and which ways they go on some inputs.

Inputs on which a clip never clips, a mask is all ones or a counter stays small say nothing of what a
function does elsewhere. Every comparison, branch, extreme and rounding of a program is a decision here, and
`Decisions` runs the program for the ways they go alone.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .jaxpr.versions import scan_sizes

#: Where in a program an equation is: indices of equations, outermost first.
Place = tuple[int, ...]
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
PLACES = frozenset({"argmax", "argmin"})
PRINTING = frozenset({"debug_print", "debug_callback"})
#: Equations that run the one jaxpr they hold.
CALLS = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
#: Functions of jax that are decisions where a user writes them; others only hold some, as `logsumexp` does.
WRITTEN = frozenset(
    (
        *("where", "select", "maximum", "minimum", "max", "min", "clip", "abs", "sign", "any", "all"),
        *("isnan", "isfinite", "isinf", "isclose", "nanmean", "nansum", "nan_to_num", "heaviside"),
        *("cond", "switch", "while_loop", "fori_loop", "argmax", "argmin", "round", "floor", "ceil"),
        *(
            "relu",
            "relu6",
            "leaky_relu",
            "elu",
            "selu",
            "op",
            "ufunc",
            "deferring_binary_op",
            "equal",
            "not_equal",
        ),
        *("greater", "less", "greater_equal", "less_equal"),
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


def inner(params: Any, key: str) -> Any:
    """(jaxpr, constants) under a key of an equation's parameters."""
    held = params[key]
    return (held.jaxpr, held.consts) if hasattr(held, "jaxpr") else (held, ())


def ways_of(equation: Any) -> int:
    """In how many ways an equation can go by itself; 0 where it decides nothing."""
    name = equation.primitive.name
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
    if name in ROUNDINGS:
        return 3
    if name == "clamp":
        return 3
    if name == "convert_element_type":
        narrowed = np.issubdtype(equation.params["new_dtype"], np.integer)
        return 3 if narrowed and jax.dtypes.issubdtype(equation.invars[0].aval.dtype, np.floating) else 0
    return 0


def sites(jaxpr: Any, where: str | None = None) -> Iterator[Site]:
    """Every decision in a jaxpr, in the order of `taken`; all are `where`, or each where it was written."""
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        place = place_of(equation) if where is None else where
        own = ways_of(equation)
        if own:
            yield Site(name, place, own)
        if name in CALLS:
            # jax keeps the traces of its own functions, with the places they were first called from.
            kept = str(params.get("name", "")).lstrip("_") in WRITTEN
            yield from sites(inner(params, CALLS[name])[0], place if kept else where)
        elif name == "scan":
            yield from sites(inner(params, "jaxpr")[0], where)
        elif name == "while":
            yield Site(name, place, 2)
            yield from sites(inner(params, "cond_jaxpr")[0], where)
            yield from sites(inner(params, "body_jaxpr")[0], where)
        elif name == "cond":
            yield Site(name, place, len(params["branches"]))
            for branch in params["branches"]:
                yield from sites(inner({"": branch}, "")[0], where)
        elif name == "shard_map":
            inside = list(sites(inner(params, "jaxpr")[0], where))
            yield from inside
            if inside:
                yield Site(name, "", 2 * sum(site.ways for site in inside))


def decide(equation: Any, values: Sequence[Any], results: Sequence[Any]) -> Ways:
    """The ways an equation goes by itself."""
    name = equation.primitive.name
    if name in COMPARISONS:
        return [jnp.any(results[0]), jnp.any(~results[0])]
    if name == "select_n":
        return [jnp.any(values[0]), jnp.any(~values[0])]
    if name in EXTREMES:
        return [jnp.any(values[0] > values[1]), jnp.any(values[0] < values[1])]
    if name in SIGNS:
        real = jnp.real(values[0])
        return [jnp.any(real > 0), jnp.any(real < 0)]
    if name == "clamp":
        low, x, high = values
        return [jnp.any(x < low), jnp.any(x > high), jnp.any((x >= low) & (x <= high))]
    if name in PLACES:
        return [jnp.any(results[0] == 0), jnp.any(results[0] != 0)]
    # To zero, to a number that is off by much of itself, and to one that is hardly off.
    rounded = jnp.abs(results[0])
    return [jnp.any(rounded == 0), jnp.any((rounded > 0) & (rounded < 50)), jnp.any(rounded >= 50)]


def taken(
    jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any], limit: Any
) -> tuple[list[Any], Ways, Any]:
    """Results of a jaxpr, the ways its decisions go, in the order of `sites`, and whether it was cut off.

    It is where a loop of unknown length goes on for more than `limit` rounds: it ends there.
    """
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))
    ways: Ways = []
    cut_off = jnp.zeros((), bool)

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        results, found, inside = run(equation, values, limit)
        if ways_of(equation):
            ways += decide(equation, values, results)
        ways += found
        cut_off |= inside
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars], ways, cut_off


def run(equation: Any, values: list[Any], limit: Any) -> tuple[list[Any], Ways, Any]:
    """Results of one equation, the ways that decisions inside it go, and whether it was cut off."""
    name, params = equation.primitive.name, equation.params
    if name in PRINTING:
        return [], [], jnp.zeros((), bool)
    if name in CALLS:
        jaxpr, constants = inner(params, CALLS[name])
        if any(True for _ in sites(jaxpr)):
            return taken(jaxpr, constants, values, limit)
    elif name == "scan" and any(True for _ in sites(inner(params, "jaxpr")[0])):
        return run_scan(params, values, limit)
    elif name == "while":
        return run_while(params, values, limit)
    elif name == "cond":
        return run_cond(params, values, limit)
    elif name == "shard_map" and any(True for _ in sites(inner(params, "jaxpr")[0])):
        return run_mapped(params, values, limit)
    return bind(equation, values), [], jnp.zeros((), bool)


def bind(equation: Any, values: list[Any]) -> list[Any]:
    """Results of an equation as it stands."""
    bound = equation.primitive.get_bind_params(equation.params)
    # Before jax 0.8, functions that the equation holds came apart from its parameters.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    out = equation.primitive.bind(*functions, *values, **params)
    return list(out) if equation.primitive.multiple_results else [out]


def run_scan(params: Any, values: list[Any], limit: Any) -> tuple[list[Any], Ways, Any]:
    """A loop of known length; a decision went as it went in any round."""
    jaxpr, constants = inner(params, "jaxpr")
    first, carried = scan_sizes(params)
    fixed, carry, over = values[:first], values[first : first + carried], values[first + carried :]

    def body(carry: list[Any], each: list[Any]) -> tuple[list[Any], Any]:
        results, ways, cut_off = taken(jaxpr, constants, [*fixed, *carry, *each], limit)
        return results[:carried], (results[carried:], ways, cut_off)

    last, (stacked, ways, cut_off) = lax.scan(
        body, carry, over, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *stacked], [jnp.any(way) for way in ways], jnp.any(cut_off)


def run_while(params: Any, values: list[Any], limit: Any) -> tuple[list[Any], Ways, Any]:
    """A loop of unknown length: whether it is entered at all; the decisions in it, as in any round."""
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    fixed, held, first = values[:tests], values[tests : tests + bodies], values[tests + bodies :]
    tested, body = inner(params, "cond_jaxpr"), inner(params, "body_jaxpr")

    def test(carry: Sequence[Any]) -> tuple[Any, Ways, Any]:
        (goes_on,), ways, cut_off = taken(tested[0], tested[1], [*fixed, *carry], limit)
        return goes_on, ways, cut_off

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        carry, goes_on, before, inside, was_cut_off, rounds = state
        results, ways, cut_off = taken(body[0], body[1], [*held, *carry], limit)
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
    never = [jnp.zeros((), bool)] * sum(site.ways for site in sites(body[0]))
    last, goes_on, ways, inside, cut_off, _ = lax.while_loop(
        lambda state: jnp.any(state[1]) & (state[-1] < limit),
        step,
        (first, enters, ways, never, cut_off, jnp.zeros((), jnp.int32)),
    )
    return last, [jnp.any(enters), jnp.any(~enters), *ways, *inside], cut_off | jnp.any(goes_on)


def in_front(flags: Any, leaf: Any) -> Any:
    """`flags` with as many axes as `leaf`, its own in front."""
    return jnp.reshape(flags, (*jnp.shape(flags), *(1,) * (jnp.ndim(leaf) - jnp.ndim(flags))))


def run_cond(params: Any, values: list[Any], limit: Any) -> tuple[list[Any], Ways, Any]:
    """A branch: which one is taken, and the decisions in that one."""
    index, *operands = values
    branches = [inner({"": branch}, "") for branch in params["branches"]]
    sizes = [sum(site.ways for site in sites(jaxpr)) for jaxpr, _ in branches]

    def guarded(number: int) -> Callable[..., tuple[list[Any], Ways, Any]]:
        def call(*operands: Any) -> tuple[list[Any], Ways, Any]:
            jaxpr, constants = branches[number]
            results, own, cut_off = taken(jaxpr, constants, operands, limit)
            ways: Ways = []
            for other, size in enumerate(sizes):
                ways += own if other == number else [jnp.zeros((), bool)] * size
            return results, ways, cut_off

        return call

    at = jnp.clip(jnp.asarray(index, jnp.int32), 0, len(branches) - 1)
    results, ways, cut_off = lax.switch(at, [guarded(number) for number in range(len(branches))], *operands)
    return results, [*(at == number for number in range(len(branches))), *ways], cut_off


def run_mapped(params: Any, values: list[Any], limit: Any) -> tuple[list[Any], Ways, Any]:
    """A function mapped over devices; a decision went as it went on any of them.

    That it went so on the first and not on another is one more way, and the reverse.
    """
    jaxpr, constants = inner(params, "jaxpr")
    names = tuple(params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"])

    def body(limit: Any, *arguments: Any) -> tuple[list[Any], Any, Any]:
        results, ways, cut_off = taken(jaxpr, constants, arguments, limit)
        return results, jnp.stack(ways)[None], cut_off[None]

    mapped = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=(jax.sharding.PartitionSpec(), *params["in_specs"]),
        out_specs=(list(params["out_specs"]), *[jax.sharding.PartitionSpec(names)] * 2),
        axis_names=set(names),
        check_vma=params["check_vma"],
    )
    results, ways, cut_off = mapped(limit, *values)
    first, some, every = ways[0], jnp.any(ways, axis=0), jnp.all(ways, axis=0)
    return results, [*some, *(first & ~every), *(some & ~first)], jnp.any(cut_off)


#: Folders of jax whose functions users call.
PUBLIC = tuple(f"{os.sep}jax{os.sep}_src{os.sep}{name}{os.sep}" for name in ("numpy", "lax", "nn", "scipy"))


def place_of(equation: Any) -> str:
    """Where an equation was written as a decision, ``file:line``; ``""`` where a library made it one."""
    if equation.primitive.name == "select_n":
        return ""  # What it chooses by is a decision already.
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
        #: In order.
        self.sites: list[Site] = [] if effects else list(sites(closed.jaxpr))

        def ways(leaves: Sequence[Any], limit: Any) -> Any:
            flat = jax.tree.leaves(leaves)
            _, found, cut_off = taken(closed.jaxpr, closed.consts, flat, limit)
            return jnp.stack([cut_off, *found])

        # XLA leaves out what no decision depends on.
        self._run = jax.jit(ways)
        self._limit = FEW_ROUNDS
        if any(site.name == "while" for site in self.sites):
            while self(leaves) is None and self._limit < MOST_ROUNDS:
                self._limit *= 4
            self._limit *= MORE_ROUNDS
        self.numbers = constants_of(closed)

    def __call__(self, leaves: Sequence[Any]) -> np.ndarray | None:
        """For each way of each decision, whether it is taken anywhere on these leaves; None where cut off."""
        if not self.sites:
            return np.zeros(0, bool)
        cut_off, *ways = np.asarray(self._run(leaves, np.int32(self._limit)))
        return None if cut_off else np.asarray(ways)


def constants_of(closed: Any) -> list[float]:
    """The numbers that are written in a program and compared, or that set its remainders; each once."""
    found: dict[float, None] = {}

    def look(jaxpr: Any, fixed: dict[Any, Any]) -> None:
        fixed = dict(fixed)
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            values = [v.val if hasattr(v, "val") else fixed.get(v) for v in equation.invars]
            if name in ("convert_element_type", "broadcast_in_dim") and values[0] is not None:
                fixed[equation.outvars[0]] = values[0]
            if name in COMPARISONS or name in EXTREMES or name in ("rem", "div", "clamp"):
                for value in values:
                    if value is not None and np.ndim(value) == 0 and math.isfinite(np.real(value)):
                        found[float(np.real(value))] = None
            for value in equation.params.values():
                for held in value if isinstance(value, (tuple, list)) else (value,):
                    body: Any = getattr(held, "jaxpr", held)
                    if not hasattr(body, "eqns"):
                        continue
                    given = dict(zip(body.constvars, getattr(held, "consts", ()), strict=False))
                    if len(body.invars) == len(values):
                        given |= {v: x for v, x in zip(body.invars, values, strict=True) if x is not None}
                    look(body, {k: x for k, x in given.items() if np.ndim(x) == 0})

    look(
        closed.jaxpr,
        {k: x for k, x in zip(closed.jaxpr.constvars, closed.consts, strict=True) if np.ndim(x) == 0},
    )
    return list(found)
