"""What names stand for in one module: through imports, aliases, `partial`, and calls of its functions.

Nothing is imported or run. A name stands for something only where that is certain: one binding, or several
that agree. Everything else is unknown.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from jax_pmap.syntax.definitions import Definition
from jax_pmap.syntax.imports import Import, Imported, absolute, import_rows
from jax_pmap.syntax.library import WRAPPERS
from jax_pmap.syntax.lines import Lines, parsed_expression
from jax_pmap.worker.scopes import Binding, Function, Scope, Scopes, own_nodes, positional

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"

#: Public names, by the older or longer paths that mean the same.
_CANONICAL = {
    "flax.experimental.nnx": "flax.nnx",
    "jax._src.api.pmap": "jax.pmap",
    "jax.ad_checkpoint.checkpoint": "jax.checkpoint",
    "jax.api": "jax",
    "jax.experimental.pjit.pjit": "jax.jit",
    "jax.experimental.shard_map.shard_map": "jax.shard_map",
    "jax.lax.parallel.axis_index": "jax.lax.axis_index",
    "jax.random.key": "jax.random.PRNGKey",
    "jax.remat": "jax.checkpoint",
    "jax.tree_map": "jax.tree.map",
    "jax.tree_multimap": "jax.tree.map",
    "jax.tree_util.tree_map": "jax.tree.map",
}
#: Calls of one function that are followed to what they give it.
_CALLS: Final = 8


class Unknown:
    """The value of what cannot be told by reading."""

    def __repr__(self) -> str:
        """Its name."""
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function of this module as an expression refers to it."""

    node: Function
    #: Leading parameters that are bound already (`self`, or by `partial`).
    bound: int = 0
    #: Parameters bound by keyword.
    keywords: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Application:
    """A call, with what `functools.partial` had collected put in front of its own arguments."""

    qualname: str
    args: tuple[ast.expr | Function, ...]
    keywords: dict[str, ast.expr]
    #: The expression or decorator to point at.
    node: ast.expr
    #: True when `*args` or `**kwargs` hide arguments.
    open: bool = False
    #: True when the application is a decorator that is a plain call: ``@jax.pmap(axis_name=…)``.
    factory: bool = False

    def argument(self, position: int, name: str) -> ast.expr | Function | None:
        """The argument at `position` or called `name`, None where it is not given."""
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if position < len(self.args) else None


@dataclass(frozen=True, slots=True)
class TopLevel:
    """Every top-level name of a module, by how it comes about."""

    #: Names only import statements bind; several rows for ``import a.b`` beside ``import a.c``.
    imported: Mapping[str, tuple[Imported, ...]]
    #: Names that definitions, assignments or several competing imports bind.
    defined: frozenset[str]
    #: Modules imported with a star.
    stars: tuple[str, ...]
    #: Names assigned exactly once, with the value.
    values: Mapping[str, ast.expr]


