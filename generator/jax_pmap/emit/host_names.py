"""What the file that new code goes into names and imports, and where new imports go in it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Sequence

from jax_pmap.emit.adapted import Adapted
from jax_pmap.emit.imports import import_statement, order
from jax_pmap.emit.lines import Change, split
from jax_pmap.emit.names import ALIASES, OWN, Imported, Names, bindings
from jax_pmap.emit.render import Pieces
from jax_pmap.reading.target import Target
from jax_pmap.worker.scopes import Scope, every_scope


class HostNames:
    """The names in the file that is edited, and the imports at its top."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.parsed = target.parsed
        #: The statements among which imports stand.
        self.leading = self._leading()
        self.identifiers = _identifiers(target.parsed.tree)
        #: What every bound name stands for, in any scope.
        self.bound = _bound(target.parsed.scopes[target.parsed.tree])
        imported = {
            name: what
            for statement in self.leading
            if isinstance(statement, ast.Import | ast.ImportFrom)
            for name, what in bindings(ast.unparse(statement)).items()
        }
        #: What is imported at the top under names that mean nothing else anywhere: to the name.
        self.imported = {what: name for name, what in imported.items() if self.means_only(name, what)}

    def means_only(self, name: str, what: Imported) -> bool:
        """Whether a name stands for `what` or for nothing in every scope of the file."""
        return self.bound.get(name, {what}) == {what}

    def own(self, wanted: str) -> str:
        """A name that nothing in the file has."""
        while wanted in self.identifiers:
            wanted += "_"
        self.identifiers.add(wanted)
        return wanted

    def ours(self) -> Names:
        """Names of ours that are not in the file; modules by the names it gives them."""
        aliases = {}
        for alias, what in ALIASES.items():
            name = self.imported.get(what, alias)
            while not self.means_only(name, what):
                name += "_"
            aliases[alias] = name
        return Names(
            mapped=self.own(f"p_{self.target.facts.name}"),
            **{field: self.own(wanted) for field, wanted in OWN.items()},
            **aliases,
        )

    def with_ours(self, names: Names) -> dict[str, set[Imported]]:
        """What every bound name of the file, and each of ours, stands for."""
        ours = dataclasses.asdict(names).items()
        return self.bound | {name: {ALIASES.get(field, Imported("", name))} for field, name in ours}

    def _leading(self) -> list[ast.stmt]:
        """The top of the file down to the last import before its first definition, or the target."""
        leading: list[ast.stmt] = []
        tops, line = self.parsed.tree.body, self.parsed.definition.lineno
        for index, statement in enumerate(tops):
            if statement.lineno <= line <= (statement.end_lineno or 0):
                break
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                break
            holds = isinstance(statement, ast.Import | ast.ImportFrom) or (
                isinstance(statement, ast.Try | ast.If)
                and any(isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(statement))
                and not any(isinstance(each, ast.FunctionDef) for each in ast.walk(statement))
            )
            docstring = (
                not index and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            )
            if holds or docstring:
                leading = tops[: index + 1]
        return leading

    def changes(self, statements: Iterable[str]) -> list[Change]:
        """New imports, each where isort would put it among those that are there."""
        rows: dict[int, list[str]] = {}
        #: Of sections that the file has none of yet, ahead of its imports or behind them.
        ahead: dict[tuple[int, int], list[str]] = {}
        behind: dict[tuple[int, int], list[str]] = {}
        plain = [s for s in self.leading if isinstance(s, ast.Import | ast.ImportFrom)]
        plain = [s for s in plain if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")]
        start = _end(self.leading[0]) if self.leading else self._top()
        futures = [s for s in self.leading if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        if futures:
            start = _end(futures[-1])
        alone: list[str] = []
        for statement in statements:
            section, key = order(ast.parse(statement).body[0])
            same = [s for s in plain if order(s)[0] == section]
            later = [s for s in same if order(s)[1] > key]
            if later and self._starts_line(later[0]):
                rows.setdefault(later[0].lineno - 1, []).append(statement)
            elif same:
                rows.setdefault(_end(same[-1]), []).append(statement)
            elif plain and section < order(plain[0])[0]:
                ahead.setdefault((plain[0].lineno - 1, section), []).append(statement)
            elif plain:
                behind.setdefault((_end(plain[-1]), section), []).append(statement)
            else:
                alone.append(statement)
        for (at, _), found in reversed(ahead.items()):
            rows.setdefault(at, []).insert(0, "\n".join(found) + "\n")
        for (at, _), found in behind.items():
            rows.setdefault(at, []).append("\n" + "\n".join(found))
        changes = [Change(at, at, split("\n".join(lines))) for at, lines in rows.items()]
        if alone:
            gap = "\n" if start and self.leading else ""
            changes.append(Change(start, start, split(gap + "\n".join(alone))))
        return changes

    @property
    def behind(self) -> int:
        """The line behind the imports, counted from 0."""
        return max([self._top(), *(_end(each) for each in self.leading)])

    def _starts_line(self, statement: ast.stmt) -> bool:
        """Whether nothing stands before a statement in its line."""
        return not self.parsed.lines[statement.lineno - 1][: statement.col_offset].strip()

    def _top(self) -> int:
        """The line behind the comments that a file begins with (``#!``, the encoding, a licence)."""
        number = 0
        while number < len(self.parsed.lines) and self.parsed.lines[number].startswith("#"):
            number += 1
        return number

    def brought(self, adapted: Sequence[Adapted]) -> list[str]:
        """Import statements that functions of other files need in this one."""
        others = [other for other in adapted if other.source.path != self.target.source.path]
        every = [statement for other in others for statement in other.imports]
        return [statement for statement in every if not self._imports(statement)]

    def used(self, pieces: Pieces, names: Names) -> list[str]:
        """Import statements of the modules that the new code uses, by the names that it has for them."""
        return [import_statement(ALIASES[alias], getattr(names, alias)) for alias in sorted(pieces.needed)]

    def missing(self, pieces: Pieces, names: Names) -> list[str]:
        """Import statements of what the new code uses and the file does not import yet."""
        out = {each for each in self.used(pieces, names) if not self._imports(each)}
        own = {self.target.source.module, f"{self.target.source.module}_", "__main__"}
        for module, name in pieces.types:
            if module not in own and name not in self.bound:
                out.add(import_statement(Imported(module, name), name))
        return sorted(out)

    def _imports(self, statement: str) -> bool:
        """Whether the file imports all that a statement does, by the same names."""
        return all(self.imported.get(what) == name for name, what in bindings(statement).items())


def _end(statement: ast.stmt) -> int:
    """The line behind a statement, counted from 0."""
    return statement.end_lineno or statement.lineno


def _identifiers(tree: ast.AST) -> set[str]:
    """Every name in a file, whatever it stands for."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in ("id", "name", "arg", "asname", "attr", "rest"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found |= set(value.split("."))
        if isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
    return found


def _bound(top: Scope) -> dict[str, set[Imported]]:
    """What every bound name of a file stands for, in any scope; of no module where it is not imported."""
    found: dict[str, set[Imported]] = {}
    for name, several in (row for scope in every_scope(top) for row in scope.bindings.items()):
        # One that is declared, and has no value, is a name of its scope as well.
        imported = [each.qualname if each.kind == "import" else "" for each in several] or [""]
        found.setdefault(name, set()).update(
            Imported(each) if each else Imported("", name) for each in imported
        )
    return found
