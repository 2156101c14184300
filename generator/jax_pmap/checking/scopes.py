"""The scopes of a module: which names are bound in which, and how."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True)
class Scope:
    """A namespace and what is bound in it."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    #: Names declared `global` or `nonlocal` here.
    outer: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Binding:
    """One way a name gets its value in a scope."""

    #: ``"import"``, ``"assign"``, ``"def"``, ``"param"`` or ``"other"``.
    kind: str
    #: Dotted name of what is imported.
    qualname: str = ""
    #: What is assigned, or the definition.
    value: ast.AST | None = None
    scope: Scope | None = None


def lookup(name: str, scope: Scope) -> list[Binding] | None:
    """Every binding of `name` as seen from `scope`; None where nothing in the module binds it."""
    first = True
    current: Scope | None = scope
    while current is not None:
        if (first or not isinstance(current.node, ast.ClassDef)) and name in current.bindings:
            return current.bindings[name]
        first = False
        current = current.parent
    return None


class Scopes:
    """The scope of every node of a module, and the node around it."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.of: dict[ast.AST, Scope] = {}
        self._collect(tree, Scope(tree, None))

    def _bind(self, scope: Scope, name: str, binding: Binding) -> None:
        while name in scope.outer and scope.parent is not None:
            scope = scope.parent
        scope.bindings.setdefault(name, []).append(binding)

    def _collect(self, node: ast.AST, scope: Scope) -> None:
        self.of[node] = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            self._collect_definition(node, scope)
            return
        if isinstance(node, ast.Global | ast.Nonlocal):
            scope.outer.update(node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                full = alias.name if alias.asname else bound
                self._bind(scope, bound, Binding("import", full, node))
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                dot = "" if base.endswith(".") or not base else "."
                self._bind(
                    scope, alias.asname or alias.name, Binding("import", f"{base}{dot}{alias.name}", node)
                )
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(scope, target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._bind_target(scope, node.target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
            self._bind_target(scope, node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind_target(scope, node.optional_vars, None)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            self._bind(scope, node.name, Binding("other"))
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._bind_target(scope, target, None)
        if isinstance(node, _COMPREHENSIONS):
            scope = Scope(node, scope)
        for child in ast.iter_child_nodes(node):
            self.parents[child] = node
            self._collect(child, scope)

    def _collect_definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda, scope: Scope
    ) -> None:
        inner = Scope(node, scope)
        if not isinstance(node, ast.Lambda):
            kind = "other" if isinstance(node, ast.ClassDef) else "def"
            self._bind(scope, node.name, Binding(kind, value=node, scope=scope))
        for name, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            for part in parts:
                if not isinstance(part, ast.AST):
                    continue
                self.parents[part] = node
                if isinstance(part, ast.arguments):
                    self._collect_parameters(part, scope, inner)
                else:
                    self._collect(part, inner if name == "body" else scope)

    def _collect_parameters(self, arguments: ast.arguments, outer: Scope, inner: Scope) -> None:
        self.of[arguments] = inner
        for child in ast.iter_child_nodes(arguments):
            self.parents[child] = arguments
            if isinstance(child, ast.arg):
                self.of[child] = inner
                self._bind(inner, child.arg, Binding("param", value=child))
                if child.annotation is not None:
                    self.parents[child.annotation] = child
                    self._collect(child.annotation, outer)
            else:
                self._collect(child, outer)

    def _bind_target(self, scope: Scope, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            if isinstance(scope.node, _COMPREHENSIONS) and isinstance(value, ast.expr):
                while isinstance(scope.node, _COMPREHENSIONS) and scope.parent is not None:
                    scope = scope.parent  # a walrus binds outside the comprehension
            kind = "other" if value is None else "assign"
            self._bind(scope, target.id, Binding(kind, value=value, scope=scope))
        elif isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            plain = len(values) == len(target.elts) and not any(
                isinstance(each, ast.Starred) for each in (*values, *target.elts)
            )
            for index, element in enumerate(target.elts):
                self._bind_target(scope, element, values[index] if plain else None)
        elif isinstance(target, ast.Starred):
            self._bind_target(scope, target.value, None)
