"""Decorators and calls that compile or map the target: jit, pmap and their relatives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jax_pmap.reading.facts import Decorator, FunctionFacts
from jax_pmap.reading.wrappers import passes_on
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.resolve import UNKNOWN, Resolver
from jax_pmap.syntax.scopes import parameters

COMPILERS = frozenset({"jax.jit", "equinox.filter_jit", "flax.nnx.jit"})
MAPPERS = frozenset({"jax.pmap", "equinox.filter_pmap", "flax.nnx.pmap"})
#: Map a function over the devices of a mesh.
SHARD_MAPS = frozenset({"jax.shard_map", "jax.experimental.shard_map.shard_map", "flax.nnx.shard_map"})

#: Give names to what runs, or check it, and leave every result as it is.
_OBSERVERS = frozenset(
    {
        "jax.named_call",
        "jax.named_scope",
        "jax.profiler.annotate_function",
        "chex.assert_max_traces",
        "beartype.beartype",
        "jaxtyping.jaxtyped",
        "typeguard.typechecked",
        "typing.no_type_check",
        "typing.final",
        "typing.override",
        "typing_extensions.final",
        "typing_extensions.override",
        # How a method is looked up, not what it does.
        "staticmethod",
        "classmethod",
    }
)

#: Change when values are computed, not which: a copy of a function that has one keeps it.
RECOMPUTERS = frozenset({"jax.checkpoint", "jax.remat", "equinox.filter_checkpoint", "flax.nnx.remat"})

SET_ASIDE = COMPILERS | MAPPERS | _OBSERVERS

_STATIC = ("static_argnums", "static_argnames", "static_broadcasted_argnums")
_DONATED = ("donate_argnums", "donate_argnames")


def read_decorators(parsed: ParsedSource, resolver: Resolver) -> tuple[Decorator, ...]:
    """The target's decorators, outermost first."""
    rows = []
    for expression in parsed.definition.decorator_list:
        text = parsed.segment(expression)
        name = resolver.transformed(expression)[0] or text
        known = name in SET_ASIDE
        passes = not known and passes_on(parsed, expression)
        rows.append(Decorator(text, name, known or passes, parsed.span(expression), passes))
    return tuple(rows)


def receiver_of(parsed: ParsedSource) -> str:
    """The parameter that a method is called on (``self``, ``cls``), or ``""`` for any other function."""
    if not parsed.enclosing or not isinstance(parsed.enclosing[-1], ast.ClassDef):
        return ""
    decorators = {getattr(each, "id", "") for each in parsed.definition.decorator_list}
    positional = [*parsed.definition.args.posonlyargs, *parsed.definition.args.args]
    return positional[0].arg if positional and "staticmethod" not in decorators else ""


def transformations(
    parsed: ParsedSource, resolver: Resolver
) -> Iterator[tuple[str, tuple[ast.Call, ...], int]]:
    """Every jit or pmap of the target in its file: as a decorator, or as ``step = jax.jit(step, …)``.

    With its calls goes how many of the target's parameters are bound before it: those that `partial` fills
    by position, and the receiver of ``self.step``.
    """
    for expression in parsed.definition.decorator_list:
        name, calls = resolver.transformed(expression)
        if name in COMPILERS | MAPPERS:
            yield name, calls, 0
    for node in ast.walk(parsed.tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        bound = _bound_before(parsed, resolver, node.args[0])
        if bound is not None:
            name, calls = resolver.transformed(node.func)
            if name in COMPILERS | MAPPERS:
                yield name, (*calls, node), bound


def _bound_before(parsed: ParsedSource, resolver: Resolver, expression: ast.expr) -> int | None:
    """How many leading parameters of the target are bound in an expression that stands for it, or None."""
    method = bool(parsed.enclosing) and isinstance(parsed.enclosing[-1], ast.ClassDef)
    if isinstance(expression, ast.Name):
        return 0 if not method and expression.id == parsed.definition.name else None
    if isinstance(expression, ast.Attribute) and method and expression.attr == parsed.definition.name:
        by_class = getattr(expression.value, "id", None) == parsed.enclosing[-1].name
        return 0 if by_class or not receiver_of(parsed) else 1
    if isinstance(expression, ast.Call) and resolver.qualify(expression.func) == "functools.partial":
        inside = _bound_before(parsed, resolver, expression.args[0]) if expression.args else None
        return None if inside is None else inside + len(expression.args) - 1
    return None


def calls_in(text: str) -> tuple[ast.Call, ...]:
    """The calls that carry options in ``jax.jit(f, …)`` or ``partial(jax.jit, …)(f)``."""
    found: list[ast.Call] = []
    node = ast.parse(text, mode="eval").body
    while isinstance(node, ast.Call):
        found.append(node)
        node = node.func
    return tuple(found)


def named_by_options(
    parsed: ParsedSource,
    resolver: Resolver,
    calls: tuple[ast.Call, ...],
    bound: int = 0,
    *,
    donated: bool = False,
) -> set[str]:
    """Parameters that static (or donate) options of a jit or pmap name, by number or by name.

    Numbers count from the parameter after the `bound` ones.
    """
    found: set[str] = set()
    names = [parameter.arg for parameter in parameters(parsed.definition.args)]
    positional = [
        parameter.arg for parameter in (*parsed.definition.args.posonlyargs, *parsed.definition.args.args)
    ][bound:]
    for keyword in (keyword for call in calls for keyword in call.keywords):
        value = resolver.literal(keyword.value)
        if donated and keyword.arg == "donate" and isinstance(value, str):
            found |= _equinox_donation(value, names)
        elif keyword.arg in (_DONATED if donated else _STATIC):
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, str) and item in names:
                    found.add(item)
                elif type(item) is int and -len(positional) <= item < len(positional):
                    found.add(positional[item])
    return found


