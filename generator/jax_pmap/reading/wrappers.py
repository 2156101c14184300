"""Decorators of the user's that run the function once and hand on what it is given and what it returns."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path

from jax_pmap.sources import module_among
from jax_pmap.syntax.library import OBSERVERS
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.resolve import Resolver, returned_by
from jax_pmap.worker.scopes import bound_names, names_in, own_nodes

#: What waits for a result, and gives it back.
WAITS = "jax.block_until_ready"


def passes_on(parsed: ParsedSource, decorator: ast.expr) -> bool:
    """Whether a decorator is a function of the user's that times, logs or names what it wraps, and no more.

    It has to be written as ``def wrapper(*args, **kwargs)`` around one call ``f(*args, **kwargs)``, whose
    result is what is returned; or give back the function, as one does that enters it in a table.
    """
    made = isinstance(decorator, ast.Call)
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    names, found = _definition(parsed, name.id) if isinstance(name, ast.Name) else (parsed, None)
    if found is None:
        return False
    if made:
        inner = [node for node in found.body if isinstance(node, ast.FunctionDef)]
        if len(inner) != 1 or not _returns(found, inner[0].name):
            return False
        found = inner[0]
    return _gives_back(found) or _wraps(names, found)


def observer(parsed: ParsedSource, decorator: ast.expr) -> str | None:
    """The library's decorator that one of the user's is, if that only checks what it wraps, or names it.

    Such as ``typed = jaxtyped(typechecker=beartype)``, or ``def typed(f): return jaxtyped(f, …)``, here or in
    another file of the project.
    """
    return _observer(parsed, parsed.source.folders, decorator, 8)


def _observer(names: Resolver, folders: Sequence[Path], decorator: ast.AST | None, steps: int) -> str | None:
    if decorator is None or not steps:
        return None
    name = names.qualname(decorator)
    if name in OBSERVERS:
        return name
    if isinstance(decorator, ast.Call):
        if names.qualname(decorator.func) == "functools.partial" and len(decorator.args) == 1:
            return _observer(names, folders, decorator.args[0], steps - 1)
        # Options alone: what it makes of them is a decorator still.
        return _observer(names, folders, decorator.func, steps - 1) if not decorator.args else None
    if isinstance(decorator, ast.FunctionDef):
        given = _only_parameter(decorator)
        body = decorator.body[1:] if ast.get_docstring(decorator) is not None else decorator.body
        if given is None or len(body) != 1 or decorator.decorator_list:
            return None
        applied = _applied_to(names, returned_by(decorator), given)
        return _observer(names, folders, applied, steps - 1)
    if name is not None and names.is_imported(decorator):
        other, name = _in_project(folders, name)
        if other is None:
            return None
        found = other.top.values.get(name) or other.bound_once(other.tree, name)
        return _observer(other, folders, found, steps - 1)
    made = names.assigned(decorator)
    return _observer(names, folders, made, steps - 1) if made is not decorator else None


def _applied_to(names: Resolver, value: ast.expr | None, given: str) -> ast.expr | None:
    """What is called with `given` alone, and maybe with options, in an expression that is this call."""
    if isinstance(value, ast.Call) and names.qualname(value.func) == "typing.cast" and len(value.args) == 2:
        value = value.args[1]
    if not isinstance(value, ast.Call) or len(value.args) != 1:
        return None
    return value.func if ast.unparse(value.args[0]) == given else None


def _gives_back(decorator: ast.FunctionDef) -> bool:
    """Whether ``decorator(f)`` is ``f``, wherever it returns."""
    name, last = _only_parameter(decorator), decorator.body[-1]
    if name is None:
        return False
    # A function in it may take the name, or give it another value later.
    bound = name in bound_names(decorator.body) or any(
        isinstance(each, ast.Nonlocal) and name in each.names for each in ast.walk(decorator)
    )
    yields = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own_nodes(decorator.body))
    return isinstance(last, ast.Return) and _returns(decorator, name) and not bound and not yields


def _only_parameter(function: ast.FunctionDef) -> str | None:
    """The parameter of a function that has no other."""
    given = function.args
    others = given.posonlyargs or given.vararg or given.kwonlyargs or given.kwarg
    return given.args[0].arg if len(given.args) == 1 and not others else None


def _in_project(folders: Sequence[Path], qualname: str) -> tuple[Resolver | None, str]:
    """The file of the project that has ``package.module.name``, and the name; None where none has."""
    module, _, name = qualname.rpartition(".")
    path = module_among(folders, module) if module else None
    return (_names(path) if path is not None else None), name


def _definition(parsed: ParsedSource, name: str) -> tuple[Resolver, ast.FunctionDef | None]:
    """The function that a name at the top of the file stands for, there or in a file of the project."""
    names: Resolver | None = parsed
    if imported := parsed.imported_as(name):
        names, name = _in_project(parsed.source.folders, imported)
    statement = names.bound_once(names.tree, name) if names is not None else None
    if names is None or not isinstance(statement, ast.FunctionDef) or statement not in names.tree.body:
        return parsed, None
    return names, statement


@functools.lru_cache(maxsize=32)
def _names(path: Path) -> Resolver | None:
    try:
        return Resolver("", path.name, ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return None


def _returns(function: ast.FunctionDef, name: str) -> bool:
    """Whether all that a function returns is the function `name` in it, maybe with its names copied."""
    values = [node.value for node in own_nodes(function.body) if isinstance(node, ast.Return)]
    return bool(values) and all(isinstance(value, ast.Name) and value.id == name for value in values)


def _wraps(names: Resolver, decorator: ast.FunctionDef) -> bool:
    """Whether ``decorator(f)`` returns a function that gives what ``f`` gives."""
    arguments = decorator.args
    inner = [node for node in decorator.body if isinstance(node, ast.FunctionDef)]
    if len(arguments.args) != 1 or arguments.posonlyargs or arguments.vararg or len(inner) != 1:
        return False
    wrapper, wrapped = inner[0], arguments.args[0].arg
    if not _returns(decorator, wrapper.name):
        return False
    if not all(_copies_names(names, each) for each in wrapper.decorator_list):
        return False
    others = [node for node in decorator.body if node is not wrapper and not isinstance(node, ast.Return)]
    if any(wrapped in names_in(node) for node in others) or any(wrapper.name in names_in(n) for n in others):
        return False
    given = wrapper.args
    if given.args or given.posonlyargs or given.kwonlyargs or given.vararg is None or given.kwarg is None:
        return False
    return _hands_on(names, wrapper, wrapped, given.vararg.arg, given.kwarg.arg)


def _copies_names(names: Resolver, decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and names.qualname(decorator.func) == "functools.wraps"


def _hands_on(
    names: Resolver, wrapper: ast.FunctionDef, wrapped: str, positional: str, keywords: str
) -> bool:
    """Whether a wrapper calls `wrapped` once, with what it is given, and returns the result of that.

    What it is given has no other use in it, and the result none but to be waited for.
    """
    calls = [
        node
        for node in ast.walk(wrapper)
        if isinstance(node, ast.Call) and ast.unparse(node) == f"{wrapped}(*{positional}, **{keywords})"
    ]
    # A generator returns none of this, and jax's settings change what everything returns.
    other = (ast.Yield, ast.YieldFrom, ast.Await)
    for node in ast.walk(wrapper):
        if (
            isinstance(node, other)
            or getattr(node, "attr", "") == "config"
            or names.qualname(node) == "jax.config"
        ):
            return False
    if len(calls) != 1:
        return False
    inside = {id(node) for each in (calls[0], *wrapper.decorator_list) for node in ast.walk(each)}
    for node in ast.walk(wrapper):
        if isinstance(node, ast.Name) and id(node) not in inside:
            named = node.id == wrapped and isinstance(names.parents[node], ast.Attribute)  # `f.__name__`
            if node.id in (wrapped, positional, keywords) and not named:
                return False
    value = _waited_for(calls[0], names)
    returned = [node for node in ast.walk(wrapper) if isinstance(node, ast.Return)]
    above = names.parents[value]
    if not _once(above, wrapper, names):
        return False
    if isinstance(above, ast.Return):
        return len(returned) == 1
    if not isinstance(above, ast.Assign) or len(above.targets) != 1:
        return False
    result = above.targets[0]
    if not isinstance(result, ast.Name) or not any(_once(each, wrapper, names) for each in returned):
        return False
    kept = {id(each.value) for each in returned}
    return all(
        node is result or id(_waited_for(node, names)) in kept or _is_dropped(node, names)
        for node in ast.walk(wrapper)
        if isinstance(node, ast.Name) and node.id == result.id
    ) and all(each.value is not None and result.id in names_in(each.value) for each in returned)


def _waited_for(value: ast.expr, names: Resolver) -> ast.expr:
    """An expression, or the call around it that waits for it."""
    above = names.parents[value]
    if isinstance(above, ast.Call) and above.args == [value] and names.qualname(above.func) == WAITS:
        return above
    return value


def _is_dropped(value: ast.expr, names: Resolver) -> bool:
    """Whether an expression is waited for in a statement of its own."""
    above = names.parents[value]
    if isinstance(above, ast.Attribute) and above.attr == "block_until_ready":
        call = names.parents[above]
        return isinstance(call, ast.Call) and isinstance(names.parents[call], ast.Expr)
    around = _waited_for(value, names)
    return around is not value and isinstance(names.parents[around], ast.Expr)


def _once(node: ast.AST, wrapper: ast.FunctionDef, names: Resolver) -> bool:
    """Whether a statement is run each time, and once: it stands in no branch, loop or other function.

    Nor in a ``with``, which may set how jax computes.
    """
    while (node := names.parents[node]) is not wrapper:
        if not isinstance(node, ast.Try):
            return False
    return True
