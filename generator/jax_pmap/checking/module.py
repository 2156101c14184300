"""One Python module as the rules see it: what every name stands for, through aliases and `partial`.

Nothing is imported or run. A name stands for something only where that is certain: one binding, or several
that agree. Everything else is unknown, and rules stay silent about what is unknown.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.checking.scopes import Binding, Scopes, lookup
from jax_pmap.model import Span

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"

_ASKS = re.compile(r"version|hasattr|getattr|_HAS_|HAVE_|TYPE_CHECKING")
#: Names under which the same thing can be had.
_CANONICAL = {
    "jax.experimental.shard_map.shard_map": "jax.shard_map",
    "jax.api.pmap": "jax.pmap",
    "jax._src.api.pmap": "jax.pmap",
    "jax.ad_checkpoint.checkpoint": "jax.checkpoint",
    "jax.remat": "jax.checkpoint",
    "jax.random.key": "jax.random.PRNGKey",
    "jax.tree_util.tree_map": "jax.tree.map",
    "jax.tree_map": "jax.tree.map",
    "jax.tree_multimap": "jax.tree.map",
    "jax.lax.parallel.axis_index": "jax.lax.axis_index",
}


class _Unknown:
    """The value of what cannot be told by reading."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
#: Calls of one function that are followed to what they give it.
_CALLS: Final = 8


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


