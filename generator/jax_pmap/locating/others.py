"""JP004: a name that stands for a class, a variable or an import, and the function behind it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NoReturn

from jax_pmap.locating.bindings import Bindings
from jax_pmap.locating.project import File, Project
from jax_pmap.locating.words import any_of, clip, refuse
from jax_pmap.model import Span
from jax_pmap.syntax.definitions import FUNCTION, binding_of, find, functions_in
from jax_pmap.syntax.imports import Import
from jax_pmap.syntax.library import MAPPERS, WRAPPERS


class Others:
    """Refuses names of the project that stand for no function, and says what to type instead."""

    def __init__(self, project: Project, bindings: Bindings) -> None:
        self.project, self.bindings = project, bindings

    def refuse(self, file: File, qualname: str) -> None:
        """Refuse with JP004, saying what to type, if `qualname` is something else than a function."""
        chain = find(file.tree, qualname)
        if chain:
            if isinstance(node := chain[-1], ast.ClassDef):
                self._refuse_class(file, qualname, node)
            return
        head, _, name = qualname.rpartition(".")
        scope = find(file.tree, head) if head else None
        if head and not scope:
            return
        bound = binding_of(scope[-1].body if scope else file.tree.body, name)
        bound = bound or next(iter(self.bindings.statements_for(file, qualname)), None)
        if bound is None:
            return
        span = Span(self.project.shown(file.path), bound.lineno, bound.col_offset)
        if isinstance(bound, ast.Import | ast.ImportFrom):
            self._refuse_import(file, bound, name, span)
        value = getattr(bound, "value", None)
        if value is None or not isinstance(bound, ast.Assign | ast.AnnAssign):
            hint = "Name a function that is written as `def`."
            refuse("JP004", f"`{qualname}` is a variable.", hint, span)
        if isinstance(value, ast.Lambda):
            refuse(
                "JP004",
                f"`{qualname}` is a lambda.",
                f"Write it as `def {name}({ast.unparse(value.args)}): return ...` and name that.",
                span,
            )
        text = clip(ast.unparse(value))
        several = dict.fromkeys(self.project.typed(*place) for place in self.bindings.several)
        wrapped = self._wrapped(file, value)
        hint = f"Write a function that calls it, `def run(...): return {name}(...)`, and name that."
        if wrapped:
            hint = f"Name the function it stands for: `{wrapped}`."
        if isinstance(value, ast.Constant | ast.JoinedStr):  # Nothing that could be called.
            hint = "Name a function that is written as `def`."
        written = next((node for node in ast.walk(value) if isinstance(node, ast.Lambda)), None)
        if written is not None and head:
            arguments = ", ".join(filter(None, ["self", ast.unparse(written.args)]))
            hint = f"Write the lambda as a method, `def _{name}({arguments}): return ...`, and name that."
        if len(several) > 1:
            hint = f"It is one of several functions; name the one you mean: {any_of(several)}."
        refuse("JP004", f"`{qualname}` is a variable, assigned `{text}`.", hint, span)

    def _refuse_class(self, file: File, qualname: str, node: ast.ClassDef) -> NoReturn:
        methods = [
            name
            for name in functions_in(ast.Module(node.body, []))
            if "." not in name and (name == "__call__" or not name.startswith("__"))
        ]
        hint = "It has no methods of its own; name a function."
        if methods:
            listed = any_of(self.project.typed(file.path, f"{qualname}.{name}") for name in methods[:8])
            hint = f"Name one of its methods: {listed}."
        span = Span(self.project.shown(file.path), node.lineno, node.col_offset)
        refuse("JP004", f"`{qualname}` is a class.", hint, span)

    def _refuse_import(self, file: File, node: Import, name: str, span: Span) -> NoReturn:
        module = "." * getattr(node, "level", 0) + (getattr(node, "module", None) or "")
        if isinstance(node, ast.Import):
            refuse(
                "JP004",
                f"`{name}` is a module, imported by `{ast.unparse(node)}`.",
                "Name a function in it: `package.module:FUNC`.",
                span,
            )
        found = self._followed(file.path, node, name)
        refuse(
            "JP004",
            f"`{name}` is imported from `{module}`; `{self.project.shown(file.path)}` does not define it.",
            f"Name it where it is defined: `{found}`."
            if found
            else f"It is not defined in the project: write a function that calls `{name}`, and name that.",
            span,
        )

    def _wrapped(self, file: File, value: ast.expr, hops: int = 8) -> str | None:
        """Target to type for the function that `jax.jit(f)`, `partial(f, ...)` or `f` itself stands for."""
        if hops == 0:
            return None
        if isinstance(value, ast.Call):
            made = file.names.applied(value)
            known = made is not None and made.qualname in WRAPPERS | MAPPERS | {"functools.partial"}
            return self._wrapped(file, value.args[0], hops - 1) if known and value.args else None
        if not isinstance(value, ast.Name | ast.Attribute):
            return None
        dotted = ast.unparse(value)
        chain = find(file.tree, dotted)
        if chain:
            return self.project.typed(file.path, dotted) if isinstance(chain[-1], FUNCTION) else None
        head, _, rest = dotted.partition(".")
        bound = binding_of(file.tree.body, head)
        if isinstance(bound, ast.Import | ast.ImportFrom):
            return self._followed(file.path, bound, head, rest)
        again = getattr(bound, "value", None)
        return self._wrapped(file, again, hops - 1) if again is not None and not rest else None

    def _followed(self, path: Path, node: Import, name: str, rest: str = "") -> str | None:
        """Target to type for the function that an imported name, with `rest` behind it, leads to."""
        found = self.bindings.follow(path, node, name, rest)
        return self.project.typed(found[0].path, found[1]) if found else None
