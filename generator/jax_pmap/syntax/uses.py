"""What a function is made of: itself, and everything of the user's own that it reaches by name.

Functions, classes and constants count, in its file and in those it imports from, and statements that change
them or set jax up. Each has a digest of what it says: layout, comments, docstrings and what an import is
called do not matter, and every Python gives the same. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax_pmap.sources as sources
from jax_pmap.model import RefusalError, Source
from jax_pmap.syntax.definitions import DEFINITIONS, binding_of, find
from jax_pmap.syntax.imports import Import
from jax_pmap.syntax.parse import ParsedSource, parse_file
from jax_pmap.syntax.resolve import Resolver
from jax_pmap.syntax.slice import Module
from jax_pmap.worker.scopes import used_names

#: Hex digits of the digest of a target, and of each thing that it uses.
DIGITS, SHORT = 16, 6
#: Fields of a syntax tree that say nothing of what runs.
_SILENT = frozenset({"ctx", "kind", "type_comment"})


@dataclass(frozen=True, slots=True)
class Use:
    """One statement that a function reaches."""

    #: Path as shown to people.
    file: str
    line: int
    #: What it binds: ``"mse"``, ``"scale, shift"``; its text where it binds nothing.
    name: str
    #: Of its text, in `SHORT` hex digits.
    digest: str

    def __str__(self) -> str:
        """``"`mse` (losses.py:12)"``."""
        return f"`{self.name}` ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class MadeOf:
    """A function, and what it reaches."""

    #: Of its own definition, decorators included, in `DIGITS` hex digits.
    digest: str
    #: In the order of files and lines.
    uses: tuple[Use, ...]


def made_of(parsed: ParsedSource) -> MadeOf:
    """The digests of the target in a parsed file, and of all that it reaches."""
    source = parsed.source
    own: list[ast.AST] = [parsed.definition]
    if source.forwards:  # The text has a function in the place of what the file has.
        text = source.file_text.removeprefix("\ufeff")
        tree = sources.parse(text, source.shown_path)
        parsed = ParsedSource(dataclasses.replace(source, text=text), tree, parsed.definition)
        chain = find(tree, source.qualname)
        bound = chain[-1] if chain else binding_of(tree.body, source.qualname)
        own = [bound] if bound is not None else []
    reached = _Reached(parsed, own)
    reached.follow()
    found = sorted(reached.uses.values(), key=lambda use: (use.file, use.line))
    return MadeOf(_digest(own, parsed, DIGITS), tuple(found))


class _Reached:
    """The statements that a function reaches, file by file."""

    def __init__(self, target: ParsedSource, own: list[ast.AST]) -> None:
        source = target.source
        self.own = own
        self.uses: dict[ast.AST, Use] = {}
        above = source.path.parent
        for _ in Path(source.shown_path).parts[1:]:
            above = above.parent
        #: Folders that dotted names of modules start from.
        self.roots = tuple(dict.fromkeys((source.root, above, above / "src")))
        self.modules: dict[Path, Module | None] = {source.path: Module(target, _in_one_scope(target))}
        binding = source.binding
        made = binding.qualname.partition(".")[0] if binding else ""
        #: Names that are needed of each file.
        self.needed = {
            source.path: used_names(own)
            | {each.name for each in target.enclosing}
            | ({made} if made and binding and not binding.file else set())
        }
        if binding and binding.file and (path := self._file(binding.file.module, target)):
            self.needed[path].add(made)
        for each in own:
            self._follow(each, target)
        for around in target.enclosing:
            if not isinstance(around, ast.ClassDef):
                self._add(around, [around.args, *around.decorator_list], around.name, target)

    def follow(self) -> None:
        """Read on until nothing new is reached."""
        before = -1
        while before < (before := sum(len(names) for names in self.needed.values())):
            for path in list(self.needed):
                module = self.modules[path]
                if module is not None:
                    self._read(module, frozenset(self.needed[path]))

    def _read(self, module: Module, names: frozenset[str]) -> None:
        for unit in module.reached(names):
            if isinstance(unit.node, ast.ImportFrom) and "*" in unit.binds:
                for row in module.parsed.imports:
                    if row.name == "*" and (path := self._file(row.qualified, module.parsed)):
                        self.needed[path] |= names - module.bound
            if isinstance(unit.node, Import) or unit.node in self.own or unit.node in self.uses:
                continue
            name = ", ".join(sorted(unit.binds)) or ast.unparse(unit.node).partition("\n")[0]
            self._add(unit.node, [unit.node], name, module.parsed)
            self._follow(unit.node, module.parsed)

    def _add(self, node: ast.stmt, parts: list[ast.AST], name: str, parsed: ParsedSource) -> None:
        text = _digest(parts, parsed, SHORT, self.own)
        self.uses[node] = Use(parsed.source.shown_path, node.lineno, name, text)

    def _follow(self, node: ast.AST, parsed: ParsedSource) -> None:
        """Note what a statement needs of other files."""
        for written in _chains(node):
            for dotted in parsed.names(written):
                parts = dotted.split(".")
                for count in range(len(parts), 0, -1):
                    if path := self._file(".".join(parts[:count]), parsed):
                        module = self.modules[path]
                        every = module.bound if module else set()
                        self.needed[path] |= set(parts[count : count + 1]) or every
                        break

    def _file(self, dotted: str, parsed: ParsedSource) -> Path | None:
        """The user's file that is a module of this name, looked into from now on."""
        roots = (*self.roots, parsed.source.path.parent)
        path = sources.module_among(roots, dotted)
        if path is None:
            return None
        if path not in self.modules:
            self.modules[path] = self._module(path, dotted, parsed.source)
            self.needed[path] = set()
        return path

    def _module(self, path: Path, dotted: str, source: Source) -> Module | None:
        """What stands in another file; None of one that cannot be read."""
        data = sources.read_bytes(path)
        shown = source.shown(path)
        if data is None:
            return None
        try:
            text = sources.decode(data, shown).text.removeprefix("\ufeff")
            return Module(parse_file(Source("", path, shown, dotted, source.root, "", text)))
        except RefusalError:
            return None