class Resolver(Lines):
    """One module: where its nodes stand, and what the names in it stand for."""

    def __init__(
        self, text: str, shown: str, tree: ast.Module, module: str = "", *, package: bool = False
    ) -> None:
        """Look at the `tree` of a `text`.

        Args:
            text: the file, decoded.
            shown: its name in messages.
            tree: what `ast` makes of it.
            module: its dotted name, where that is known: relative imports are resolved by it.
            package: whether it is an ``__init__.py``.
        """
        super().__init__(text, shown)
        self.tree = tree
        self.module, self.package = module, package
        self._names: dict[ast.AST, frozenset[str]] = {}
        self._applications: dict[ast.Call, Application | None] = {}

    # --- the tree -------------------------------------------------------------------------

    @cached_property
    def _scopes(self) -> Scopes:
        return Scopes(self.tree)

    @property
    def scopes(self) -> Mapping[ast.AST, Scope]:
        """The scope that each node stands in."""
        return self._scopes.of

    @property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        """The node around each node."""
        return self._scopes.parents

    def expression(self, text: str, within: ast.Module | Function) -> ast.expr:
        """The tree of an expression, to be understood as if it stood in the body of `within`."""
        node = parsed_expression(text)
        self._scopes.add(node, Scope(None, self.scope_in(within)))
        return node

    def scope_in(self, node: ast.Module | ast.ClassDef | Function) -> Scope:
        """The scope that a module, a class or a function is, and its body stands in."""
        inside = node.body if isinstance(node, ast.Lambda) else node.body[0] if node.body else node
        return self.scopes[inside]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the module."""
        return list(ast.walk(self.tree))

    @cached_property
    def all_calls(self) -> list[ast.Call]:
        """Every call of the module."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def calls(self, node: ast.AST) -> Iterator[ast.Call]:
        """Every call in `node`, also in functions inside it."""
        nodes = self.all_calls if node is self.tree else ast.walk(node)
        return (each for each in nodes if isinstance(each, ast.Call))

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, from the inside out."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def enclosing_function(self, node: ast.AST) -> Function | None:
        """The function whose body `node` is in; a decorator or a default is not in the body."""
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, ast.Lambda) and child is parent.body:
                return parent
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and child in parent.body:
                return parent
            child = parent
        return None

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement that `node` is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next((each for each in self.ancestors(node) if isinstance(each, ast.stmt)), None)

    # --- names ----------------------------------------------------------------------------

    @cached_property
    def rebound(self) -> frozenset[str]:
        """Names of the module that its functions may bind anew: those they declare `global`."""
        declared = (node.names for node in self.nodes if isinstance(node, ast.Global))
        return frozenset(name for names in declared for name in names)

    @cached_property
    def imports(self) -> list[Imported]:
        """A row for each name that an import statement at the top level of the module binds."""
        bindings = (each for several in self.scopes[self.tree].bindings.values() for each in several)
        return list(dict.fromkeys(row for each in bindings for row in self._rows(each)))

    @cached_property
    def top(self) -> TopLevel:
        """The names that the top level of the module binds."""
        top = self.scopes[self.tree].bindings
        stars = [row.qualified for each in top.get("*", ()) for row in self._rows(each)]
        imported: dict[str, tuple[Imported, ...]] = {}
        values: dict[str, ast.expr] = {}
        for name in top.keys() - {"*"}:
            rows = [row for each in top[name] for row in self._rows(each) if row.name == name]
            # Of competing bindings (try / except ImportError) only the module knows which one won.
            if len({row.qualified for row in rows}) == 1 and all(each.kind == "import" for each in top[name]):
                if name not in self.rebound:
                    at_runtime = [row for row in rows if not row.typing_only] or rows
                    imported[name] = tuple({row.statement: row for row in at_runtime}.values())
            elif len(top[name]) == 1 and isinstance(value := top[name][0].value, ast.expr):
                values[name] = value
        defined = (top.keys() | self.rebound) - imported.keys() - {"*"}
        return TopLevel(imported, frozenset(defined), tuple(dict.fromkeys(stars)), values)

    def _rows(self, binding: Binding) -> list[Imported]:
        """The rows of the import statement that a binding is."""
        statement = binding.value
        if not isinstance(statement, Import):
            return []
        child: ast.AST = statement
        typing_only = False
        for parent in self.ancestors(statement):
            asked = isinstance(parent, ast.If) and child in parent.body
            typing_only |= asked and ast.unparse(parent.test).rpartition(".")[2] == "TYPE_CHECKING"  # type: ignore[attr-defined]
            child = parent
        rows = import_rows(statement, self.module, package=self.package)
        return [replace(row, typing_only=typing_only) for row in rows]

    def imported_as(self, dotted: str) -> str | None:
        """``"pkg.losses.mse"`` of ``"losses.mse"`` by the imports of the module, None of other names."""
        head, dot, rest = dotted.partition(".")
        found = {
            absolute(each.qualname, self.module, package=self.package) if each.kind == "import" else None
            for each in self.scopes[self.tree].bindings.get(head, ())
        }
        only = found.pop() if len(found) == 1 else None
        return f"{only}{dot}{rest}" if only else None

    def bindings(self, name: ast.Name) -> list[Binding] | None:
        """Every binding of a name where it is read; None where nothing in the module binds it."""
        return self.scopes[name].lookup(name.id)

    def bound_once(self, scope: ast.Module | Definition, name: str) -> ast.stmt | None:
        """The one statement that binds a name in the body of `scope`; None of several, or none."""
        found = self.scope_in(scope).bindings.get(name, ())
        value = found[0].value if len(found) == 1 and found[0].kind != "param" else None
        return self.statement(value) if value is not None else None

    def _root(self, node: ast.AST) -> ast.Name | None:
        """The name that a name or attribute starts with, None of other expressions."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return node if isinstance(node, ast.Name) and node in self.scopes else None

    def is_global(self, node: ast.AST) -> bool:
        """Whether an expression starts with a name that no function around it binds."""
        root = self._root(node)
        return root is not None and self.bindings(root) is self.scopes[self.tree].bindings.get(root.id)

    def is_imported(self, node: ast.AST) -> bool:
        """Whether an expression starts with a name that an import binds, be it one of several."""
        root = self._root(node)
        return root is not None and any(each.kind == "import" for each in self.bindings(root) or ())

    def qualname(self, node: ast.AST | None) -> str | None:
        """The dotted name `node` stands for, such as ``"jax.lax.psum"``; None where that is not certain.

        What jax has under several names is called by one of them: `names` tells which was written. Builtins
        are ``"builtins.len"``; what the module defines has no such name.
        """
        found = {canonical(name) for name in self.names(node)}
        return found.pop() if len(found) == 1 else None

    def names(self, node: ast.AST | None) -> frozenset[str]:
        """Every dotted name that `node` may stand for, as it was imported; empty where one is not known."""
        if node is None:
            return frozenset()
        if node not in self._names:
            self._names[node] = frozenset()  # what refers to itself stands for nothing
            self._names[node] = self._find_names(node)
        return self._names[node]

    def _find_names(self, node: ast.AST) -> frozenset[str]:
        if isinstance(node, ast.Attribute):
            return frozenset(f"{base}.{node.attr}" for base in self.names(node.value))
        if not isinstance(node, ast.Name) or node not in self.scopes:
            return frozenset()
        bindings = self.bindings(node)
        if bindings is None:
            return frozenset({f"builtins.{node.id}"} if hasattr(builtins, node.id) else ())
        found: set[str] = set()
        for binding in bindings:
            if binding.kind == "import":
                found.add(absolute(binding.qualname, self.module, package=self.package))
                continue
            is_name = binding.kind == "assign" and isinstance(binding.value, ast.Name | ast.Attribute)
            names = self.names(binding.value) if is_name else frozenset()
            if not names:
                return frozenset()
            found |= names
        return frozenset(found)

    # --- values ---------------------------------------------------------------------------

    def assigned(self, node: ast.AST | None) -> ast.AST | None:
        """`node`, or what the name it is was assigned or given, as far as there is exactly one such."""
        for _ in range(10):
            found = self._once(node)
            if len(found) != 1:
                return node
            node = found[0]
        return node

    def last_value(self, node: ast.AST) -> ast.AST:
        """`node`, or what the last of the statements that bind the name that it is gives that name."""
        found = self.bindings(node) if isinstance(node, ast.Name) and node in self.scopes else None
        return (found[-1].value if found else None) or node

    def result(self, node: ast.AST | None) -> ast.AST | None:
        """The same, also through calls of functions of this module that return one expression."""
        made = self.assigned(node)
        for _ in range(10):
            function = self.assigned(made.func) if isinstance(made, ast.Call) else None
            if not isinstance(function, ast.FunctionDef) or function.decorator_list:
                break
            made = self.assigned(returned_by(function)) or made
        return made

    def values(self, node: ast.AST | None) -> list[ast.AST]:
        """Every expression that a name may stand for: assigned, or given at the calls; else `node` itself."""
        if node is None:
            return []
        found = [node]
        for _ in range(10):
            further = [self._once(each) or [each] for each in found]
            flat = [each for several in further for each in several]
            if flat == found or len(flat) > _CALLS:
                break
            found = flat
        return list(dict.fromkeys(found))

    def _once(self, node: ast.AST | None) -> list[ast.AST]:
        """What a name that is bound once was assigned, or, as a parameter, is given at each call."""
        if not isinstance(node, ast.Name) or node not in self.scopes:
            return []
        found = self.bindings(node)
        if found is None or len(found) != 1:
            return []
        binding = found[0]
        if binding.kind in ("assign", "def") and binding.value is not None:
            return [binding.value]
        if binding.kind == "param" and isinstance(binding.value, ast.arg):
            return self._given(binding.value)
        return []

    def _given(self, parameter: ast.arg) -> list[ast.AST]:
        """What every call in this module gives for a parameter; empty where one of them cannot be told."""
        arguments = self.parents[parameter]
        function = self.parents.get(arguments)
        if not isinstance(function, ast.FunctionDef) or not isinstance(arguments, ast.arguments):
            return []
        names = positional(function)
        found: list[ast.AST] = []
        for call in self.calls_of.get(function, ()):
            position = names.index(parameter.arg) if parameter.arg in names else len(call.args)
            given = None if _is_open(call) else given_for(call, position, parameter.arg)
            if given is None:
                return []
            found.append(given)
        return found

    @cached_property
    def calls_of(self) -> dict[ast.AST, list[ast.Call]]:
        """The calls by name of each function that is bound once and used in no other way."""
        found: dict[ast.AST, list[ast.Call]] = {}
        handed_on: set[ast.AST] = set()
        for node in self.nodes:
            if (
                not isinstance(node, ast.Name)
                or not isinstance(node.ctx, ast.Load)
                or node not in self.scopes
            ):
                continue
            bindings = self.bindings(node) or []
            if len(bindings) != 1 or bindings[0].kind != "def" or bindings[0].value is None:
                continue
            parent = self.parents.get(node)
            if isinstance(parent, ast.Call) and parent.func is node:
                found.setdefault(bindings[0].value, []).append(parent)
            else:
                handed_on.add(bindings[0].value)  # whoever gets it may call it with anything
        return {function: calls for function, calls in found.items() if function not in handed_on}

    def constant(self, node: ast.AST | None) -> Value | Unknown:
        """The literal `node` stands for: a string, a number, None, or a tuple of such."""
        node = self.assigned(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.constant(node.operand)
            return -value if isinstance(value, int | float) else UNKNOWN
        if isinstance(node, ast.Tuple | ast.List):
            values: list[Value] = []
            for element in node.elts:
                value = self.constant(element)
                if isinstance(value, Unknown):
                    return UNKNOWN
                values.append(value)
            return tuple(values)
        return UNKNOWN

    def function(self, node: ast.AST | None) -> FunctionRef | None:
        """The function of this module that `node` stands for, through names, `partial`, `jit` and methods."""
        node = self.assigned(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return FunctionRef(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._method(node)
        if isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], ast.Starred):
            name = self.qualname(node.func)
            if name in WRAPPERS | {"jax.named_call", "functools.wraps"}:
                return self.function(node.args[0])
            if name == "functools.partial":
                inner = self.function(node.args[0])
                starred = any(isinstance(arg, ast.Starred) for arg in node.args)
                if inner is None or starred or any(keyword.arg is None for keyword in node.keywords):
                    return None
                named = {keyword.arg for keyword in node.keywords if keyword.arg}
                return FunctionRef(inner.node, inner.bound + len(node.args) - 1, inner.keywords | named)
        if isinstance(node, ast.Call):
            return self._made_by(self.assigned(node.func))
        return None

    def _made_by(self, factory: ast.AST | None) -> FunctionRef | None:
        """The function that a function of this module defines and returns, as in ``make_step(loss_fn)``."""
        if not isinstance(factory, ast.FunctionDef) or factory.decorator_list:
            return None
        made = self.assigned(returned_by(factory))
        is_inner = isinstance(made, ast.FunctionDef | ast.Lambda) and factory in self.ancestors(made)
        if not is_inner or (isinstance(made, ast.FunctionDef) and made.decorator_list):
            return None
        assert isinstance(made, ast.FunctionDef | ast.Lambda)
        return FunctionRef(made)

    def functions(self, node: ast.AST | None) -> list[FunctionRef]:
        """The functions of this module that `node` may stand for: several where callers give several."""
        found = [self.function(each) for each in self.values(node)]
        return [reference for reference in found if reference is not None] if None not in found else []

    def _method(self, node: ast.Attribute) -> FunctionRef | None:
        """``self.step``: the method of the class around, where it is defined once and not decorated."""
        assert isinstance(node.value, ast.Name)
        method = self.enclosing_function(node)
        while method is not None and not isinstance(self.parents.get(method), ast.ClassDef):
            method = self.enclosing_function(method)
        if method is None or not method.args.args:
            return None
        owner = self.parents[method]
        if node.value.id != method.args.args[0].arg or not isinstance(owner, ast.ClassDef):
            return None
        found = [
            each
            for each in owner.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == node.attr
        ]
        if len(found) != 1:
            return None
        decorators = [self.qualname(decorator) for decorator in found[0].decorator_list]
        if decorators == ["builtins.staticmethod"]:
            return FunctionRef(found[0])
        return FunctionRef(found[0], 1) if not decorators else None

    # --- calls ----------------------------------------------------------------------------

    def application(self, call: ast.Call) -> Application | None:
        """What `call` calls and with which arguments, through `functools.partial`."""
        if call not in self._applications:
            self._applications[call] = self._application(call)
        return self._applications[call]

    def _application(self, call: ast.Call) -> Application | None:
        collected = self._collected(call.func)
        name = collected.qualname if collected is not None else self.qualname(call.func)
        if name is None:
            return None
        return self._called(collected or Application(name, (), {}, call), call)

    @staticmethod
    def _called(made: Application, call: ast.Call) -> Application:
        """What was collected before, with the arguments of a call."""
        args = (each for each in call.args if not isinstance(each, ast.Starred))
        keywords = {each.arg: each.value for each in call.keywords if each.arg}
        return Application(
            made.qualname,
            (*made.args, *args),
            {**made.keywords, **keywords},
            call,
            made.open or _is_open(call),
        )

    def applied(self, call: ast.Call) -> Application | None:
        """The same, also where options are given before: ``jax.jit(static_argnums=0)(step)``."""
        made = self.application(call)
        if made is None and isinstance(call.func, ast.Call) and not call.func.args:
            options = self.application(call.func)
            return self._called(options, call) if options is not None else None
        return made

    def _collected(self, node: ast.expr) -> Application | None:
        """`node` as ``functools.partial(f, …)``, written here or assigned to a name."""
        made = self.assigned(node)
        if not isinstance(made, ast.Call) or self.qualname(made.func) != "functools.partial":
            return None
        if not made.args or isinstance(made.args[0], ast.Starred):
            return None
        function, *rest = made.args
        inner = self._collected(function)
        name = inner.qualname if inner is not None else self.qualname(function)
        if name is None:
            return None
        call = ast.copy_location(ast.Call(function, rest, made.keywords), made)
        return replace(self._called(inner or Application(name, (), {}, made), call), node=made)

    def decoration(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, decorator: ast.expr
    ) -> Application | None:
        """What `decorator` does with `function`, as a call with it as the first argument."""
        collected = self._collected(decorator)
        if collected is not None:
            return Application(
                collected.qualname, (*collected.args, function), collected.keywords, decorator, collected.open
            )
        if isinstance(decorator, ast.Call):
            made = self.application(decorator)
            if made is None:
                return None
            return Application(
                made.qualname, (function, *made.args), made.keywords, decorator, made.open, factory=True
            )
        name = self.qualname(decorator)
        return Application(name, (function,), {}, decorator) if name else None


def given_for(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The argument of a call at a position, or under a name; None where it has neither."""
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return named if named is not None or position >= len(call.args) else call.args[position]


def returned_by(function: Function) -> ast.expr | None:
    """What the one `return` of a function gives; None where there are several, or none."""
    if isinstance(function, ast.Lambda):
        return function.body
    found = [node.value for node in own_nodes(function.body) if isinstance(node, ast.Return)]
    return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=1024)
def canonical(name: str) -> str:
    """The usual public spelling of a qualified name."""
    for old, new in _CANONICAL.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name


def _is_open(call: ast.Call) -> bool:
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
