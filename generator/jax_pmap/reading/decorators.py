"""Decorators and calls that compile or map the target: jit, pmap and their relatives."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from jax_pmap.reading.facts import Decorator, FunctionFacts
from jax_pmap.reading.runs import made_inside
from jax_pmap.reading.wrappers import observer, passes_on
from jax_pmap.syntax.library import (
    BATCHERS,
    COMPILERS,
    GRADIENTS,
    KEY_SPLITTERS,
    MAPPERS,
    MARKERS,
    OBSERVERS,
    RECOMPUTERS,
    SCANS,
)
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.resolve import Application
from jax_pmap.worker.scopes import parameters, positional

SET_ASIDE = COMPILERS | MAPPERS | MARKERS | OBSERVERS
#: What a copy of a function has as the function does: with another body, they do the same to another one.
KEPT = RECOMPUTERS | GRADIENTS | BATCHERS | SCANS | KEY_SPLITTERS

_STATIC = ("static_argnums", "static_argnames", "static_broadcasted_argnums")
_DONATED = ("donate_argnums", "donate_argnames")


def read_decorators(parsed: ParsedSource, *, given_back: bool = False) -> tuple[Decorator, ...]:
    """The target's decorators, outermost first.

    With `given_back`, those that are not known are known to give back the function as it is.
    """
    rows = []
    for expression in parsed.definition.decorator_list:
        text = parsed.segment(expression)
        made = parsed.decoration(parsed.definition, expression)
        name = made.qualname if made is not None else text
        if name not in SET_ASIDE:
            name = observer(parsed, expression) or name
        known = name in SET_ASIDE
        passes = not known and (given_back or passes_on(parsed, expression))
        rows.append(Decorator(text, name, known or passes, parsed.span(expression), passes))
    return tuple(rows)


def may_run_repeatedly(parsed: ParsedSource, name: str) -> bool:
    """Whether a function in the target has a decorator that may run it any number of times: ``@nnx.scan``."""
    made = made_inside(parsed, ast.Name(name, ast.Load()))
    if not isinstance(made, ast.FunctionDef):
        return False
    decorations = ((each, parsed.decoration(made, each)) for each in made.decorator_list)
    return any(
        (how is None or how.qualname not in SET_ASIDE | KEPT - SCANS)
        and not passes_on(parsed, each)
        and observer(parsed, each) is None
        for each, how in decorations
    )


def receiver_of(parsed: ParsedSource) -> str:
    """The parameter that a method is called on (``self``, ``cls``), or ``""`` for any other function."""
    if not parsed.enclosing or not isinstance(parsed.enclosing[-1], ast.ClassDef):
        return ""
    decorators = {getattr(each, "id", "") for each in parsed.definition.decorator_list}
    order = positional(parsed.definition)
    return order[0] if order and "staticmethod" not in decorators else ""


def transformations(parsed: ParsedSource) -> Iterator[tuple[Application, int]]:
    """Every jit or pmap of the target in its file: as a decorator, or as ``step = jax.jit(step, …)``.

    With it goes how many of the target's parameters are bound before it: those that `partial` fills by
    position, and the receiver of ``self.step``.
    """
    for expression in parsed.definition.decorator_list:
        made = parsed.decoration(parsed.definition, expression)
        if made is not None and made.qualname in COMPILERS | MAPPERS:
            yield made, 0
    for call in parsed.all_calls:
        bound = _bound_before(parsed, call.args[0]) if call.args else None
        made = parsed.applied(call) if bound is not None else None
        if bound is not None and made is not None and made.qualname in COMPILERS | MAPPERS:
            yield made, bound


def _bound_before(parsed: ParsedSource, expression: ast.expr) -> int | None:
    """How many leading parameters of the target are bound in an expression that stands for it, or None."""
    method = bool(parsed.enclosing) and isinstance(parsed.enclosing[-1], ast.ClassDef)
    if isinstance(expression, ast.Name):
        if expression.id != parsed.definition.name:
            return None
        # ``update = jax.jit(update)`` in the class body, where the method is a function still.
        found = parsed.bindings(expression) or ()
        return 0 if not method or any(each.value is parsed.definition for each in found) else None
    if isinstance(expression, ast.Attribute) and method and expression.attr == parsed.definition.name:
        by_class = getattr(expression.value, "id", None) == parsed.enclosing[-1].name
        return 0 if by_class or not receiver_of(parsed) else 1
    if isinstance(expression, ast.Call) and parsed.qualname(expression.func) == "functools.partial":
        inside = _bound_before(parsed, expression.args[0]) if expression.args else None
        return None if inside is None else inside + len(expression.args) - 1
    return None


def options_in(parsed: ParsedSource, text: str) -> dict[str, ast.expr]:
    """The options in ``jax.jit(f, …)`` or ``partial(jax.jit, …)(f)``, which stands in some file."""
    options: dict[str, ast.expr] = {}
    node = parsed.expression(text, parsed.tree)
    while isinstance(node, ast.Call):
        options = {each.arg: each.value for each in node.keywords if each.arg} | options
        node = node.func
    return options


def named_by_options(
    parsed: ParsedSource, options: Mapping[str, ast.expr], bound: int = 0, *, donated: bool = False
) -> set[str]:
    """Parameters that static (or donate) options of a jit or pmap name, by number or by name.

    Numbers count from the parameter after the `bound` ones.
    """
    found: set[str] = set()
    names = [parameter.arg for parameter in parameters(parsed.definition.args)]
    free = positional(parsed.definition)[bound:]
    for option, given in options.items():
        value = parsed.constant(given)
        if donated and option == "donate" and isinstance(value, str):
            found |= _equinox_donation(value, names)
        elif option in (_DONATED if donated else _STATIC):
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, str) and item in names:
                    found.add(item)
                elif type(item) is int and -len(free) <= item < len(free):
                    found.add(free[item])
    return found


def donations(parsed: ParsedSource) -> tuple[set[str], set[tuple[str, str]]]:
    """Parameters that calls by the target's own name give up, and (parameter, name) pairs of other names.

    The own name is that of a decorated target, and of ``step = jax.jit(step, …)``.
    """
    own: set[str] = set()
    elsewhere: set[tuple[str, str]] = set()
    for made, bound in transformations(parsed):
        given = named_by_options(parsed, made.keywords, bound, donated=True)
        around = parsed.parents.get(made.node)
        if around is parsed.definition:
            own |= given
        for target in around.targets if isinstance(around, ast.Assign) else ():
            if isinstance(target, ast.Name) and target.id == parsed.definition.name:
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
    parsed: ParsedSource, made: Application
) -> tuple[str | None, tuple[tuple[str, int | None], ...]]:
    """Literal axis name and per-parameter `in_axes` of one pmap.

    A single int for several parameters says nothing: such code stacks its replicated arguments too.
    """
    given = parsed.constant(made.argument(1, "axis_name"))
    axis_name = given if isinstance(given, str) else None
    written, order = made.keywords.get("in_axes"), positional(parsed.definition)
    axes: tuple[object, ...] = ()
    if isinstance(written, ast.Tuple | ast.List):
        axes = tuple(parsed.constant(item) for item in written.elts)
    elif isinstance(value := parsed.constant(written), tuple):
        axes = value
    elif len(order) == 1 and written is not None:
        axes = (value,)
    rows = zip(order, axes, strict=False)
    return axis_name, tuple((name, axis) for name, axis in rows if axis is None or type(axis) is int)


def decorated(facts: FunctionFacts) -> list[str]:
    """The lines of decorators that a copy of a function keeps."""
    return [f"@{each.text}" for each in facts.decorators if each.name in KEPT]