def _in_one_scope(target: ParsedSource) -> list[ast.stmt]:
    """The statements that a target sees: those of the functions around it, in place of these, too."""
    body = list(target.tree.body)
    for around in target.enclosing:
        if not isinstance(around, ast.ClassDef):
            body = [*(each for each in body if each is not around), *around.body]
    return body


def _chains(node: ast.AST) -> Iterator[ast.AST]:
    """Every name, with the attributes that are read of it."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield from [each] if isinstance(each, ast.Name | ast.Attribute) else []
        if not (isinstance(each, ast.Attribute) and _is_dotted(each)):
            pending += ast.iter_child_nodes(each)


def _is_dotted(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _digest(nodes: Sequence[ast.AST], names: Resolver, digits: int, without: Sequence[ast.AST] = ()) -> str:
    """The first hex digits of the SHA-256 of what nodes say, those `without` left out."""
    total = hashlib.sha256()
    pending: list[object] = list(reversed(nodes))
    while pending:
        each = pending.pop()
        found = names.names(each) if isinstance(each, ast.Name | ast.Attribute) else frozenset()
        if found:
            total.update(" ".join(sorted(found)).encode())
        elif isinstance(each, ast.AST):
            if each not in without:
                total.update(type(each).__name__.encode())
                pending += [*_parts(each)][::-1]
        else:
            total.update(ascii(each).encode())
        total.update(b"\0")
    return total.hexdigest()[:digits]


def _parts(node: ast.AST) -> Iterator[object]:
    """The fields of a node that are there, each behind its name and length."""
    for name in node._fields:
        value = getattr(node, name, None)
        if name in _SILENT or value is None or value == []:
            continue
        rows = value if isinstance(value, list) else [value]
        if (
            name == "body"
            and isinstance(node, DEFINITIONS)
            and ast.get_docstring(node, clean=False) is not None
        ):
            rows = rows[1:]
        yield name, len(rows)
        yield from rows
