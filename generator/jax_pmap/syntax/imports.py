"""Import statements: which names they bind, and what those stand for."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeAlias

Import: TypeAlias = ast.Import | ast.ImportFrom


@dataclass(frozen=True, slots=True)
class Imported:
    """One name bound by one import statement."""

    name: str
    #: What it stands for: ``"jax.numpy"``, ``"functools.partial"``.
    qualified: str
    #: Normalised statement that binds this name alone.
    statement: str
    #: Whether it stands under ``if TYPE_CHECKING:``.
    typing_only: bool = False


def bound_name(alias: ast.alias, node: Import) -> str:
    """The name an import gives a value to: ``import a.b`` binds ``a``."""
    if alias.asname or isinstance(node, ast.ImportFrom):
        return alias.asname or alias.name
    return alias.name.partition(".")[0]


def import_rows(node: Import, module: str = "", *, package: bool = False) -> list[Imported]:
    """One row per name of an import statement.

    Relative modules are made absolute where the `module` that imports, which may be a `package`, is known.
    """
    rows = []
    origin = ""
    if isinstance(node, ast.ImportFrom):
        origin = absolute("." * node.level + (node.module or ""), module, package=package)
    for alias in node.names:
        name, renamed = bound_name(alias, node), f" as {alias.asname}" if alias.asname else ""
        if alias.asname == alias.name:
            renamed = ""
        if isinstance(node, ast.Import):
            text = f"import {alias.name}{renamed}"
            rows.append(Imported(name, alias.name if alias.asname else name, text))
            continue
        text = f"from {origin} import {alias.name}{renamed}"
        dot = "" if origin.endswith(".") or not origin else "."
        rows.append(Imported(name, origin if alias.name == "*" else f"{origin}{dot}{alias.name}", text))
    return rows


def absolute(name: str, module: str, *, package: bool = False) -> str:
    """``"pkg.losses.mse"`` of ``".losses.mse"`` in the `module` ``pkg.train``, if that is known.

    One dot is the module's own package, which for a `package` is the module itself.
    """
    inner = name.lstrip(".")
    if inner == name or not module:
        return name
    parts = module.split(".")
    parts = parts[: max(len(parts) + package - (len(name) - len(inner)), 0)]
    return ".".join([*parts, inner] if inner else parts)
