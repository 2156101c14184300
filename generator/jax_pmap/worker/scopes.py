"""The scopes of a module by Python's rules: which names each binds and how, which it takes from outside.

Both processes ask here: it takes the standard library alone.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

#: Names every module has without binding them.
ALWAYS_THERE = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__", "__debug__"}

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Binding:
    """One way a name gets its value in a scope."""

    #: ``"import"``, ``"assign"``, ``"def"``, ``"param"`` or ``"other"``.
    kind: str
    #: Dotted name of what is imported, as it is written: ``"jax.numpy"``, ``".losses.mse"``.
    qualname: str = ""
    #: What is assigned, or the definition, the parameter, the import statement.
    value: ast.AST | None = None


@dataclass(eq=False, slots=True)
class Scope:
    """A namespace, what is bound in it, and what its code reads."""

    node: ast.AST | None
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    #: Names declared `global` here, and `nonlocal`.
    module_names: set[str] = field(default_factory=set)
    outer_names: set[str] = field(default_factory=set)
    #: Names that are read here, those of the scopes inside left out.
    reads: set[str] = field(default_factory=set)
    inside: list[Scope] = field(default_factory=list)

    def lookup(self, name: str) -> list[Binding] | None:
        """Every binding of a name as it is seen from here; None where nothing in the module binds it."""
        scope: Scope | None = self
        while scope is not None:
            # A class is not seen from the functions in it.
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope.bindings[name]
            scope = scope.parent
        return None

    def used(self) -> set[str]:
        """Names that code here reads, and code in the scopes inside from outside of those."""
        return self.reads.union(*(each.free() for each in self.inside))

    def free(self) -> set[str]:
        """Names that code here, and in the scopes inside, takes from outside."""
        if isinstance(self.node, ast.ClassDef):
            return (self.reads - self.bindings.keys()).union(*(each.free() for each in self.inside))
        return self.used() - self.bindings.keys()


class Scopes:
    """The scope of every node of a tree, and the node around it."""

    def __init__(self, *nodes: ast.AST, within: Scope | None = None, annotations: bool = True) -> None:
        """Collect `nodes` into the scope they stand in; without one, into that of a module.

        Without `annotations`, these are passed over: a module may have it that they are not evaluated.
        """
        self.annotations = annotations
        self.parents: dict[ast.AST, ast.AST] = {}
        self.of: dict[ast.AST, Scope] = {}
        scope = within or Scope(nodes[0], None)
        for node in nodes:
            self.add(node, scope)

    def add(self, node: ast.AST, scope: Scope) -> None:
        """Collect a node that stands in a scope, and all nodes in it."""
        pending = [(node, scope)]  # code that was generated is nested deeper than calls may be
        while pending:
            node, scope = pending.pop()
            self.of[node] = scope
            parts = list(self._entered(node, scope))
            self.parents.update((part, node) for part, _ in parts)
            pending += reversed(parts)

    def _entered(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
        """The parts of a node and the scopes they stand in; what the node itself binds and reads is noted."""
        outer = scope.parent or scope
        elsewhere: dict[ast.AST, Scope] = {}
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Store):
                scope.reads.add(node.id)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            inner = self._inner(node, scope)
            if not isinstance(node, ast.Lambda):
                kind = "other" if isinstance(node, ast.ClassDef) else "def"
                self._bind(scope, node.name, Binding(kind, "", node))
            for parameter in getattr(node, "type_params", ()):
                self._bind(inner, parameter.name, Binding("other"))
            body = node.body if isinstance(node.body, list) else [node.body]
            # Decorators, bases and annotations are evaluated outside.
            elsewhere = dict.fromkeys(body, inner)
            if not isinstance(node, ast.ClassDef):
                elsewhere[node.args] = inner
        elif isinstance(node, ast.arguments):
            elsewhere = dict.fromkeys(defaults(node), outer)
        elif isinstance(node, ast.arg):
            self._bind(scope, node.arg, Binding("param", "", node))
            elsewhere = {node.annotation: outer} if node.annotation is not None else {}
        elif isinstance(node, ast.stmt):
            self._bind_statement(node, scope)
        elif isinstance(node, ast.NamedExpr):
            while isinstance(scope.node, _COMPREHENSIONS) and scope.parent is not None:
                scope = scope.parent  # `:=` binds outside the comprehension
            self._bind_target(scope, node.target, node.value)
            scope = self.of[node]
        elif isinstance(node, ast.comprehension):
            self._bind_target(scope, node.target, None)
            if isinstance(scope.node, _COMPREHENSIONS) and node is scope.node.generators[0]:
                elsewhere = {node.iter: outer}  # the first iterable is evaluated outside
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind_target(scope, node.optional_vars, None)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            self._bind(scope, node.name, Binding("other"))
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._bind(scope, node.rest, Binding("other"))
        elif isinstance(node, _COMPREHENSIONS):
            scope = self._inner(node, scope)
        written = (
            () if self.annotations else (getattr(node, "annotation", None), getattr(node, "returns", None))
        )
        for child in ast.iter_child_nodes(node):
            if child not in written:
                yield child, elsewhere.get(child, scope)

    def _bind_statement(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, ast.Global):
            scope.module_names.update(node.names)
            scope.reads.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            scope.outer_names.update(node.names)
            scope.reads.update(node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                self._bind(scope, bound, Binding("import", alias.name if alias.asname else bound, node))
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (f"{node.module}." if node.module else "")
            for alias in node.names:
                self._bind(scope, alias.asname or alias.name, Binding("import", f"{base}{alias.name}", node))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(scope, target, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is None and isinstance(node.target, ast.Name):
                scope.bindings.setdefault(node.target.id, [])  # it is a name of this scope, without a value
            else:
                self._bind_target(scope, node.target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor):
            self._bind_target(scope, node.target, None)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                scope.reads.add(node.target.id)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._bind_target(scope, target, None)
        elif name := getattr(node, "name", None):  # `type Name = ...`
            self._bind_target(scope, name, None)

    @staticmethod
    def _inner(node: ast.AST, scope: Scope) -> Scope:
        scope.inside.append(Scope(node, scope))
        return scope.inside[-1]

    def _bind(self, scope: Scope, name: str, binding: Binding) -> None:
        if name in scope.module_names:
            while scope.parent is not None:
                scope = scope.parent
        while name in scope.outer_names and scope.parent is not None:
            scope = scope.parent
        scope.bindings.setdefault(name, []).append(binding)

    def _bind_target(self, scope: Scope, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope, target.id, Binding("other" if value is None else "assign", "", value))
        elif isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            plain = len(values) == len(target.elts) and not any(
                isinstance(each, ast.Starred) for each in (*values, *target.elts)
            )
            for index, element in enumerate(target.elts):
                self._bind_target(scope, element, values[index] if plain else None)
        elif isinstance(target, ast.Starred):
            self._bind_target(scope, target.value, None)


def every_scope(scope: Scope) -> Iterator[Scope]:
    """A scope, and those inside it."""
    pending = [scope]
    for each in pending:  # grows while it is walked
        yield each
        pending += each.inside


def _alone(nodes: Iterable[ast.AST], annotations: bool = True) -> Scope:
    """The scope of nodes that are looked at without the module they stand in."""
    # What they declare `global` is bound outside.
    scope = Scope(None, Scope(None, None))
    Scopes(*nodes, within=scope, annotations=annotations)
    return scope


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that one scope's own statements bind, `global` and `nonlocal` ones left out."""
    return set(_alone(nodes).bindings)


