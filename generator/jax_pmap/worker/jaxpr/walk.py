"""Looking at all equations of a traced program, those in its loops, branches and calls among them."""

from collections.abc import Callable, Iterator
from typing import Any

from .versions import inner_jaxpr, opened, primitive_name

#: Jaxprs that run one after the other, in that order whatever order the parameters have.
IN_ORDER = ("cond_jaxpr", "body_jaxpr")
#: Types of most parameters, which hold none.
PLAIN = frozenset({int, bool, str, float, type(None)})
#: Primitives that run the jaxprs they hold, on their operands, and give what those give.
CONTROL = frozenset({"jit", "scan", "while", "cond", "shard_map", "xla_pmap"})
#: Of these, those that run a program on each of several devices.
MAPS = frozenset({"shard_map", "xla_pmap"})
#: Primitives that write at places which other operands hold.
SCATTERS = ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_max", "scatter_min")
#: Primitives that leave jax.
FOREIGN = frozenset(
    {
        "pure_callback",
        "io_callback",
        "debug_callback",
        "debug_print",
        "ffi_call",
        "custom_call",
        "call_exported",
        "pallas_call",
        "core_map",
        "mpmd_map",
        "inspect_sharding",
    }
)
#: Of these, those that give something back.
UNSEEN = FOREIGN - {"debug_callback", "debug_print", "inspect_sharding"}


def subjaxprs(equation: Any) -> list[Any]:
    """The jaxprs that an equation holds, closed or not: of a ``while`` its test, then its body."""
    params = equation.params
    if IN_ORDER[0] in params:
        params = {name: params[name] for name in IN_ORDER} | dict(params)
    return [
        each
        for value in params.values()
        if type(value) not in PLAIN
        for each in (value if isinstance(value, (tuple, list)) else (value,))
        if type(each) not in PLAIN and hasattr(getattr(each, "jaxpr", each), "eqns")
    ]


def control(equation: Any) -> str:
    """How an equation runs the jaxprs that it holds, one of `CONTROL`; ``""`` for any other operation.

    All that run one jaxpr once, on the equation's own operands, are a ``"jit"``: `remat`, `custom_vjp`.
    """
    name = primitive_name(equation)
    inner = inner_jaxpr(equation.params)
    if name == "jit" and (inner is None or len(opened(inner)[0].invars) != len(equation.invars)):
        return ""
    return name if name in CONTROL else ""


def walk(
    *jaxprs: Any, into: Callable[[Any], bool] = lambda equation: True, around: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], ...]]:
    """Every equation of a jaxpr, in the order in which they stand, each before those inside it.

    Each comes as a row, behind the rows of the equations around it, the outermost first. A row has one
    equation: of several traces of one function, those of all of them that are the same operation. A jaxpr
    is left out where the traces have other numbers of equations in it, and from the first other operation on.

        >>> import jax, jax.numpy as jnp
        >>> jaxpr = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x) + 1))(1.0)
        >>> [[row[0].primitive.name for row in rows] for rows in walk(jaxpr)]
        [['jit'], ['jit', 'sin'], ['jit', 'add']]

    Args:
        jaxprs: closed or not.
        into: whether equations inside of an equation, of the first trace, are wanted.
        around: rows that stand before those of every equation.
    """
    bodies = [opened(jaxpr)[0].eqns for jaxpr in jaxprs]
    if len({len(body) for body in bodies}) > 1:
        return
    for row in zip(*bodies, strict=True):
        if any(each.primitive is not row[0].primitive for each in row):
            return
        rows = (*around, row)
        yield rows
        if into(row[0]):
            for inside in zip(*map(subjaxprs, row), strict=False):
                yield from walk(*inside, into=into, around=rows)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, closed or not, and of the jaxprs inside it."""
    for equation in opened(jaxpr)[0].eqns:
        yield equation
        for inside in subjaxprs(equation):
            yield from equations(inside)


def programs_in(jaxpr: Any) -> Iterator[Any]:
    """A jaxpr, closed or not, and all those inside it."""
    yield jaxpr
    for equation in equations(jaxpr):
        yield from subjaxprs(equation)


def constants_in(jaxpr: Any) -> Iterator[Any]:
    """The constants of a jaxpr, closed or not, and of the closed jaxprs inside it."""
    for each in programs_in(jaxpr):
        yield from opened(each)[1]


def is_mapped(jaxpr: Any) -> bool:
    """Whether anything in a program is mapped over more than one device."""
    found = (each.params for each in equations(jaxpr) if each.primitive.name in MAPS)
    return any((p["mesh"].size if "mesh" in p else p["axis_size"]) > 1 for p in found)
