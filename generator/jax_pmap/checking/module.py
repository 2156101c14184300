"""One Python module as the rules see it: what its names stand for, findings, and the edits that mend them."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.syntax.resolve import Resolver
from jax_pmap.worker.scopes import Binding

_ASKS = re.compile(r"version|hasattr|getattr|_HAS_|HAVE_|TYPE_CHECKING")


class Module(Resolver):
    """A module that rules are asked about; rules stay silent about what is not certain."""

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
                seen = self.scopes[node].lookup(local) or []
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
