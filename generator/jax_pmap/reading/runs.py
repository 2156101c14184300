"""Functions that calls of jax's run: bodies of loops, branches, and what is mapped or compiled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from jax_pmap.reading.calls import body_calls, in_sight
from jax_pmap.reading.facts import FunctionRun
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.resolve import Resolver

#: Parameters of the loops of `jax.lax`, and those among them that are functions it runs.
LOOPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "jax.lax.scan": (("f", "init", "xs"), ("f",)),
    "jax.lax.fori_loop": (("lower", "upper", "body_fun", "init_val"), ("body_fun",)),
    "jax.lax.map": (("f", "xs"), ("f",)),
    "jax.lax.while_loop": (("cond_fun", "body_fun", "init_val"), ("cond_fun", "body_fun")),
}
#: Loops whose function gets what it returned, and the function that decides whether there is another round.
CARRYING = frozenset({"jax.lax.scan", "jax.lax.fori_loop", "jax.lax.while_loop"})
DECIDES = "cond_fun"
#: Functions that make a function which does the same, once for all.
WRAPPERS = frozenset(
    {
        "equinox.filter_checkpoint",
        "equinox.filter_jit",
        "flax.nnx.jit",
        "flax.nnx.remat",
        "jax.checkpoint",
        "jax.jit",
        "jax.remat",
    }
)
#: Functions that make an object which holds a function, to be run by a method of it.
HOLDERS = frozenset(
    {
        "haiku.transform",
        "haiku.transform_with_state",
        "haiku.with_empty_state",
        "haiku.without_apply_rng",
        "haiku.without_state",
    }
)
#: Functions that have their first argument called with arrays of NumPy, outside of the traced program.
CALLBACKS = frozenset({"jax.pure_callback", "jax.experimental.io_callback", "jax.debug.callback"})
#: The same, for every slice of its arguments.
MAPS = frozenset({"equinox.filter_vmap", "flax.nnx.vmap", "jax.vmap"})


def function_runs(parsed: ParsedSource, resolver: Resolver) -> tuple[FunctionRun, ...]:
    """Every function that a call in the body is known to run, in the order of the calls."""
    made: dict[str, ast.Call] = {}
    for node in in_sight(parsed):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    return tuple(
        FunctionRun(parsed.span(call), parsed.segment(function), parsed.span(function), repeats, decides)
        for call in body_calls(parsed)
        for function, repeats, decides in _runs(resolver, call, made)
    )


def _runs(
    resolver: Resolver, call: ast.Call, made: Mapping[str, ast.Call]
) -> Iterator[tuple[ast.expr, bool, bool]]:
    name = resolver.qualify(call.func)
    if name is not None and name in LOOPS:
        parameters, functions = LOOPS[name]
        given = dict(zip(parameters, call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in parameters}
        for function in functions:
            if function in given:
                yield given[function], name in CARRYING, function == DECIDES
    elif name in ("jax.lax.cond", "jax.lax.switch") and len(call.args) > 2:
        branches: Sequence[ast.expr] = call.args[1:3]
        if name == "jax.lax.switch":
            branches = getattr(call.args[1], "elts", ())
        for branch in branches:
            yield branch, False, False
    else:
        maker = call.func if isinstance(call.func, ast.Call) else None
        if isinstance(call.func, ast.Name):
            maker = made.get(call.func.id)
        made_by = resolver.qualify(maker.func) if maker is not None else None
        if maker is not None and maker.args and made_by in WRAPPERS | MAPS:
            yield maker.args[0], False, False


def host_functions(parsed: ParsedSource, resolver: Resolver) -> frozenset[str]:
    """Names of what runs in Python while the program runs: ``{"host"}`` of ``jax.pure_callback(host, …)``."""
    calls = (call for call in body_calls(parsed) if call.args and resolver.qualify(call.func) in CALLBACKS)
    return frozenset(
        node.id for call in calls for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)
    )


def behind(parsed: ParsedSource, resolver: Resolver, callee: str) -> str:
    """Source of the function that `callee` is with arguments bound to it, or compiled; ``""`` for others.

    ``loss`` of ``partial(loss, power=2)``, of ``jit(loss)``, and of a name that the body gives one of these.
    """
    node: ast.expr = ast.parse(f"({callee})", mode="eval").body
    names = [each for each in ast.walk(parsed.definition) if isinstance(each, ast.Name)]
    given = {each.arg for each in ast.walk(parsed.definition) if isinstance(each, ast.arg)}
    inside = [each for each in ast.walk(parsed.definition) if isinstance(each, ast.Assign)]
    followed: set[str] = set()
    while True:
        if isinstance(node, ast.Call) and node.args:
            name = resolver.qualify(node.func)
            if name != "functools.partial" and name not in WRAPPERS:
                return ""
            node = node.args[0]
            followed.add("")
        elif isinstance(node, ast.Name) and node.id not in followed:
            name = node.id
            made = [each for each in inside if [getattr(t, "id", "") for t in each.targets] == [name]]
            stored = sum(each.id == name and not isinstance(each.ctx, ast.Load) for each in names)
            if len(made) != 1 or stored != 1 or name in given:
                break
            followed.add(name)
            node = made[0].value
        else:
            break
    if not followed or not isinstance(node, ast.Name | ast.Attribute):
        return ""
    return ast.unparse(node)


def transformed_by(resolver: Resolver, made: ast.expr) -> ast.Name | ast.Lambda | None:
    """The function that an expression makes an object hold: ``loss`` of ``hk.transform(loss)``, else None."""
    node, holds = made, False
    while isinstance(node, ast.Call) and node.args:
        name = resolver.qualify(node.func)
        holds = holds or name in HOLDERS
        if name not in HOLDERS and not (holds and (name == "functools.partial" or name in WRAPPERS)):
            return None
        node = node.args[0]
    return node if holds and isinstance(node, ast.Name | ast.Lambda) else None


def as_decorated(definition: ast.FunctionDef) -> ast.expr:
    """What a definition with decorators makes of its function, as an expression."""
    made: ast.expr = ast.Name(definition.name, ast.Load())
    for decorator in reversed(definition.decorator_list):
        made = ast.Call(decorator, [made], [])
    return made


def transformed_inside(parsed: ParsedSource, resolver: Resolver, callee: str) -> str:
    """Source of the function that ``callee``, a method of an object that the body makes, runs; or ``""``.

    ``loss`` of ``hk.transform(loss).apply`` and of ``transformed.apply``, with that made before.
    """
    node: ast.expr = ast.parse(f"({callee})", mode="eval").body
    if not isinstance(node, ast.Attribute):
        return ""
    made = node.value
    if isinstance(made, ast.Name):
        found = _made_once(parsed.definition, made.id)
        if found is None:
            return ""
        made = found
    held = transformed_by(resolver, made)
    return ast.unparse(held) if held is not None else ""


def _made_once(definition: ast.AST, name: str) -> ast.expr | None:
    """What the one statement in a function that binds a name gives it, decorators and all."""
    nodes = list(ast.walk(definition))
    if any(isinstance(each, ast.arg) and each.arg == name for each in nodes):
        return None
    made = [each for each in nodes if isinstance(each, ast.Assign)]
    made = [each for each in made if [getattr(t, "id", "") for t in each.targets] == [name]]
    defined = [each for each in nodes if isinstance(each, ast.FunctionDef) and each.name == name]
    stored = sum(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in nodes)
    if len(made) + len(defined) != 1 or stored != len(made):
        return None
    return made[0].value if made else as_decorated(defined[0])