def donations(parsed: ParsedSource, resolver: Resolver) -> tuple[set[str], set[tuple[str, str]]]:
    """Parameters that calls by the target's own name give up, and (parameter, name) pairs of other names.

    The own name is that of a decorated target, and of ``step = jax.jit(step, …)``.
    """
    own: set[str] = set()
    elsewhere: set[tuple[str, str]] = set()
    name = parsed.definition.name
    for expression in parsed.definition.decorator_list:
        found, calls = resolver.transformed(expression)
        if found in COMPILERS | MAPPERS:
            own |= named_by_options(parsed, resolver, calls, donated=True)
    for node in ast.walk(parsed.tree):
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(value, ast.Call) or not value.args:
            continue
        found, calls = resolver.transformed(value.func)
        bound = _bound_before(parsed, resolver, value.args[0])
        if bound is None or found not in COMPILERS | MAPPERS:
            continue
        given = named_by_options(parsed, resolver, (*calls, value), bound, donated=True)
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name) and target.id == name:
                own |= given
            else:
                elsewhere |= {(each, ast.unparse(target)) for each in given}
    return own, elsewhere


def _equinox_donation(value: str, names: list[str]) -> set[str]:
    """Meaning of ``equinox.filter_jit(donate=…)``."""
    if value.endswith("-except-first"):
        return set(names[1:])
    return set(names) if value in ("all", "warn") else set()


def pmap_hints(
    parsed: ParsedSource, resolver: Resolver, calls: tuple[ast.Call, ...]
) -> tuple[str | None, tuple[tuple[str, int | None], ...]]:
    """Literal axis name and per-parameter `in_axes` of one pmap.

    A single int for several parameters says nothing: such code stacks its replicated arguments too.
    """
    axis_name: str | None = None
    axes: object = UNKNOWN
    for call in calls:
        # pmap(fun, axis_name): the second place of the call that names the function.
        if len(call.args) > 1 and resolver.qualify(call.func) in MAPPERS:
            value = resolver.literal(call.args[1])
            axis_name = value if isinstance(value, str) else axis_name
        for keyword in call.keywords:
            if keyword.arg == "axis_name":
                value = resolver.literal(keyword.value)
                axis_name = value if isinstance(value, str) else axis_name
            elif keyword.arg == "in_axes":
                axes = _axes(resolver, keyword.value)
    positional = [
        parameter.arg for parameter in (*parsed.definition.args.posonlyargs, *parsed.definition.args.args)
    ]
    if isinstance(axes, int) and len(positional) == 1:
        axes = (axes,)
    if not isinstance(axes, tuple):
        return axis_name, ()
    rows = zip(positional, axes, strict=False)
    return axis_name, tuple((name, axis) for name, axis in rows if axis is None or type(axis) is int)


def _axes(resolver: Resolver, expression: ast.expr) -> object:
    """`in_axes` with unknown entries kept in their places."""
    if isinstance(expression, ast.Tuple | ast.List):
        return tuple(resolver.literal(item) for item in expression.elts)
    return resolver.literal(expression)


def decorated(facts: FunctionFacts) -> list[str]:
    """The lines of decorators that a copy of a function keeps."""
    return [f"@{each.text}" for each in facts.decorators if each.name in RECOMPUTERS]
