"""Functions that calls of jax's run: bodies of loops, branches, and what is mapped or compiled."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TypeGuard

from jax_pmap.reading.calls import body_calls
from jax_pmap.reading.facts import FunctionRun
from jax_pmap.syntax.library import BATCHERS, CALLBACKS, GRADIENTS, HOLDERS, WRAPPERS
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.resolve import Resolver
from jax_pmap.worker.scopes import names_in

#: Parameters of what runs functions in `jax.lax`, and those of them that are functions.
RUNNING: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "jax.lax.scan": (("f", "init", "xs"), ("f",)),
    "jax.lax.fori_loop": (("lower", "upper", "body_fun", "init_val"), ("body_fun",)),
    "jax.lax.map": (("f", "xs"), ("f",)),
    "jax.lax.while_loop": (("cond_fun", "body_fun", "init_val"), ("cond_fun", "body_fun")),
    "jax.lax.cond": (("pred", "true_fun", "false_fun"), ("true_fun", "false_fun")),
    "jax.lax.switch": (("index", "branches"), ("branches",)),
}
#: Loops whose function gets what it returned, and the function that decides whether there is another round.
CARRYING = frozenset({"jax.lax.scan", "jax.lax.fori_loop", "jax.lax.while_loop"})
DECIDES = "cond_fun"
#: The loop that stacks part of what its function returns.
STACKING = "jax.lax.scan"
#: Derivatives that are taken where the function is given, and not of a function that this returns.
DERIVED = frozenset({"jax.jvp", "jax.vjp", "jax.linearize"})


def function_runs(parsed: ParsedSource) -> tuple[FunctionRun, ...]:
    """Every function that a call in the body is known to run, in the order of the calls."""
    return tuple(
        FunctionRun(parsed.span(call), parsed.segment(function), parsed.span(function), **how)
        for call in body_calls(parsed)
        for function, how in _runs(parsed, call)
    )


def _runs(parsed: ParsedSource, call: ast.Call) -> Iterator[tuple[ast.expr, dict[str, bool]]]:
    """The functions that a call runs, and what is more to say of each in a `FunctionRun`."""
    name = parsed.qualname(call.func)
    if name is not None and name in RUNNING:
        parameters, functions = RUNNING[name]
        given = dict(zip(parameters, call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in parameters}
        for function in functions:
            for each in _listed(parsed, given[function]) if function in given else ():
                yield (
                    _unwrapped(parsed, each),
                    {"repeats": name in CARRYING, "decides": function == DECIDES, "stacks": name == STACKING},
                )
    elif name in DERIVED and call.args:
        yield _unwrapped(parsed, call.args[0], WRAPPERS | BATCHERS | GRADIENTS), {}
    else:
        made = parsed.last_value(call.func)
        if isinstance(made, ast.Call) and made.args and parsed.qualname(made.func) in WRAPPERS | BATCHERS:
            mapped = _unwrapped(parsed, made.args[0], WRAPPERS | BATCHERS)
            inner = _unwrapped(parsed, mapped, WRAPPERS | BATCHERS | GRADIENTS)
            yield inner, {"differentiated": inner is not mapped}


def _listed(parsed: ParsedSource, function: ast.expr) -> Sequence[ast.expr]:
    """The functions of a list or tuple, also of one that has a name or is made by a loop; else the one."""
    listed = made_inside(parsed, function)
    listed = listed if isinstance(listed, ast.List | ast.Tuple | ast.ListComp) else function
    if isinstance(listed, ast.ListComp):
        return [listed.elt]
    return listed.elts if isinstance(listed, ast.List | ast.Tuple) else [function]


def _unwrapped(
    parsed: ParsedSource, function: ast.expr, wrappers: Container[str | None] = WRAPPERS
) -> ast.expr:
    """``layer`` of ``jax.checkpoint(layer)`` and of ``partial(layer, size)``; any other as it is.

    So of a name that is given one of these.
    """
    met: list[ast.expr] = []
    # A name may be given what is made of it itself.
    while function not in met:
        met.append(function)
        named = made_inside(parsed, function)
        made = named if _hands_on(named, parsed) else function
        if not isinstance(made, ast.Call) or not made.args:
            break
        name = parsed.qualname(made.func)
        if name not in wrappers and name != "functools.partial":
            break
        function = made.args[0]
    return function


def host_functions(parsed: ParsedSource) -> frozenset[str]:
    """Names of what runs in Python while the program runs: ``{"host"}`` of ``jax.pure_callback(host, …)``."""
    calls = (call for call in body_calls(parsed) if call.args and parsed.qualname(call.func) in CALLBACKS)
    return frozenset(name for call in calls for name in names_in(call.args[0]))


def behind(parsed: ParsedSource, callee: str) -> str:
    """Source of the function that `callee` is with arguments bound to it, or compiled; ``""`` for others.

    ``loss`` of ``partial(loss, power=2)``, of ``jit(loss)``, and of a name that the body gives one of these;
    ``make_loss(x)`` of ``jit(make_loss(x))``.
    """
    node: ast.AST = parsed.inside(callee)
    passed: list[ast.AST] = []
    is_given = True
    while node not in passed:
        passed.append(node)
        if _hands_on(node, parsed):
            node = node.args[0]
            continue
        made = made_inside(parsed, node)
        if isinstance(made, ast.Name | ast.Attribute) or _hands_on(made, parsed):
            node, is_given = made, False
    if len(passed) == 1 or not isinstance(node, ast.Name | ast.Attribute | ast.Call):
        return ""
    return ast.get_source_segment(f"({callee})", node) or "" if is_given else parsed.segment(node)


def _hands_on(node: ast.AST | None, parsed: ParsedSource) -> TypeGuard[ast.Call]:
    """Whether a call gives back the function it is given, with arguments bound to it, or compiled."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = parsed.qualname(node.func)
    return name == "functools.partial" or name in WRAPPERS


