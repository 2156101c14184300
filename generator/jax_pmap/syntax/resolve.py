"""What names mean in the target's file: imports, module-level names, constants."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from jax_pmap.model import Source
from jax_pmap.syntax.definitions import statements
from jax_pmap.syntax.scopes import bound_names


class _Unknown:
    """Type of `UNKNOWN`, the answer where an expression is not a literal (None is one)."""


UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class Imported:
    """One name bound by one import statement."""

    name: str
    #: What it stands for: ``"jax.numpy"``, ``"functools.partial"``.
    qualified: str
    #: Normalised statement that binds this name alone.
    statement: str
    #: Whether it stands under ``if TYPE_CHECKING:``.
    typing_only: bool


@dataclass(frozen=True, slots=True)
class FileNames:
    """Every top-level name of a file, by how it comes about."""

    #: Names only import statements bind; several rows for ``import a.b`` beside ``import a.c``.
    imported: Mapping[str, tuple[Imported, ...]]
    #: Names that definitions, assignments or several competing imports bind.
    defined: frozenset[str]
    #: Modules imported with a star.
    stars: tuple[str, ...]
    #: Top-level names assigned exactly once, with the value.
    values: Mapping[str, ast.expr]


def file_names(tree: ast.Module, source: Source) -> FileNames:
    """Sort the names that the top level of the file binds."""
    imports: dict[str, list[Imported]] = {}
    others: set[str] = set()
    stars: list[str] = []
    assigned: dict[str, list[ast.expr | None]] = {}
    typing_blocks = _typing_only(tree)
    for statement, _ in statements(tree.body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for row in import_rows(statement, source, typing_only=id(statement) in typing_blocks):
                if row.name == "*":
                    stars.append(row.qualified)
                else:
                    imports.setdefault(row.name, []).append(row)
            continue
        bound = bound_names(head_of(statement))
        others |= bound
        for name in bound:
            assigned.setdefault(name, []).append(_value(statement))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            others.update(node.names)

    imported = {}
    for name, rows in imports.items():
        if name in others or len({row.qualified for row in rows}) > 1:
            # Competing bindings (try / except ImportError): only the module knows which one won.
            others.add(name)
        else:
            at_runtime = [row for row in rows if not row.typing_only] or rows
            imported[name] = tuple({row.statement: row for row in at_runtime}.values())
    values = {
        name: found[0]
        for name, found in assigned.items()
        if len(found) == 1 and found[0] is not None and name not in imports
    }
    return FileNames(imported, frozenset(others), tuple(dict.fromkeys(stars)), values)


def head_of(statement: ast.stmt) -> list[ast.AST]:
    """What of a statement binds names itself; the blocks inside it are visited as statements."""
    whole = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    if isinstance(statement, whole):
        return [statement]
    heads: list[ast.AST] = []
    for name, value in ast.iter_fields(statement):
        if name in ("body", "orelse", "finalbody"):
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.ExceptHandler):
                continue  # its name is unbound again at its end
            if isinstance(item, ast.match_case):
                heads.append(item.pattern)
            elif isinstance(item, ast.AST):
                heads.append(item)
    return heads


def _value(statement: ast.stmt) -> ast.expr | None:
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        if len(statement.targets) == 1 and isinstance(target, ast.Name):
            return statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.value
    return None


def _typing_only(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for statement, _ in statements(tree.body):
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in (
            getattr(statement.test, "id", None),
            getattr(statement.test, "attr", None),
        ):
            found.update(id(inner) for inner, _ in statements(statement.body))
    return found


def import_rows(
    statement: ast.Import | ast.ImportFrom, source: Source, *, typing_only: bool = False
) -> list[Imported]:
    """One row per name of an import statement, relative modules made absolute."""
    rows = []
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname and alias.asname != alias.name:
                text = f"import {alias.name} as {alias.asname}"
                rows.append(Imported(alias.asname, alias.name, text, typing_only))
            else:
                root = alias.name.partition(".")[0]
                rows.append(Imported(root, root, f"import {alias.name}", typing_only))
        return rows
    module = _absolute(statement, source)
    for alias in statement.names:
        name = alias.asname or alias.name
        text = f"from {module} import {alias.name}"
        if name != alias.name:
            text += f" as {name}"
        qualified = module if alias.name == "*" else f"{module}.{alias.name}"
        rows.append(Imported(name, qualified, text, typing_only))
    return rows


def _absolute(statement: ast.ImportFrom, source: Source) -> str:
    if not statement.level:
        return statement.module or ""
    parts = source.module.split(".")
    # One dot is the file's own package, which for an `__init__.py` is the module itself.
    up = statement.level - (source.path.name == "__init__.py")
    package = parts[: max(len(parts) - up, 0)]
    return ".".join([*package, *([statement.module] if statement.module else [])])


@dataclass(frozen=True, slots=True)
class Resolver:
    """Turns expressions of the file into qualified names and literals."""

    names: FileNames
    #: Names that imports inside the functions around an expression bind, with their meaning.
    local: Mapping[str, str]
    #: Names that mean something local and unknown: parameters, assigned variables.
    hidden: frozenset[str] = frozenset()

    def qualify(self, expression: ast.expr, depth: int = 8) -> str | None:
        """Qualified name of a name or attribute (``j.jit`` → ``"jax.jit"``), or None.

        A name the file defines itself keeps its own name, unless it is a plain alias
        (``jit = jax.jit``), which is followed.
        """
        if isinstance(expression, ast.Attribute):
            base = self.qualify(expression.value, depth)
            return canonical(f"{base}.{expression.attr}") if base else None
        if not isinstance(expression, ast.Name):
            return None
        name = expression.id
        if name in self.local:
            return canonical(self.local[name])
        if name in self.hidden:
            return None
        if rows := self.names.imported.get(name):
            return canonical(rows[0].qualified)
        value = self.names.values.get(name)
        if isinstance(value, ast.Name | ast.Attribute) and depth:
            return self.qualify(value, depth - 1) or name
        return name

    def transformed(self, expression: ast.expr) -> tuple[str | None, tuple[ast.Call, ...]]:
        """Name and option-carrying calls behind a function-making expression.

        ``jax.jit`` → jax.jit · ``jax.jit(static_argnums=0)`` → jax.jit with that call ·
        ``functools.partial(jax.jit, …)`` → jax.jit with the call of partial.
        """
        if isinstance(expression, ast.Call):
            name, calls = self.transformed(expression.func)
            if name == "functools.partial" and expression.args:
                name, calls = self.transformed(expression.args[0])
            return name, (*calls, expression)
        if isinstance(expression, ast.Name) and expression.id not in self.hidden:
            value = self.names.values.get(expression.id)
            if isinstance(value, ast.Call) and self.qualify(value.func) == "functools.partial":
                return self.transformed(value)
        return self.qualify(expression), ()

    def literal(self, expression: ast.expr | None, depth: int = 8) -> object:
        """Value of a literal expression, module-level constants resolved; `UNKNOWN` if it is none."""
        if expression is None or not depth:
            return UNKNOWN
        if isinstance(expression, ast.Constant):
            return expression.value
        if isinstance(expression, ast.Tuple | ast.List):
            items = tuple(self.literal(item, depth) for item in expression.elts)
            return UNKNOWN if UNKNOWN in items else items
        if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
            value = self.literal(expression.operand, depth)
            return -value if isinstance(value, int | float) else UNKNOWN
        if isinstance(expression, ast.Name) and expression.id not in self.hidden | self.local.keys():
            return self.literal(self.names.values.get(expression.id), depth - 1)
        return UNKNOWN


#: Public names, by the older or longer paths that mean the same.
_CANONICAL = {
    "jax.api": "jax",
    "jax.experimental.pjit.pjit": "jax.jit",
    "flax.experimental.nnx": "flax.nnx",
    "jax.tree_util.tree_map": "jax.tree.map",
    "jax.tree_map": "jax.tree.map",
}


def canonical(name: str) -> str:
    """The usual public spelling of a qualified name."""
    for old, new in _CANONICAL.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name
