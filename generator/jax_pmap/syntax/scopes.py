"""Free and bound names of a function, by Python's scoping rules."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

#: Names every module has without binding them.
ALWAYS_THERE = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__", "__debug__"}

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    """All parameters, in the order they are written."""
    yield from arguments.posonlyargs
    yield from arguments.args
    if arguments.vararg:
        yield arguments.vararg
    yield from arguments.kwonlyargs
    if arguments.kwarg:
        yield arguments.kwarg


def root_name(node: ast.AST) -> str | None:
    """``"batch"`` of ``batch["x"].y``; None of anything else."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes of one function's own scope in source order: nested scopes are given, but not entered.

    What Python evaluates outside a nested scope (defaults, decorators, annotations, bases, the first
    iterable of a comprehension) belongs to this one and is entered.
    """
    for node in nodes:
        yield node
        if isinstance(node, ast.Lambda):
            yield from own_nodes(_defaults(node.args))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from own_nodes(node.decorator_list)
            yield from own_nodes(_defaults(node.args))
            yield from own_nodes(written_annotations(node))
        elif isinstance(node, ast.ClassDef):
            yield from own_nodes([*node.decorator_list, *node.bases, *node.keywords])
        elif isinstance(node, _COMPREHENSIONS):
            yield from own_nodes([node.generators[0].iter])
        else:
            yield from own_nodes(ast.iter_child_nodes(node))


def written_annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Annotations of parameters and of the result, as expressions."""
    found = [parameter.annotation for parameter in parameters(function.args)]
    return [annotation for annotation in [*found, function.returns] if annotation is not None]


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that one scope's own statements bind, `global` and `nonlocal` ones left out."""
    bound: set[str] = set()
    elsewhere: set[str] = set()
    for node in own_nodes(nodes):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            elsewhere.update(node.names)
        elif isinstance(node, _COMPREHENSIONS):
            # `:=` inside a comprehension binds in the function around it.
            bound.update(inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
    return bound - elsewhere


def free_names(node: ast.AST) -> set[str]:
    """Names a function, lambda, class or comprehension takes from around it, builtins included.

    Of a function: the body and all scopes in it. Its decorators, defaults and annotations are
    evaluated outside and are not counted.
    """
    if isinstance(node, _FUNCTIONS):
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
        inside = {parameter.arg for parameter in parameters(node.args)} | bound_names(body)
        inside |= {parameter.name for parameter in getattr(node, "type_params", [])}
        return used_names(body) - inside
    if isinstance(node, ast.ClassDef):
        return used_names(node.body) - bound_names(node.body)
    if isinstance(node, _COMPREHENSIONS):
        parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.comprehension)]
        for number, clause in enumerate(node.generators):
            parts += [clause.target, *clause.ifs, *([clause.iter] if number else [])]
        targets = {
            inner.id
            for clause in node.generators
            for inner in ast.walk(clause.target)
            if isinstance(inner, ast.Name)
        }
        return used_names(parts) - targets
    return used_names([node])


def used_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that the nodes of one scope, and the scopes inside it, take from outside."""
    used: set[str] = set()
    for node in own_nodes(nodes):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load | ast.Del):
                used.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            used.add(node.target.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            used.update(node.names)
        elif isinstance(node, (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)):
            used |= free_names(node)
    return used


def quoted_names(annotation: ast.expr) -> set[str]:
    """Names in the quoted parts of an annotation: of ``"Array"``, but also of a shape such as ``"batch"``."""
    names: set[str] = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                names |= used_names([ast.parse(node.value, mode="eval").body])
            except SyntaxError:
                continue  # a jaxtyping shape such as "batch features"
    return names