class Module:
    """A parsed module with its scopes; see the functions below for what can be asked."""

    def __init__(self, text: str, shown: str, tree: ast.Module) -> None:
        self.text = text
        self.shown = shown
        self.tree = tree
        scopes = Scopes(tree)
        self.parents, self.scopes = scopes.parents, scopes.of
        self._names: dict[ast.AST, frozenset[str]] = {}
        self._applications: dict[ast.Call, Application | None] = {}

    # --- places ---------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", self.text))]

    @cached_property
    def lines(self) -> list[str]:
        """Lines as Python counts them, without their ends."""
        return re.split(r"\r\n|\r|\n", self.text)

    def column(self, line: int, byte_column: int) -> int:
        """Characters before the place that `ast` counts in UTF-8 bytes."""
        text = self.lines[line - 1]
        if text.isascii():
            return byte_column
        return len(text.encode()[:byte_column].decode(errors="replace"))

    def offset(self, line: int, byte_column: int) -> int:
        """Offset into the text of a place that `ast` gives."""
        return self._starts[line - 1] + self.column(line, byte_column)

    def bounds(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Offsets of the start and the end of `node`."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The text of `node` as it is written."""
        start, end = self.bounds(node)
        return self.text[start:end]

    def span(self, node: ast.expr | ast.stmt) -> Span:
        """The place of `node`."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return Span(
            self.shown,
            node.lineno,
            self.column(node.lineno, node.col_offset),
            node.end_lineno,
            self.column(node.end_lineno, node.end_col_offset),
        )

    def finding(
        self, code: str, node: ast.expr | ast.stmt, message: str, hint: str, edits: tuple[Edit, ...] = ()
    ) -> Finding:
        """A finding at `node`."""
        return Finding(code, message, hint, self.span(node), edits)

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """The edit that puts `text` in the place of `node`."""
        return Edit(*self.bounds(node), text)

    def spelled(self, name: str, node: ast.AST) -> tuple[str, tuple[Edit, ...]]:
        """How code at `node` can write a dotted name, through an import that is there or one that is added.

        Args:
            name: such as ``"functools.partial"``, of which ``"partial"`` is left after
                ``from functools import partial``.
            node: the place whose scope counts.

        Returns:
            The text, and the edit that adds ``import functools`` where nothing leads to the name.
        """
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            for local in self._imported.get(".".join(parts[:length]), ()):
                seen = lookup(local, self.scopes[node]) or []
                same = all(each.kind == "import" and each.qualname == seen[0].qualname for each in seen)
                if same and any(self._is_certain(each, node) for each in seen):
                    return ".".join([local, *parts[length:]]), ()
        return name, self._import_edit(f"import {parts[0]}")

    @cached_property
    def _imported(self) -> dict[str, list[str]]:
        """Dotted names, and the local names they are imported under at the top of the module."""
        found: dict[str, list[str]] = {}
        for local, bindings in self.scopes[self.tree].bindings.items():
            for binding in bindings:
                if binding.kind == "import":
                    found.setdefault(binding.qualname, []).append(local)
        return found

    def _is_certain(self, binding: Binding, node: ast.AST) -> bool:
        """Whether an import at the top of the module has run when `node` does."""
        statement = self.statement(node)
        if binding.value not in self.tree.body:
            return False  # in an `if` or a `try`
        inside = statement is None or self.enclosing_function(node) is not None
        return inside or (binding.value is not None and binding.value.lineno < node.lineno)  # type: ignore[attr-defined]

    def _import_edit(self, statement: str) -> tuple[Edit, ...]:
        """The edit that adds an import behind the docstring and `__future__`."""
        newline = "\r\n" if "\r\n" in self.text else "\n"
        last: ast.stmt | None = None
        for node in self.tree.body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if not (docstring or future):
                break
            last = node
        if last is None:
            first = self.tree.body[0]
            at = self.offset(first.lineno, 0)
            return (Edit(at, at, f"{statement}{newline}"),)
        at = self.bounds(last)[1]
        gap = newline if isinstance(last, ast.ImportFrom) else newline * 2
        return (Edit(at, at, f"{gap}{statement}"),)

    # --- meanings -------------------------------------------------------------------------

    def bindings(self, name: ast.Name) -> list[Binding] | None:
        """Every binding of a name where it is read; None where nothing in the module binds it."""
        return lookup(name.id, self.scopes[name])

    def qualname(self, node: ast.AST | None) -> str | None:
        """The dotted name `node` stands for, such as ``"jax.lax.psum"``; None where that is not certain.

        What jax has under several names is called by one of them: `names` tells which was written.
        """
        found = {_CANONICAL.get(name, name) for name in self.names(node)}
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
                found.add(binding.qualname)
                continue
            is_name = binding.kind == "assign" and isinstance(binding.value, ast.Name | ast.Attribute)
            names = self.names(binding.value) if is_name else frozenset()
            if not names:
                return frozenset()
            found |= names
        return frozenset(found)

    def assigned(self, node: ast.AST | None) -> ast.AST | None:
        """`node`, or what the name it is was assigned or given, as far as there is exactly one such."""
        for _ in range(10):
            found = self._once(node)
            if len(found) != 1:
                return node
            node = found[0]
        return node

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
        names = parameters(function)
        found: list[ast.AST] = []
        for call in self._calls_of.get(function, ()):
            keyword = next((each.value for each in call.keywords if each.arg == parameter.arg), None)
            position = names.index(parameter.arg) if parameter.arg in names else len(call.args)
            if _is_open(call) or (keyword is None and position >= len(call.args)):
                return []
            found.append(keyword or call.args[position])
        return found

    @cached_property
    def _calls_of(self) -> dict[ast.AST, list[ast.Call]]:
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

    def constant(self, node: ast.AST | None) -> Value | _Unknown:
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
                if isinstance(value, _Unknown):
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
            if name in ("jax.jit", "jax.checkpoint", "jax.named_call", "functools.wraps"):
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
        returned = [
            node.value
            for node in ast.walk(factory)
            if isinstance(node, ast.Return) and self.enclosing_function(node) is factory
        ]
        made = self.assigned(returned[0]) if len(returned) == 1 else None
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
        if collected is not None:
            return Application(
                collected.qualname,
                (*collected.args, *(a for a in call.args if not isinstance(a, ast.Starred))),
                {**collected.keywords, **{k.arg: k.value for k in call.keywords if k.arg}},
                call,
                collected.open or _is_open(call),
            )
        name = self.qualname(call.func)
        if name is None:
            return None
        return Application(
            name,
            tuple(a for a in call.args if not isinstance(a, ast.Starred)),
            {k.arg: k.value for k in call.keywords if k.arg},
            call,
            _is_open(call),
        )

    def _collected(self, node: ast.expr) -> Application | None:
        """`node` as ``functools.partial(f, …)``, written here or assigned to a name."""
        made = self.assigned(node)
        if not isinstance(made, ast.Call) or self.qualname(made.func) != "functools.partial":
            return None
        if not made.args or isinstance(made.args[0], ast.Starred):
            return None
        inner = self._collected(made.args[0])
        name = inner.qualname if inner else self.qualname(made.args[0])
        if name is None:
            return None
        return Application(
            name,
            (*(inner.args if inner else ()), *(a for a in made.args[1:] if not isinstance(a, ast.Starred))),
            {**(inner.keywords if inner else {}), **{k.arg: k.value for k in made.keywords if k.arg}},
            made,
            (inner.open if inner else False) or _is_open(made),
        )

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

    # --- surroundings ---------------------------------------------------------------------

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

    def caught_lines(self) -> set[int]:
        """Lines whose errors are caught: in a `try` with handlers, or below ``pytest.raises``."""
        lines: set[int] = set()
        for node in self.nodes:
            raises = isinstance(node, ast.With) and any(
                isinstance(item.context_expr, ast.Call)
                and "raises" in ast.unparse(item.context_expr.func).lower()
                for item in node.items
            )
            if raises or (isinstance(node, ast.Try) and node.handlers):
                for statement in node.body:  # type: ignore[attr-defined]
                    lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
        return lines

    def is_guarded(self, node: ast.AST) -> bool:
        """Whether the code asks first: in a `try` with handlers, or below a test of a version or the like."""
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, ast.Try) and parent.handlers and child not in parent.orelse:
                return True
            if isinstance(parent, ast.With) and any(
                "suppress" in ast.unparse(i.context_expr) for i in parent.items
            ):
                return True
            asked = isinstance(parent, ast.If | ast.IfExp) and child is not parent.test
            if asked and _ASKS.search(ast.unparse(parent.test)):  # type: ignore[attr-defined]
                return True
            child = parent
        return False


def parameters(function: Function) -> list[str]:
    """Names of the parameters that can be given by position."""
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args)]


def names_in(node: ast.AST) -> set[str]:
    """Every name that is read or written in `node`."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_open(call: ast.Call) -> bool:
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
