"""Import statements of emitted code, in the order isort asks for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping

from jax_pmap.emit.names import ALIASES, Imported, Names, bindings


def import_block(
    statements: Iterable[str],
    user_imports: Iterable[tuple[str, Iterable[str]]],
    types: Iterable[tuple[str, str]],
    names: Names,
    needed: Iterable[str],
    first: str = "",
) -> str:
    """Merge what the body, the axes trees and the helpers import into one block.

    Args:
        statements: import statements of the body, outside the user's modules.
        user_imports: (module, names) pairs of the user's modules; what `statements` import of these is
            theirs, too.
        types: (module, name) pairs of container types in axes trees.
        names: how the emitted file binds what it imports for itself.
        needed: keys of `ALIASES` that the emitted file uses.
        first: the user's module that makes others be found; imported behind the standard library alone.
    """
    plain: set[str] = set()
    members: dict[str, set[str]] = {}
    user: dict[str, set[str]] = {}
    # Of statements that bind a name to the same, the first is enough.
    bound: dict[str, Imported] = {}
    for statement in statements:
        plain |= set(_unnamed(statement))
        bound = bindings(statement) | bound
    own = {getattr(names, alias): ALIASES[alias] for alias in needed}
    for name, what in (own | bound).items():
        if what.attribute is not None:
            members.setdefault(what.module, set()).add(_as(what.attribute, name))
        elif name in own or name != what.module:
            plain.add(f"import {_as(what.module, name)}")
    for module, imported in user_imports:
        user.setdefault(module, set()).update(imported)
    for module in members.keys() & user.keys():
        # One function's import is another's own module.
        user[module] |= members.pop(module)
    roots = {module.partition(".")[0] for module in user}
    for module, name in types:
        (user if module.partition(".")[0] in roots else members).setdefault(module, set()).add(name)
    return _sections(plain, members, user, first)


def _as(name: str, bound: str) -> str:
    return name if name == bound else f"{name} as {bound}"


def _unnamed(statement: str) -> list[str]:
    """The imports of modules under no other name: ``import os.path`` binds `os`."""
    return [
        f"import {item.name}"
        for node in ast.parse(statement).body
        if isinstance(node, ast.Import)
        for item in node.names
        if item.asname is None
    ]


def _sections(
    plain: set[str], members: Mapping[str, set[str]], user: Mapping[str, set[str]], first: str
) -> str:
    """Sections as isort orders them: future, standard library, third party, the user's own."""
    sections: dict[int, list[str]] = {}

    for statement in sorted(plain):
        sections.setdefault(_section(statement.split()[1]), []).append(statement)
    for module in sorted(members):
        sections.setdefault(_section(module), []).append(_from_import(module, members[module]))
    sections[3] = [_from_import(module, user[module]) for module in sorted(user) if user[module]]
    if first:
        sections.setdefault(1, []).append(
            f"\nimport {first}  # noqa: F401 (puts what is imported on sys.path)"
        )
        sections.setdefault(2, []).insert(0, "# isort: split")
    return "\n\n".join("\n".join(lines) for _, lines in sorted(sections.items()) if lines)


def _from_import(module: str, names: Iterable[str]) -> str:
    def order(name: str) -> tuple[int, str]:
        # Constants, classes, the rest: the order ruff's isort asks for.
        return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)

    renamed = sorted((n for n in names if " as " in n), key=order)
    kept = sorted((n for n in names if " as " not in n), key=order)
    groups = ([", ".join(kept)] if kept else []) + renamed
    return "\n".join(f"from {module} import {group}" for group in groups)


def import_statement(what: Imported, name: str) -> str:
    """The statement that binds `name` to what is imported."""
    if what.attribute is None:
        return f"import {_as(what.module, name)}"
    return f"from {what.module} import {_as(what.attribute, name)}"


def merged(statements: Iterable[str]) -> list[str]:
    """Imports in isort's order, those of plain members of one module in one statement."""
    members: dict[str, list[str]] = {}
    out = []
    for statement in statements:
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.ImportFrom) and node.names[0].asname is None:
            members.setdefault(node.module or "", []).append(node.names[0].name)
        else:
            out.append(statement)
    out += [f"from {module} import {', '.join(sorted(names))}" for module, names in members.items()]
    # isort puts a renamed member behind the others of its module.
    return sorted(out, key=lambda each: (order(ast.parse(each).body[0]), " as " in each))


def order(statement: ast.stmt) -> tuple[int, tuple[bool, str]]:
    """Section and place of an import, as isort orders them."""
    if isinstance(statement, ast.ImportFrom):
        module, plain = "." * statement.level + (statement.module or ""), False
    else:
        assert isinstance(statement, ast.Import)
        module, plain = statement.names[0].name, True
    return _section(module), (not plain, module.lower())


def _section(module: str) -> int:
    """Section of a module as isort orders them: future, standard library, third party, relative."""
    root = module.partition(".")[0]
    return 0 if root == "__future__" else 1 if root in sys.stdlib_module_names else 2 if root else 3