def names_of_its_own(*functions: ast.AST) -> set[str]:
    """Names that functions bind, and the scopes inside them, those they are defined under left out."""
    inside = _alone(functions).inside
    return {name for own in inside for scope in every_scope(own) for name in scope.bindings}


def names_of_inner_scopes(function: ast.AST) -> set[str]:
    """Names that the scopes inside a function bind, and neither it nor what they take from around it has."""
    own = _alone([function]).inside
    return names_of_its_own(function) - {name for scope in own for name in {*scope.bindings, *scope.used()}}


def used_names(nodes: Iterable[ast.AST], annotations: bool = True) -> set[str]:
    """Names that the nodes of one scope read, and the scopes inside it from outside of those.

    Those in `annotations` count unless the module has it that these are not evaluated.
    """
    return _alone(nodes, annotations).used()


def free_names(node: ast.AST) -> set[str]:
    """Names a function, lambda or class takes from around it, builtins included; of others, all they use.

    Of a function: the body and all scopes in it. Its decorators, defaults and annotations are
    evaluated outside and are not counted.
    """
    scope = _alone([node])
    if isinstance(node, Function | ast.ClassDef):
        scope = next(each for each in scope.inside if each.node is node)
        return scope.free()
    return scope.used()


def positional(function: Function) -> list[str]:
    """Names of the parameters that can be given by position."""
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args)]


def parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    """All parameters, in the order they are written."""
    yield from arguments.posonlyargs
    yield from arguments.args
    if arguments.vararg:
        yield arguments.vararg
    yield from arguments.kwonlyargs
    if arguments.kwarg:
        yield arguments.kwarg


def names_in(*nodes: ast.AST) -> set[str]:
    """Every name that is read or written in `nodes`."""
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def names_stored(*nodes: ast.AST) -> set[str]:
    """Every name that is given a value in `nodes`, or deleted, in whatever scope."""
    every = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in every if not isinstance(each.ctx, ast.Load)}


def root_name(node: ast.AST) -> str | None:
    """``"batch"`` of ``batch["x"].y``; None of anything else."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def attribute_of_itself(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Attribute | None:
    """The first attribute of a function that it reads or sets by its own name: ``step.calls`` in ``step``.

    Names of Python's own, as ``step.__name__``, are the same of a copy.
    """
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    if function.name in bound:
        return None
    found = (
        node
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == function.name
        and not node.attr.startswith("__")
    )
    return min(found, key=lambda node: (node.lineno, node.col_offset), default=None)


def is_private(definition: ast.AST) -> bool:
    """Whether a method uses names that only mean something in its class: ``__x``, ``super()``."""
    for node in ast.walk(definition):
        name = getattr(node, "id", getattr(node, "attr", getattr(node, "arg", None))) or ""
        if name in ("super", "__class__") or (name.startswith("__") and not name.endswith("__")):
            return True
    return False


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes of one function's own scope in source order: nested scopes are given, but not entered.

    What Python evaluates outside a nested scope (defaults, decorators, annotations, bases, the first
    iterable of a comprehension) belongs to this one and is entered.
    """
    pending = [*nodes][::-1]
    while pending:
        node = pending.pop()
        yield node
        parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.Lambda):
            parts = defaults(node.args)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [*node.decorator_list, *defaults(node.args), *written_annotations(node)]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, _COMPREHENSIONS):
            parts = [node.generators[0].iter]
        pending += [*parts][::-1]


def written_annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Annotations of parameters and of the result, as expressions."""
    found = [parameter.annotation for parameter in parameters(function.args)]
    return [annotation for annotation in [*found, function.returns] if annotation is not None]


def defaults(arguments: ast.arguments) -> list[ast.expr]:
    """Defaults of parameters, as they are written."""
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


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
