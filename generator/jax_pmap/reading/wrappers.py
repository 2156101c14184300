"""Decorators of the user's that run the function once and hand on what it is given and what it returns."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from jax_pmap.sources import module_in
from jax_pmap.syntax.parse import ParsedSource

#: What waits for a result, and gives it back.
WAITS = frozenset({"jax.block_until_ready", "block_until_ready"})


def passes_on(parsed: ParsedSource, decorator: ast.expr) -> bool:
    """Whether a decorator is a function of the user's that times, logs or names what it wraps, and no more.

    It has to be written as ``def wrapper(*args, **kwargs)`` around one call ``f(*args, **kwargs)``, whose
    result is what is returned.
    """
    made = isinstance(decorator, ast.Call)
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    found = _definition(parsed, name.id) if isinstance(name, ast.Name) else None
    if found is None:
        return False
    if made:
        inner = [node for node in found.body if isinstance(node, ast.FunctionDef)]
        if len(inner) != 1 or not _returns(found, inner[0].name):
            return False
        found = inner[0]
    return _wraps(found)


def _definition(parsed: ParsedSource, name: str) -> ast.FunctionDef | None:
    """The function that a name at the top of the file stands for, there or in a file of the project."""
    own = _function(parsed.tree, name)
    if own is not None:
        return own
    for node in parsed.tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for item in node.names:
            if (item.asname or item.name) != name:
                continue
            base = parsed.source.root
            if node.level:
                base = parsed.source.path.parents[node.level - 1]
            path = module_in(base, node.module) if node.module else None
            tree = _tree(path) if path is not None else None
            return _function(tree, item.name) if tree is not None else None
    return None


@functools.lru_cache(maxsize=32)
def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """The function of this name, where nothing else at the top of the file binds it."""
    bound = [node for node in tree.body if getattr(node, "name", None) == name]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound += [node for target in targets if getattr(target, "id", None) == name]
    return bound[0] if len(bound) == 1 and isinstance(bound[0], ast.FunctionDef) else None


def _returns(function: ast.FunctionDef, name: str) -> bool:
    """Whether all that a function returns is the function `name` in it, maybe with its names copied."""
    own = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    inner = {id(n) for each in function.body if isinstance(each, ast.FunctionDef) for n in ast.walk(each)}
    values = [node.value for node in own if id(node) not in inner]
    return bool(values) and all(isinstance(value, ast.Name) and value.id == name for value in values)


def _wraps(decorator: ast.FunctionDef) -> bool:
    """Whether ``decorator(f)`` returns a function that gives what ``f`` gives."""
    arguments = decorator.args
    inner = [node for node in decorator.body if isinstance(node, ast.FunctionDef)]
    if len(arguments.args) != 1 or arguments.posonlyargs or arguments.vararg or len(inner) != 1:
        return False
    wrapper, wrapped = inner[0], arguments.args[0].arg
    if not _returns(decorator, wrapper.name) or not all(map(_copies_names, wrapper.decorator_list)):
        return False
    others = [node for node in decorator.body if node is not wrapper and not isinstance(node, ast.Return)]
    if any(_mentions(node, wrapped) for node in others) or any(_mentions(n, wrapper.name) for n in others):
        return False
    given = wrapper.args
    if given.args or given.posonlyargs or given.kwonlyargs or given.vararg is None or given.kwarg is None:
        return False
    return _hands_on(wrapper, wrapped, given.vararg.arg, given.kwarg.arg)


def _copies_names(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in ("functools.wraps", "wraps")


def _hands_on(wrapper: ast.FunctionDef, wrapped: str, positional: str, keywords: str) -> bool:
    """Whether a wrapper calls `wrapped` once, with what it is given, and returns the result of that.

    What it is given has no other use in it, and the result none but to be waited for.
    """
    parents = {child: node for node in ast.walk(wrapper) for child in ast.iter_child_nodes(node)}
    calls = [
        node
        for node in ast.walk(wrapper)
        if isinstance(node, ast.Call) and ast.unparse(node) == f"{wrapped}(*{positional}, **{keywords})"
    ]
    # A generator returns none of this, and jax's settings change what everything returns.
    other = (ast.Yield, ast.YieldFrom, ast.Await)
    if any(isinstance(node, other) or getattr(node, "attr", "") == "config" for node in ast.walk(wrapper)):
        return False
    if len(calls) != 1:
        return False
    inside = {id(node) for each in (calls[0], *wrapper.decorator_list) for node in ast.walk(each)}
    for node in ast.walk(wrapper):
        if isinstance(node, ast.Name) and id(node) not in inside:
            named = node.id == wrapped and isinstance(parents[node], ast.Attribute)  # `f.__name__`
            if node.id in (wrapped, positional, keywords) and not named:
                return False
    value = _waited_for(calls[0], parents)
    returned = [node for node in ast.walk(wrapper) if isinstance(node, ast.Return)]
    above = parents[value]
    if not _once(above, wrapper, parents):
        return False
    if isinstance(above, ast.Return):
        return len(returned) == 1
    if not isinstance(above, ast.Assign) or len(above.targets) != 1:
        return False
    result = above.targets[0]
    if not isinstance(result, ast.Name) or not any(_once(each, wrapper, parents) for each in returned):
        return False
    kept = {id(each.value) for each in returned}
    return all(
        node is result or id(_waited_for(node, parents)) in kept or _is_dropped(node, parents)
        for node in ast.walk(wrapper)
        if isinstance(node, ast.Name) and node.id == result.id
    ) and all(each.value is not None and _mentions(each.value, result.id) for each in returned)


def _waited_for(value: ast.expr, parents: dict[ast.AST, ast.AST]) -> ast.expr:
    """An expression, or the call around it that waits for it."""
    above = parents[value]
    waits = isinstance(above, ast.Call) and above.args == [value] and ast.unparse(above.func) in WAITS
    return above if waits and isinstance(above, ast.Call) else value


def _is_dropped(value: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether an expression is waited for in a statement of its own."""
    above = parents[value]
    if isinstance(above, ast.Attribute) and above.attr == "block_until_ready":
        call = parents[above]
        return isinstance(call, ast.Call) and isinstance(parents[call], ast.Expr)
    around = _waited_for(value, parents)
    return around is not value and isinstance(parents[around], ast.Expr)


def _once(node: ast.AST, wrapper: ast.FunctionDef, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a statement is run each time, and once: it stands in no branch, loop or other function.

    Nor in a ``with``, which may set how jax computes.
    """
    while (node := parents[node]) is not wrapper:
        if not isinstance(node, ast.Try):
            return False
    return True


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))
