"""Locate: from the text the user typed to one function in one file. Nothing is imported.

``FUNC`` is looked up in the whole project, ``FILE::FUNC`` in a file, ``package.module:FUNC`` in a module
below the folder, the project root or a source root such as ``src``. A name is never chosen among several.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import jax_pmap.sources as sources
from jax_pmap.locating.bindings import Bindings
from jax_pmap.locating.others import Others
from jax_pmap.locating.paths import exists, imported_as, made_by_us
from jax_pmap.locating.project import Candidate, File, Project
from jax_pmap.locating.words import FORMS, any_of, near_names, refuse
from jax_pmap.model import RefusalError, Request, Source, Span
from jax_pmap.notebook import is_notebook
from jax_pmap.syntax.definitions import (
    FUNCTION,
    Definition,
    binding_of,
    find,
    functions_in,
    last_binding,
    statements,
)

_DEFINED = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


def locate(
    target: str,
    directory: Path,
    instead: tuple[Path, str] | None = None,
    *,
    mapped: bool = False,
    hints: bool = True,
) -> Source:
    """Find the function that `target` names, as seen from `directory`.

    Args:
        target: as typed.
        directory: where relative paths start from.
        instead: a file, and the text it is taken to have in place of what is on the disk.
        mapped: whether a name of what `jax.pmap` or `shard_map` made of a function stands for that function.
        hints: whether a refusal says what else may be meant, for which the project is searched.

    Raises:
        RefusalError: JP001 no such file or module, JP002 no such function, JP003 several, JP004 not a
            function, JP005 the file does not parse.
    """
    return _Search(target.strip(), directory.absolute(), instead=instead, mapped=mapped, hints=hints).run()


def as_others_import(source: Source, request: Request) -> Source:
    """The source with the name by which other files of the project import its file.

    Whether a folder without ``__init__.py`` is a package shows only there, and under another name the file
    would be loaded twice: objects of the program would be of other classes than those it has here.

    The file of the inputs comes first, since it makes the objects.
    """
    project = Project(request.directory.absolute())
    file, double, _ = (request.inputs or "").partition("::")
    importer = Path(os.path.normpath(project.directory / Path(file).expanduser()))
    known = imported_as(source.path, importer, project.source_roots()) if double else None
    known = known or project.name_elsewhere(source)
    return source if known is None else dataclasses.replace(source, module=known[0], root=known[1])


def locate_object(target: str, directory: Path, *, hints: bool = True) -> Source:
    """Find what `target` names where it may be any object: a function, or a variable that holds one.

    Raises:
        RefusalError: as `locate` does.
    """
    return _Search(target.strip(), directory.absolute(), any_object=True, hints=hints).run()


def locate_class(target: str, directory: Path, *, hints: bool = True) -> Source:
    """Find the class that `target` names.

    Raises:
        RefusalError: as `locate` does.
    """
    return _Search(target.strip(), directory.absolute(), any_object=True, classes=True, hints=hints).run()


def object_span(source: Source) -> Span | None:
    """Where the object that `source` names is defined or bound."""
    if (local := local_object(source)) is not None:
        return local.span
    tree = sources.parse(source.text, source.shown_path)
    chain = find(tree, source.qualname)
    node = chain[-1] if chain else binding_of(tree.body, source.qualname.partition(".")[0])
    return Span(source.shown_path, node.lineno, node.col_offset) if node else None


@dataclass(frozen=True, slots=True)
class LocalObject:
    """The value of a local variable, or an attribute of it: there is one while its function runs."""

    #: The dotted name of the function.
    function: str
    #: The variable, with the attribute: ``"p_step"``, ``"trainer.p_step"``.
    expression: str
    #: The statement after which the variable has its last value.
    span: Span


def local_object(source: Source) -> LocalObject | None:
    """The local object that `source` names; None where importing the file makes it."""
    found = _local_binding(sources.parse(source.text, source.shown_path), source.qualname)
    if found is None:
        return None
    function, expression, statement = found
    return LocalObject(function, expression, Span(source.shown_path, statement.lineno, statement.col_offset))


def _local_binding(tree: ast.Module, qualname: str) -> tuple[str, str, ast.stmt] | None:
    """The function, the expression and the statement of a `LocalObject`.

    ``"main.trainer.p_step"`` is ``trainer.p_step`` after the statement of `main` that binds `trainer`; see
    `last_binding`.
    """
    parts = qualname.split(".")
    for number in range(len(parts) - 1, 0, -1):
        function = ".".join(parts[:number])
        around = find(tree, function)
        if around and any(isinstance(each, FUNCTION) for each in around):
            statement = last_binding(around[-1].body, parts[number])
            return (function, ".".join(parts[number:]), statement) if statement is not None else None
    return None


class _Search:
    """One look-up: what was typed, and the project it is looked up in."""

    def __init__(
        self,
        target: str,
        directory: Path,
        *,
        any_object: bool = False,
        classes: bool = False,
        instead: tuple[Path, str] | None = None,
        mapped: bool = False,
        hints: bool = True,
    ) -> None:
        self.target = target
        #: Whether a variable or an import will do, and whether a class.
        self.any_object, self.classes = any_object, classes
        self.project = Project(directory, instead, hints=hints)
        self.bindings = Bindings(self.project, mapped=mapped)
        self.others = Others(self.project, self.bindings)

    def run(self) -> Source:
        if "::" in self.target:
            file, _, name = self.target.partition("::")
            qualname = self._qualname(name, f"{file}::FUNC")
            return self._source(self._file(file, qualname), qualname)
        if ":" in self.target:
            module, _, name = self.target.rpartition(":")
            qualname = self._qualname(name, f"{module}:FUNC")
            path, root = self._module(module, qualname)
            return self._source(path, qualname, module, root)
        return self._bare()

    def _qualname(self, name: str, form: str) -> str:
        """The dotted name in the spelling that Python uses for identifiers."""
        qualname = unicodedata.normalize("NFKC", name.strip()).replace(".<locals>.", ".")
        if not all(part.isidentifier() for part in qualname.split(".")):
            what = f"`{name}` is not the name of a function." if name else "The target names no function."
            hint = f"Write {form}, where FUNC is a name such as `train_step` or `Trainer.step`."
            dotted = qualname.replace("::", ".")
            if all(part.isidentifier() for part in dotted.split(".")):
                hint = f"Write `{form.replace('FUNC', dotted)}`."
            refuse("JP002", what, hint)
        return qualname

    def _file(self, text: str, qualname: str) -> Path:
        """The file typed as `text`; one that is shown from the project root may be typed so anywhere."""
        if not text.strip():
            refuse("JP001", f"There is no file before `::` in `{self.target}`.", f"Write {FORMS}.")
        typed = os.path.expanduser(text)  # noqa: PTH111 (Path's raises for unknown users)
        tried = [
            Path(os.path.normpath(base / typed))
            for base in dict.fromkeys((self.project.directory, self.project.root))
        ]
        path = next((path for path in tried if exists(path)), None)
        if path is None:
            self._missing_file(text, tried[0], qualname)
        if path.is_dir():
            inside = self.project.listed(self.project.elsewhere(path, qualname))
            refuse(
                "JP001", f"`{text}` is a folder.", f"Name a file in it: {inside or f'`FILE::{qualname}`'}."
            )
        if path.suffix not in (".py", ".ipynb"):
            refuse("JP001", f"`{text}` is not a Python file.", "Name a file that ends in `.py` or `.ipynb`.")
        return path

    def _missing_file(self, text: str, path: Path, qualname: str) -> NoReturn:
        reason = f"There is no file `{text}`."
        if exists(with_suffix := Path(f"{path}.py")):
            refuse("JP001", reason, f"Did you mean `{self.project.typed(with_suffix, qualname)}`?")
        if near := self.project.near_files(text, generated=self.any_object):
            refuse(
                "JP001",
                reason,
                f"Did you mean {any_of(self.project.typed(path, qualname) for path in near)}?",
            )
        hint = f"Paths start from `{self.project.directory}`. Give the function's name alone to look for it."
        refuse("JP001", reason, hint)

    def _module(self, dotted: str, qualname: str) -> tuple[Path, Path]:
        """File of a module, and the folder its dotted name starts from."""
        if not all(part.isidentifier() for part in dotted.split(".")) or dotted.endswith(".py"):
            if dotted.endswith(".py") or "/" in dotted or "\\" in dotted:
                hint = f"A file is followed by two colons: `{dotted}::{qualname}`."
            else:
                hint = f"Write {FORMS}."
            refuse("JP001", f"`{dotted}` is not the dotted name of a module.", hint)
        found = self.project.module_files(dotted)
        if len(found) == 1:
            return found[0]
        if found:
            self.project.several(
                [self.project.candidate(path, qualname) for path, _ in found], f"module `{dotted}`"
            )
        for base in self.project.source_roots():
            if (base / Path(*dotted.split("."))).is_dir():
                refuse(
                    "JP001",
                    f"`{dotted}` is a folder without `__init__.py`, not a module.",
                    f"Name a module in it: `{dotted}.NAME:{qualname}`.",
                )
        names = sorted(
            {name for path in self.project.python_files() for name in self.project.dotted_names(path)}
        )
        near = difflib.get_close_matches(dotted, names, n=3, cutoff=0.6)
        hint = "Modules are looked for below this folder, the project root and its source folders, not among "
        hint += "installed packages; a file anywhere can be named as FILE::FUNC."
        if near:
            hint = f"Did you mean {any_of(f'{name}:{qualname}' for name in near)}?"
        refuse("JP001", f"There is no module `{dotted}` in the project.", hint)

    def _bare(self) -> Source:
        text = self.target
        if text.endswith((".py", ".ipynb")) or "/" in text or os.sep in text:
            path = self._file(text, "FUNC")
            names = list(functions_in(self.project.read(path).tree))
            self._no_function(f"`{text}` names a file, and no function in it.", path, names)
        qualname = self._qualname(text, "FUNC")
        try:
            found = self.project.candidates(self.project.root, qualname)
        except sources.TooManyFilesError:
            refuse(
                "JP002",
                f"`{qualname}` was not looked for: `{self.project.root}` has more than "
                f"{sources.MAX_ENTRIES:,} folders and Python files.",
                f"Name the file: `FILE::{qualname}`.",
            )
        exact = [c for c in found if c.qualname == qualname]
        # A dotted name is exact; a method or nested function may go by its last part where nothing else does.
        found = exact or found
        # A notebook repeats what a file defines more often than it is meant.
        found = [c for c in found if not is_notebook(c.path)] or found
        if len(found) > 1:
            self.project.several(found, f"function `{qualname}`")
        if found:
            path, qualname = found[0].path, found[0].qualname
            return self._source(path, qualname)
        if self.any_object:
            bound = self._assigned(qualname)
            if len(bound) > 1:
                self.project.several(bound, f"variable `{qualname}`")
            if bound:
                return self._source(bound[0].path, qualname)
        elif behind := self._behind(qualname):
            if len(behind) > 1:
                self.project.several(behind, f"variable `{qualname}`")
            return self._source(behind[0].path, qualname)
        self._not_found(qualname)

    def _behind(self, qualname: str) -> list[Candidate]:
        """Files of the project where an assignment of the name stands for a function."""
        found = []
        for path, parsed in self._assigning(qualname.rpartition(".")[2]):
            with contextlib.suppress(RefusalError):
                source = self.bindings.behind(parsed, qualname)
                if source is not None and source.binding is not None:
                    found.append(Candidate(path, qualname, source.binding.span.line))
        return found

    def _assigned(self, name: str) -> list[Candidate]:
        """Files of the project that assign `name` at their top."""
        found = []
        for path, parsed in self._assigning(name):
            statement = binding_of(parsed.tree.body, name)
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                found.append(Candidate(path, name, statement.lineno))
        return found

    def _assigning(self, name: str) -> Iterator[tuple[Path, File]]:
        """The files of the project, but for generated ones, that may assign `name`."""
        mentioned = re.compile(rb"\b" + re.escape(name.encode()) + rb"\s*[=:,]")
        for path in self.project.python_files():
            data = sources.read_bytes(path)
            if data is not None and mentioned.search(data) and not made_by_us(data):
                with contextlib.suppress(RefusalError):
                    yield path, self.project.parsed(path, data)

    def _not_found(self, qualname: str) -> NoReturn:
        """A bare name without a function: something else has it, or nothing does."""
        head, _, rest = qualname.rpartition(".")
        if head and (modules := self.project.module_files(head)):
            path, _ = modules[0]
            if find(self.project.read(path).tree, rest):
                refuse(
                    "JP002",
                    f"No file of the project defines `{qualname}`.",
                    f"A module is followed by a colon: `{head}:{rest}`.",
                )
        self._other_kind(qualname)
        if modules := self.project.module_files(qualname):
            path, _ = modules[0]
            functions = list(functions_in(self.project.read(path).tree))
            said = f"`{qualname}` is the file `{self.project.shown(path)}`, and names no function in it."
            self._no_function(said, path, functions)
        names: dict[str, Path] = {}
        for path in self.project.python_files():
            data = sources.read_bytes(path) or b""
            for match in _DEFINED.findall(data) if self.any_object or not made_by_us(data) else ():
                names.setdefault(match.decode(errors="replace"), path)
        last = qualname.rpartition(".")[2]
        close = [name for name in names if abs(len(name) - len(last)) <= 2 + len(last) // 2]
        near = difflib.get_close_matches(last, close, n=3, cutoff=0.6)
        hint = f"Name the file: `FILE::{qualname}`. The project is `{self.project.root}`."
        if near:
            typed = [self.project.typed(names[name], self._dotted_in(names[name], name)) for name in near]
            hint = f"Did you mean {any_of(typed)}?"
        refuse("JP002", f"No file of the project defines a function `{qualname}`.", hint)

    def _dotted_in(self, path: Path, name: str) -> str:
        """Full dotted name of a function in a file."""
        try:
            functions = functions_in(self.project.read(path).tree)
        except RefusalError:
            return name
        return min((q for q in functions if q.rpartition(".")[2] == name), key=len, default=name)

    def _other_kind(self, qualname: str) -> None:
        """Refuse with JP004 where the project has a class, a variable or an import of that name."""
        name = rf"\b{re.escape(qualname.rpartition('.')[2])}\b"
        imported = rf"\bimport\b(?:[^\n(]*|\s*\([^)]*){name}"
        mentioned = re.compile(rf"\bclass\s+{name}|{name}[^=\n]*=[^=]|{imported}".encode())
        imports: list[RefusalError] = []
        for path in self.project.python_files():
            data = sources.read_bytes(path)
            if data is None or not mentioned.search(data) or made_by_us(data):
                continue
            try:
                self.others.refuse(self.project.parsed(path, data), qualname)
            except RefusalError as error:
                if error.refusal.code == "JP004" and " imported " not in error.refusal.reason:
                    raise
                if error.refusal.code == "JP004":
                    imports.append(error)
        if imports:
            raise imports[0]

    def _source(self, path: Path, qualname: str, module: str = "", root: Path | None = None) -> Source:
        """The source of `qualname` in the file at `path`, whose `module` was typed as from `root`.

        A name that an assignment gives to one function stands for that function.
        """
        file = self.project.read(path)
        bound = binding_of(file.tree.body, qualname.partition(".")[0]) or _local_binding(file.tree, qualname)
        if self.any_object and bound is not None:
            return self._as_typed(self.project.source(file, qualname, self.target), module, root)
        try:
            if not self.any_object:
                self._check_one(file, qualname)
            chain = find(file.tree, qualname)
            if chain is None and not self.any_object:
                behind = self.bindings.behind(file, qualname)
                if behind is not None:
                    self._check_one(self.project.read(behind.path), behind.qualname)
                    same = behind.path == path
                    behind = dataclasses.replace(behind, target=self.target)
                    return self._as_typed(behind, module, root) if same else behind
            if chain is None or (isinstance(chain[-1], ast.ClassDef) and not self.classes):
                self.others.refuse(file, qualname)
                self._missing_function(file, qualname)
        except RecursionError:
            reason = f"`{self.project.shown(path)}` is nested too deeply."
            refuse(
                "JP005", reason, "Move the function to a file of its own.", Span(self.project.shown(path), 1)
            )
        return self._as_typed(self.project.source(file, qualname, self.target), module, root)

    def _check_one(self, file: File, qualname: str) -> None:
        """JP003 where which definition is live depends on a condition."""
        body: Sequence[ast.stmt] = file.tree.body
        for part in qualname.split("."):
            found: list[tuple[Definition, bool]] = []
            for statement, conditional in statements(body):
                if isinstance(statement, (*FUNCTION, ast.ClassDef)) and statement.name == part:
                    if not conditional:
                        found.clear()  # what comes later replaces what was before
                    found.append((statement, conditional))
            if not found:
                return
            if len(found) > 1:
                lines = ", ".join(str(node.lineno) for node, _ in found)
                refuse(
                    "JP003",
                    f"`{self.project.shown(file.path)}` defines `{part}` in lines {lines}, and which one "
                    "is live depends on a condition.",
                    "Give them different names, and name the one you mean.",
                    Span(self.project.shown(file.path), found[-1][0].lineno, found[-1][0].col_offset),
                )
            body = found[0][0].body

    def _missing_function(self, file: File, qualname: str) -> NoReturn:
        shown = self.project.shown(file.path)
        names = list(functions_in(file.tree))
        reason = f"`{shown}` defines no function `{qualname}`."
        if not file.source.text.strip():
            reason = f"`{shown}` is empty; there is no function `{qualname}` in it."
        hints: list[str] = []
        if inherited := self._inherited(file, qualname):
            hints.append(f"Its class has it from another: name {self.project.listed(inherited)}.")
        near = [] if inherited else near_names(qualname, names)
        if near:
            hints.append(f"Did you mean {any_of(self.project.typed(file.path, name) for name in near)}?")
        elsewhere = [c for c in self.project.elsewhere(self.project.root, qualname) if c.path != file.path]
        if elsewhere:
            hints.append(f"`{qualname}` is defined elsewhere: {self.project.listed(elsewhere)}.")
        if hints:
            refuse("JP002", reason, " ".join(hints))
        self._no_function(reason, file.path, names)

    def _inherited(self, file: File, qualname: str, below: tuple[str, ...] = ()) -> list[Candidate]:
        """The method of that name of the nearest class above: of this file, or those elsewhere."""
        owner, _, method = qualname.rpartition(".")
        chain = find(file.tree, owner) if owner else None
        bases = chain[-1].bases if chain and isinstance(chain[-1], ast.ClassDef) else []
        for base in (f"{ast.unparse(each).rpartition('.')[2]}.{method}" for each in bases):
            if own := find(file.tree, base):
                return [Candidate(file.path, base, own[-1].lineno)]
            # Where a class has the name of one that it extends, that one is another's.
            above = self._inherited(file, base, (*below, qualname)) if base not in (*below, qualname) else []
            if found := above or self.project.elsewhere(self.project.root, base):
                return found
        return []

    def _no_function(self, reason: str, path: Path, names: Sequence[str]) -> NoReturn:
        hint = "It defines no function; name another file."
        if names:
            hint = (
                f"Name one of its functions: {any_of(self.project.typed(path, name) for name in names[:8])}."
            )
        refuse("JP002", reason, hint)

    def _as_typed(self, source: Source, module: str, root: Path | None) -> Source:
        """`source` with the name its module was typed by, where that has folders without `__init__.py`."""
        if root is None or source.module.count(".") >= module.count("."):
            return source
        return dataclasses.replace(source, module=module, root=root)
