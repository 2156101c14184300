"""Objects that hold a function of the user's and run it: ``hk.transform(loss)``, as ``transformed.apply``.

So does one that is called itself, as ``jax.value_and_grad(loss)`` is by its name. Where such an object is
made once, under a name, what makes it can be written anew around another version of the function.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass

from jax_pmap.model import Source
from jax_pmap.reading.runs import as_decorated, run_by, transformed_by
from jax_pmap.syntax.definitions import Definition, statements
from jax_pmap.syntax.parse import ParsedSource, resolver_of
from jax_pmap.syntax.resolve import Resolver
from jax_pmap.worker.scopes import used_names


@dataclass(frozen=True, slots=True)
class Transformed:
    """A function that an object holds."""

    #: Where the object is made; its `qualname` is that of the function, where it stands in that file.
    source: Source
    #: The name the function has there.
    function: str
    #: What is called, written out: ``hk.transform(loss).apply``, ``jax.grad(loss)``.
    made: ast.expr
    #: Other names in that.
    names: frozenset[str]

    def around(self, name: str) -> str:
        """What is called, with a function called `name` in place of the original."""
        made = copy.deepcopy(self.made)
        for node in ast.walk(made):
            if isinstance(node, ast.Name) and node.id == self.function:
                node.id = name
        return ast.unparse(made)


def transformed_at_top(name: str, method: str, source: Source) -> Transformed | None:
    """What ``name.method`` runs, or ``name`` where no method is given, of what the top level makes once."""
    names = resolver_of(source)
    defined = _defined(names.tree)
    found = _transformed(names, names.tree, name, method, {*names.top.values, *defined})
    if found is None:
        return None
    made, function, used = found
    settled = names.top.values.keys() | names.top.imported.keys() | defined
    if not {*used, function} <= settled - names.rebound or name in names.rebound:
        return None  # It may mean another thing by now.
    return Transformed(source, function, made, used)


def transformed_around(name: str, method: str, parsed: ParsedSource) -> Transformed | None:
    """The same of an object that a function around the target makes once."""
    for around in reversed(parsed.enclosing):
        local = parsed.scope_in(around).bindings.keys()
        if isinstance(around, ast.ClassDef) or name not in local:
            continue
        functions = {each.name for each, _ in statements(around.body) if isinstance(each, ast.FunctionDef)}
        found = _transformed(parsed, around, name, method, functions | _defined(parsed.tree))
        if found is None or found[1] in local - functions:
            return None
        made, function, used = found
        if used & local:
            return None  # They may hold another thing by now.
        return Transformed(parsed.source, function, made, used)
    return None


def _transformed(
    names: Resolver, scope: ast.Module | Definition, name: str, method: str, functions: set[str]
) -> tuple[ast.expr, str, frozenset[str]] | None:
    """(what is called, the function that runs, other names in it) of an object that a scope makes."""
    bound = _bound_once(names, scope, name)
    if isinstance(bound, ast.FunctionDef) and bound.decorator_list and method:
        object_ = as_decorated(bound)
    elif isinstance(bound, ast.Assign) and len(bound.targets) == 1 and isinstance(bound.targets[0], ast.Name):
        object_ = bound.value
    else:
        return None
    transformed = transformed_by(names, object_) if method else run_by(names, object_)
    if transformed is None:
        return None
    if isinstance(transformed, ast.Name):
        function = transformed.id
    else:
        named = sorted(used_names([transformed]) & functions)
        if len(named) != 1:
            return None
        (function,) = named
    made = ast.fix_missing_locations(ast.Attribute(object_, method, ast.Load())) if method else object_
    return made, function, frozenset(used_names([made]) - {function})


def _bound_once(names: Resolver, scope: ast.Module | Definition, name: str) -> ast.stmt | None:
    """The one statement that binds a name in a scope, if it always runs."""
    once = names.bound_once(scope, name)
    return next(
        (each for each, conditional in statements(scope.body) if each is once and not conditional), None
    )


def _defined(tree: ast.Module) -> set[str]:
    """Functions and classes that the top level of a file defines once."""
    names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    return {each for each in names if names.count(each) == 1}