def made_inside(parsed: ParsedSource, node: ast.AST) -> ast.AST | None:
    """What the one statement in the target that binds a name gives it, or None."""
    if not isinstance(node, ast.Name):
        return None
    scopes = [parsed.scope_in(parsed.definition)]
    for scope in scopes:  # grows while it is walked
        scopes += scope.inside
    found = [each.value for scope in scopes for each in scope.bindings.get(node.id, ())]
    return found[0] if len(found) == 1 and isinstance(found[0], ast.expr | ast.FunctionDef) else None


def transformed_by(names: Resolver, made: ast.expr) -> ast.Name | ast.Lambda | None:
    """The function that an expression makes an object hold: ``loss`` of ``hk.transform(loss)``, else None."""
    node, holds = made, False
    while isinstance(node, ast.Call) and node.args:
        name = names.qualname(node.func)
        holds = holds or name in HOLDERS
        if name not in HOLDERS and not (holds and (name == "functools.partial" or name in WRAPPERS)):
            return None
        node = node.args[0]
    return node if holds and isinstance(node, ast.Name | ast.Lambda) else None


def run_by(names: Resolver, made: ast.expr) -> ast.Name | None:
    """The function that a gradient or a map runs: ``loss`` of ``jit(value_and_grad(loss))``, else None."""
    node, runs = made, False
    while isinstance(node, ast.Call) and node.args:
        name = names.qualname(node.func)
        runs = runs or name in GRADIENTS | BATCHERS
        if name != "functools.partial" and name not in WRAPPERS | GRADIENTS | BATCHERS:
            return None
        node = node.args[0]
    return node if runs and isinstance(node, ast.Name) else None


def as_decorated(definition: ast.FunctionDef) -> ast.expr:
    """What a definition with decorators makes of its function, as an expression."""
    made: ast.expr = ast.Name(definition.name, ast.Load())
    for decorator in reversed(definition.decorator_list):
        made = ast.Call(decorator, [made], [])
    return made


def transformed_inside(parsed: ParsedSource, callee: str) -> str:
    """Source of the function that ``callee``, a method of an object that the body makes, runs; or ``""``.

    ``loss`` of ``hk.transform(loss).apply`` and of ``transformed.apply``, with that made before.
    """
    node = parsed.inside(callee)
    if not isinstance(node, ast.Attribute):
        return ""
    made: ast.AST | None = node.value
    if isinstance(made, ast.Name):
        made = made_inside(parsed, made)
    if isinstance(made, ast.FunctionDef):
        made = as_decorated(made)
    transformed = transformed_by(parsed, made) if isinstance(made, ast.expr) else None
    return ast.unparse(transformed) if transformed is not None else ""
