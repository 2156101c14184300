"""Locate: from the text the user typed to one function in one file. Nothing is imported.

``FUNC`` is looked up in the whole project, ``FILE::FUNC`` in a file, ``package.module:FUNC`` in a module
below the folder, the project root or a source root such as ``src``. A name is never chosen among several.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from jax_pmap import sources
from jax_pmap.config import is_project_root, project_root
from jax_pmap.files import MARK, is_generated
from jax_pmap.model import Refusal, RefusalError, Source, Span
from jax_pmap.notebook import is_notebook
from jax_pmap.reading.definition import Definition, find, statements

_Import: TypeAlias = ast.Import | ast.ImportFrom

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_FORMS = "FUNC, FILE::FUNC or package.module:FUNC"
#: Calls that give their first argument back, to be called the same way.
_WRAPPERS = frozenset({"jit", "pjit", "pmap", "filter_jit", "filter_pmap", "partial", "checkpoint", "remat"})
#: Names of candidates and neighbours that a message shows.
_SHOWN = 20
_DEFINED = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


def locate(target: str, directory: Path) -> Source:
    """Find the function that `target` names, as seen from `directory`.

    Raises:
        RefusalError: JP001 no such file or module, JP002 no such function, JP003 several, JP004 not a
            function, JP005 the file does not parse.
    """
    return _Search(target.strip(), directory.absolute()).run()


def locate_object(target: str, directory: Path) -> Source:
    """Find what `target` names where it may be any object: a function, or a variable that holds one.

    Raises:
        RefusalError: as `locate` does.
    """
    return _Search(target.strip(), directory.absolute(), any_object=True).run()


def object_span(source: Source) -> Span | None:
    """Where the object that `source` names is defined or bound."""
    tree = sources.parse(source.text, source.shown_path)
    chain = find(tree, source.qualname)
    node = chain[-1] if chain else _binding(tree.body, source.qualname.partition(".")[0])
    return Span(source.shown_path, node.lineno, node.col_offset) if node else None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A function that a bare name may mean."""

    path: Path
    qualname: str
    line: int


@dataclass(frozen=True, slots=True)
class _File:
    """A file that was read and parsed."""

    path: Path
    source: sources.SourceText
    tree: ast.Module


class _Search:
    """One look-up: what was typed, and the project it is looked up in."""

    def __init__(self, target: str, directory: Path, *, any_object: bool = False) -> None:
        self.target = target
        self.directory = directory
        #: Whether a variable, a class or an import will do.
        self.any_object = any_object
        self.root = project_root(directory)

    def run(self) -> Source:
        if "::" in self.target:
            file, _, name = self.target.partition("::")
            qualname = self._qualname(name, f"{file}::FUNC")
            return self._source(self._function(self._file(file, qualname), qualname), qualname)
        if ":" in self.target:
            module, _, name = self.target.rpartition(":")
            qualname = self._qualname(name, f"{module}:FUNC")
            path, root = self._module(module, qualname)
            return self._source(self._function(path, qualname), qualname, module, root)
        return self._bare()

    # --- what is typed and shown ----------------------------------------------------------

    def _qualname(self, name: str, form: str) -> str:
        """The dotted name in the spelling that Python uses for identifiers."""
        qualname = unicodedata.normalize("NFKC", name.strip()).replace(".<locals>.", ".")
        if not all(part.isidentifier() for part in qualname.split(".")):
            what = f"`{name}` is not the name of a function." if name else "The target names no function."
            hint = f"Write {form}, where FUNC is a name such as `train_step` or `Trainer.step`."
            dotted = qualname.replace("::", ".")
            if all(part.isidentifier() for part in dotted.split(".")):
                hint = f"Write `{form.replace('FUNC', dotted)}`."
            _refuse("JP002", what, hint)
        return qualname

    def _shown(self, path: Path) -> str:
        """Path as reports and headers show it: from the project root, also for a file outside it."""
        return _relative(path, self.root)

    def _typed(self, path: Path, qualname: str = "") -> str:
        """Path, or target, in the form to type in the folder the user is in."""
        text = _relative(path, self.directory)
        return shlex.quote(f"{text}::{qualname}" if qualname else text)

    # --- FILE::FUNC -----------------------------------------------------------------------

    def _file(self, text: str, qualname: str) -> Path:
        """The file typed as `text`; one that is shown from the project root may be typed so anywhere."""
        if not text.strip():
            _refuse("JP001", f"There is no file before `::` in `{self.target}`.", f"Write {_FORMS}.")
        typed = os.path.expanduser(text)  # noqa: PTH111 (Path's raises for unknown users)
        tried = [Path(os.path.normpath(base / typed)) for base in dict.fromkeys((self.directory, self.root))]
        path = next((path for path in tried if _exists(path)), None)
        if path is None:
            self._missing_file(text, tried[0], qualname)
        if path.is_dir():
            inside = self._list(self._elsewhere(path, qualname))
            _refuse(
                "JP001", f"`{text}` is a folder.", f"Name a file in it: {inside or f'`FILE::{qualname}`'}."
            )
        if path.suffix not in (".py", ".ipynb"):
            _refuse("JP001", f"`{text}` is not a Python file.", "Name a file that ends in `.py` or `.ipynb`.")
        return path

    def _missing_file(self, text: str, path: Path, qualname: str) -> NoReturn:
        reason = f"There is no file `{text}`."
        if _exists(with_suffix := Path(f"{path}.py")):
            _refuse("JP001", reason, f"Did you mean `{self._typed(with_suffix, qualname)}`?")
        if near := self._near_files(text):
            _refuse("JP001", reason, f"Did you mean {_or(self._typed(path, qualname) for path in near)}?")
        hint = f"Paths start from `{self.directory}`. Give the function's name alone to look for it."
        _refuse("JP001", reason, hint)

    def _near_files(self, text: str) -> list[Path]:
        paths = {_relative(path, self.directory): path for path in self._python_files()}
        wanted = Path(text).as_posix()
        name = Path(text).name
        same = [typed for typed in paths if Path(typed).name == name]
        near = difflib.get_close_matches(wanted, paths, n=3, cutoff=0.75)
        by_name = difflib.get_close_matches(name, {Path(typed).name for typed in paths}, n=3, cutoff=0.7)
        similar = [typed for near_name in by_name for typed in paths if Path(typed).name == near_name]
        return [paths[typed] for typed in dict.fromkeys([*same, *near, *similar])][:3]

    # --- package.module:FUNC --------------------------------------------------------------

    def _module(self, dotted: str, qualname: str) -> tuple[Path, Path]:
        """File of a module, and the folder its dotted name starts from."""
        if not all(part.isidentifier() for part in dotted.split(".")) or dotted.endswith(".py"):
            if dotted.endswith(".py") or "/" in dotted or "\\" in dotted:
                hint = f"A file is followed by two colons: `{dotted}::{qualname}`."
            else:
                hint = f"Write {_FORMS}."
            _refuse("JP001", f"`{dotted}` is not the dotted name of a module.", hint)
        found = self._module_files(dotted)
        if len(found) == 1:
            return found[0]
        if found:
            self._several([self._candidate(path, qualname) for path, _ in found], f"module `{dotted}`")
        for base in self._source_roots():
            if (base / Path(*dotted.split("."))).is_dir():
                _refuse(
                    "JP001",
                    f"`{dotted}` is a folder without `__init__.py`, not a module.",
                    f"Name a module in it: `{dotted}.NAME:{qualname}`.",
                )
        names = sorted({name for path in self._python_files() for name in self._dotted_names(path)})
        near = difflib.get_close_matches(dotted, names, n=3, cutoff=0.6)
        hint = "Modules are looked for below this folder, the project root and its source folders, not among "
        hint += "installed packages; a file anywhere can be named as FILE::FUNC."
        if near:
            hint = f"Did you mean {_or(f'{name}:{qualname}' for name in near)}?"
        _refuse("JP001", f"There is no module `{dotted}` in the project.", hint)

    def _module_files(self, dotted: str) -> list[tuple[Path, Path]]:
        """(file, root) of a module: the first in import order, or all in other folders of the project."""
        for base in self._source_roots():
            if path := _module_in(base, dotted):
                return [(path, base)]
        found = [(path, base) for base in self._other_roots() if (path := _module_in(base, dotted))]
        return list({os.path.realpath(path): (path, base) for path, base in found}.values())

    def _source_roots(self) -> list[Path]:
        places = (self.directory, self.directory / "src", self.root, self.root / "src")
        return [place for place in dict.fromkeys(places) if place.is_dir()]

    def _other_roots(self) -> list[Path]:
        """Any folder right below the project root may be a source root (``lib``, ``python`` …)."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        except OSError:
            return []
        return [self.root / name for name in names if name not in sources.SKIPPED and name.isidentifier()]

    def _dotted_names(self, path: Path) -> Iterator[str]:
        for base in self._source_roots():
            if path.is_relative_to(base):
                parts = path.relative_to(base).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    # --- FUNC -----------------------------------------------------------------------------

    def _bare(self) -> Source:
        text = self.target
        if text.endswith((".py", ".ipynb")) or "/" in text or os.sep in text:
            path = self._file(text, "FUNC")
            names = list(_functions(self._read(path).tree))
            self._no_function(f"`{text}` names a file, and no function in it.", path, names)
        qualname = self._qualname(text, "FUNC")
        try:
            found = self._candidates(self.root, qualname)
        except sources.TooManyFilesError:
            _refuse(
                "JP002",
                f"`{qualname}` was not looked for: `{self.root}` has over {sources.MAX_ENTRIES:,} files.",
                f"Name the file: `FILE::{qualname}`.",
            )
        exact = [c for c in found if c.qualname == qualname]
        # A dotted name is exact; a method or nested function may go by its last part where nothing else does.
        found = exact or found
        # A notebook repeats what a file defines more often than it is meant.
        found = [c for c in found if not is_notebook(c.path)] or found
        if len(found) > 1:
            self._several(found, f"function `{qualname}`")
        if found:
            path, qualname = found[0].path, found[0].qualname
            return self._source(self._function(path, qualname), qualname)
        if self.any_object:
            bound = self._assigned(qualname)
            if len(bound) > 1:
                self._several(bound, f"variable `{qualname}`")
            if bound:
                return self._source(self._read(bound[0].path), qualname)
        self._not_found(qualname)

    def _assigned(self, name: str) -> list[_Candidate]:
        """Files of the project that assign `name` at their top."""
        found = []
        mentioned = re.compile(rb"\b" + re.escape(name.encode()) + rb"\s*[=:,]")
        for path in self._python_files():
            data = sources.read_bytes(path)
            if data is None or not mentioned.search(data) or _made_by_us(data):
                continue
            with contextlib.suppress(RefusalError):
                statement = _binding(self._parsed(path, data).tree.body, name)
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    found.append(_Candidate(path, name, statement.lineno))
        return found

    def _candidates(self, folder: Path, qualname: str) -> list[_Candidate]:
        """Functions below `folder` that `qualname` names, alone or as the end of a dotted name."""
        found: dict[str, _Candidate] = {}
        broken: list[RefusalError] = []
        name = qualname.rpartition(".")[2]
        # Most files do not hold the name; parsing costs a hundred times what this search does.
        name_bytes = re.escape(name.encode()) + rb"\b" if name.isascii() else b""  # else the encoding decides
        defined = re.compile(rb"\bdef[\s\\]+" + name_bytes)
        for path in sources.python_files(folder):
            data = sources.read_bytes(path)
            if data is None or not defined.search(data) or _made_by_us(data):
                continue
            try:
                tree = self._parsed(path, data).tree
                functions = _functions(tree)
            except RefusalError as error:
                broken.append(error)
                continue
            real = os.path.realpath(path)
            for dotted, line in functions.items():
                if dotted == qualname or dotted.endswith(f".{qualname}"):
                    found.setdefault(f"{real}::{dotted}", _Candidate(path, dotted, line))
        if broken and not found:
            raise broken[0]
        return list(found.values())

    def _elsewhere(self, folder: Path, qualname: str) -> list[_Candidate]:
        """Candidates for a hint, where a folder too large to search has none."""
        try:
            return self._candidates(folder, qualname)
        except (RefusalError, sources.TooManyFilesError):
            return []

    def _python_files(self) -> Iterator[Path]:
        """Files of the project for a hint: as many as there is time for."""
        with contextlib.suppress(sources.TooManyFilesError):
            yield from sources.python_files(self.root)

    def _several(self, found: Sequence[_Candidate], what: str) -> NoReturn:
        lines = [f"{self._typed(c.path, c.qualname)}  (line {c.line})" for c in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN} more")
        _refuse(
            "JP003",
            f"The project has {len(found)} places for the {what}.",
            f"Say which one, for instance `{self._typed(found[0].path, found[0].qualname)}`.",
            details=("\n".join(lines),),
        )

    def _candidate(self, path: Path, qualname: str) -> _Candidate:
        chain = find(self._read(path).tree, qualname)
        return _Candidate(path, qualname, chain[-1].lineno if chain else 1)

    def _not_found(self, qualname: str) -> NoReturn:
        """A bare name without a function: something else has it, or nothing does."""
        head, _, rest = qualname.rpartition(".")
        if head and (modules := self._module_files(head)):
            path, _ = modules[0]
            if find(self._read(path).tree, rest):
                _refuse(
                    "JP002",
                    f"No file of the project defines `{qualname}`.",
                    f"A module is followed by a colon: `{head}:{rest}`.",
                )
        self._other_kind(qualname)
        names: dict[str, Path] = {}
        for path in self._python_files():
            for match in _DEFINED.findall(sources.read_bytes(path) or b""):
                names.setdefault(match.decode(errors="replace"), path)
        last = qualname.rpartition(".")[2]
        close = [name for name in names if abs(len(name) - len(last)) <= 2 + len(last) // 2]
        near = difflib.get_close_matches(last, close, n=3, cutoff=0.6)
        hint = f"Name the file: `FILE::{qualname}`. The project is `{self.root}`."
        if near:
            typed = [self._typed(names[name], self._dotted_in(names[name], name)) for name in near]
            hint = f"Did you mean {_or(typed)}?"
        _refuse("JP002", f"No file of the project defines a function `{qualname}`.", hint)

    def _dotted_in(self, path: Path, name: str) -> str:
        """Full dotted name of a function in a file."""
        try:
            functions = _functions(self._read(path).tree)
        except RefusalError:
            return name
        return min((q for q in functions if q.rpartition(".")[2] == name), key=len, default=name)

    def _other_kind(self, qualname: str) -> None:
        """Refuse with JP004 where the project has a class, a variable or an import of that name."""
        name = rf"\b{re.escape(qualname.rpartition('.')[2])}\b"
        imported = rf"\bimport\b(?:[^\n(]*|\s*\([^)]*){name}"
        mentioned = re.compile(rf"\bclass\s+{name}|{name}[^=\n]*=[^=]|{imported}".encode())
        imports: list[RefusalError] = []
        for path in self._python_files():
            data = sources.read_bytes(path)
            if data is None or not mentioned.search(data) or _made_by_us(data):
                continue
            try:
                self._refuse_other_kind(self._parsed(path, data), qualname)
            except RefusalError as error:
                if error.refusal.code == "JP004" and " imported " not in error.refusal.reason:
                    raise
                if error.refusal.code == "JP004":
                    imports.append(error)
        if imports:
            raise imports[0]

    # --- one file -------------------------------------------------------------------------

    def _read(self, path: Path) -> _File:
        data = sources.read_bytes(path)
        if data is None:
            self._refuse_unreadable(path)
        return self._parsed(path, data)

    def _refuse_unreadable(self, path: Path) -> NoReturn:
        shown = self._shown(path)
        try:
            if not path.is_file():
                _refuse("JP001", f"`{shown}` is not a regular file.", "Name a file that ends in `.py`.")
            if path.stat().st_size > sources.MAX_SIZE:
                _refuse(
                    "JP001",
                    f"`{shown}` has more than {sources.MAX_SIZE >> 20} MiB, too much to parse.",
                    "Move the function to a file of its own.",
                )
            path.read_bytes()
            if is_notebook(path):
                _refuse("JP005", f"`{shown}` is not the JSON of a notebook.", "Save it again in Jupyter.")
        except OSError as error:
            what = error.strerror or error
            _refuse("JP001", f"`{shown}` cannot be read: {what}.", "Check its permissions.")
        _refuse("JP001", f"`{shown}` changed while it was read.", "Try again.")

    def _parsed(self, path: Path, data: bytes) -> _File:
        shown = self._shown(path)
        source = sources.decode(data, shown)
        return _File(path, source, sources.parse(source.text, shown))

    def _function(self, path: Path, qualname: str) -> _File:
        """The parsed file, after making sure that `qualname` is one function in it."""
        file = self._read(path)
        if self.any_object and _binding(file.tree.body, qualname.partition(".")[0]) is not None:
            return file
        try:
            if not self.any_object:
                self._check_one(file, qualname)
            chain = find(file.tree, qualname)
            if chain is None or isinstance(chain[-1], ast.ClassDef):
                self._refuse_other_kind(file, qualname)
                self._missing_function(file, qualname)
        except RecursionError:
            reason = f"`{self._shown(path)}` is nested too deeply."
            _refuse("JP005", reason, "Move the function to a file of its own.", Span(self._shown(path), 1))
        return file

    def _check_one(self, file: _File, qualname: str) -> None:
        """JP003 where which definition is live depends on a condition."""
        body: Sequence[ast.stmt] = file.tree.body
        for part in qualname.split("."):
            found: list[tuple[Definition, bool]] = []
            for statement, conditional in statements(body):
                if isinstance(statement, (*_FUNCTION, ast.ClassDef)) and statement.name == part:
                    if not conditional:
                        found.clear()  # what comes later replaces what was before
                    found.append((statement, conditional))
            if not found:
                return
            if len(found) > 1:
                lines = ", ".join(str(node.lineno) for node, _ in found)
                _refuse(
                    "JP003",
                    f"`{self._shown(file.path)}` defines `{part}` in lines {lines}, and which one is live "
                    "depends on a condition.",
                    "Give them different names, and name the one you mean.",
                    Span(self._shown(file.path), found[-1][0].lineno, found[-1][0].col_offset),
                )
            body = found[0][0].body

    def _missing_function(self, file: _File, qualname: str) -> NoReturn:
        shown = self._shown(file.path)
        names = list(_functions(file.tree))
        reason = f"`{shown}` defines no function `{qualname}`."
        if not file.source.text.strip():
            reason = f"`{shown}` is empty; there is no function `{qualname}` in it."
        hints: list[str] = []
        near = _near_names(qualname, names)
        if near:
            hints.append(f"Did you mean {_or(self._typed(file.path, name) for name in near)}?")
        elsewhere = [c for c in self._elsewhere(self.root, qualname) if c.path != file.path]
        if elsewhere:
            hints.append(f"`{qualname}` is defined elsewhere: {self._list(elsewhere)}.")
        if hints:
            _refuse("JP002", reason, " ".join(hints))
        self._no_function(reason, file.path, names)

    def _no_function(self, reason: str, path: Path, names: Sequence[str]) -> NoReturn:
        hint = "It defines no function; name another file."
        if names:
            hint = f"Name one of its functions: {_or(self._typed(path, name) for name in names[:8])}."
        _refuse("JP002", reason, hint)

    def _list(self, found: Sequence[_Candidate]) -> str:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(f"`{self._typed(c.path, c.qualname)}`" for c in found[:3]) + more

    # --- JP004: a class, a variable, an import --------------------------------------------

    def _refuse_other_kind(self, file: _File, qualname: str) -> None:
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
        bound = _binding(scope[-1].body if scope else file.tree.body, name)
        if bound is None:
            return
        span = Span(self._shown(file.path), bound.lineno, bound.col_offset)
        if isinstance(bound, ast.Import | ast.ImportFrom):
            self._refuse_import(file, bound, name, span)
        value = getattr(bound, "value", None)
        if value is None or not isinstance(bound, ast.Assign | ast.AnnAssign):
            hint = "Name a function that is written as `def`."
            _refuse("JP004", f"`{qualname}` is a variable.", hint, span)
        if isinstance(value, ast.Lambda):
            _refuse(
                "JP004",
                f"`{qualname}` is a lambda.",
                f"Write it as `def {name}({ast.unparse(value.args)}): return ...` and name that.",
                span,
            )
        text = _clip(ast.unparse(value))
        wrapped = self._wrapped(file, value)
        hint = f"Write a function that calls it, `def run(...): return {name}(...)`, and name that."
        if wrapped:
            hint = f"Name the function it stands for: `{wrapped}`."
        _refuse("JP004", f"`{qualname}` is a variable, assigned `{text}`.", hint, span)

    def _refuse_class(self, file: _File, qualname: str, node: ast.ClassDef) -> NoReturn:
        methods = [
            name
            for name in _functions(ast.Module(node.body, []))
            if "." not in name and (name == "__call__" or not name.startswith("__"))
        ]
        hint = "It has no methods of its own; name a function."
        if methods:
            listed = _or(self._typed(file.path, f"{qualname}.{name}") for name in methods[:8])
            hint = f"Name one of its methods: {listed}."
        span = Span(self._shown(file.path), node.lineno, node.col_offset)
        _refuse("JP004", f"`{qualname}` is a class.", hint, span)

    def _refuse_import(self, file: _File, node: _Import, name: str, span: Span) -> NoReturn:
        module = "." * getattr(node, "level", 0) + (getattr(node, "module", None) or "")
        if isinstance(node, ast.Import):
            _refuse(
                "JP004",
                f"`{name}` is a module, imported by `{ast.unparse(node)}`.",
                "Name a function in it: `package.module:FUNC`.",
                span,
            )
        found = self._follow(file.path, node, name)
        _refuse(
            "JP004",
            f"`{name}` is imported from `{module}`; `{self._shown(file.path)}` does not define it.",
            f"Name it where it is defined: `{found}`."
            if found
            else f"It is not defined in the project: write a function that calls `{name}`, and name that.",
            span,
        )

    def _wrapped(self, file: _File, value: ast.expr, hops: int = 8) -> str | None:
        """Target to type for the function that `jax.jit(f)`, `partial(f, ...)` or `f` itself stands for."""
        if hops == 0:
            return None
        if isinstance(value, ast.Call):
            # partial(jax.jit, ...)(f): the function is what the inner call is called with.
            called = value.func.func if isinstance(value.func, ast.Call) else value.func
            known = getattr(called, "attr", getattr(called, "id", None)) in _WRAPPERS
            return self._wrapped(file, value.args[0], hops - 1) if known and value.args else None
        if not isinstance(value, ast.Name | ast.Attribute):
            return None
        dotted = ast.unparse(value)
        chain = find(file.tree, dotted)
        if chain:
            return self._typed(file.path, dotted) if isinstance(chain[-1], _FUNCTION) else None
        head, _, rest = dotted.partition(".")
        bound = _binding(file.tree.body, head)
        if isinstance(bound, ast.Import | ast.ImportFrom):
            return self._follow(file.path, bound, head, rest)
        again = getattr(bound, "value", None)
        return self._wrapped(file, again, hops - 1) if again is not None and not rest else None

    def _follow(self, path: Path, node: _Import, name: str, rest: str = "", hops: int = 8) -> str | None:
        """Target to type for the function that an imported name, with `rest` behind it, leads to."""
        alias = next(a for a in node.names if _bound_name(a, node) == name)
        if isinstance(node, ast.Import):
            dotted = alias.name if alias.asname else f"{name}.{rest.rpartition('.')[0]}".rstrip(".")
            tries = [(dotted, rest.rpartition(".")[2] if not alias.asname else rest)]
        else:
            inner = f"{alias.name}.{rest}".rstrip(".")
            module = node.module or ""
            tries = [(module, inner), (f"{module}.{alias.name}".lstrip("."), rest)]
        for dotted, qualname in tries:
            found = self._imported_file(path, dotted, getattr(node, "level", 0))
            if found is None or not qualname:
                continue
            try:
                tree = self._read(found).tree
            except RefusalError:
                continue
            chain = find(tree, qualname)
            if chain and isinstance(chain[-1], _FUNCTION):
                return self._typed(found, qualname)
            head, _, tail = qualname.partition(".")
            again = _binding(tree.body, head)
            if hops and isinstance(again, ast.Import | ast.ImportFrom):
                return self._follow(found, again, head, tail, hops - 1)
        return None

    def _imported_file(self, path: Path, dotted: str, level: int) -> Path | None:
        if level:
            base = path.parents[level - 1] if level <= len(path.parents) else path.parent
            return _module_in(base, dotted) if dotted else _first_file(base / "__init__.py")
        if beside := _module_in(path.parent, dotted):
            return beside
        found = self._module_files(dotted) if dotted else []
        return found[0][0] if len(found) == 1 else None

    # --- the answer -----------------------------------------------------------------------

    def _source(self, file: _File, qualname: str, module: str = "", root: Path | None = None) -> Source:
        by_packages, packages_root = import_name(file.path)
        # A module typed through folders without `__init__.py` keeps the name it was typed by.
        if root is None or by_packages.count(".") >= module.count("."):
            module, root = by_packages, packages_root
        return Source(
            target=self.target,
            path=file.path,
            shown_path=self._shown(file.path),
            module=module,
            root=root,
            qualname=qualname,
            text=file.source.text,
            encoding=file.source.encoding,
            newline=file.source.newline,
        )


def import_name(path: Path) -> tuple[str, Path]:
    """Dotted name of the file at `path`, and the folder it starts from, going up through `__init__.py`.

    A file whose name cannot be imported (``my-script.py``, ``v1.2.py``) gets a name that is not an
    identifier, with dashes for its dots, so that it can be told and still names no package.
    """
    parts = [path.stem.replace(".", "-")]
    folder = path.parent
    if path.stem == "__init__" and folder.name.isidentifier():
        parts, folder = [folder.name], folder.parent
    elif not parts[0].isidentifier():
        return parts[0], folder
    # The top of a checkout is no package, even with a stray `__init__.py`.
    while (folder / "__init__.py").is_file() and folder.name.isidentifier() and not is_project_root(folder):
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


# --- trees --------------------------------------------------------------------------------


def _functions(tree: ast.Module) -> dict[str, int]:
    """Dotted name -> line of every function in a file, also nested ones and methods, outer ones first."""
    found: dict[str, int] = {}
    scopes: list[tuple[str, Sequence[ast.stmt]]] = [("", tree.body)]
    try:
        for prefix, body in scopes:  # grows while it is walked
            for statement, _ in statements(body):
                if isinstance(statement, (*_FUNCTION, ast.ClassDef)):
                    dotted = f"{prefix}{statement.name}"
                    scopes.append((f"{dotted}.", statement.body))
                    if not isinstance(statement, ast.ClassDef):
                        found[dotted] = statement.lineno
    except RecursionError:  # thousands of `elif`; what was found so far is what there is to show
        return found
    return found


def _binding(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """The last statement of a scope that gives `name` a value other than a definition."""
    bound: ast.stmt | None = None
    for statement, _ in statements(body):
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if any(_bound_name(alias, statement) == name for alias in statement.names):
                bound = statement
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
            targets = [statement.target]
        elif isinstance(statement, ast.With | ast.AsyncWith):
            targets = [item.optional_vars for item in statement.items if item.optional_vars]
        if any(isinstance(n, ast.Name) and n.id == name for target in targets for n in _names(target)):
            bound = statement
    return bound


def _names(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _names(item)
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)
    else:
        yield target


def _bound_name(alias: ast.alias, node: _Import) -> str:
    """The name an import gives a value to: ``import a.b`` binds ``a``."""
    if alias.asname or isinstance(node, ast.ImportFrom):
        return alias.asname or alias.name
    return alias.name.partition(".")[0]


# --- paths and words ----------------------------------------------------------------------


def _module_in(base: Path, dotted: str) -> Path | None:
    """File of a module below `base`; a package wins over a module of its name, as in an import."""
    place = base.joinpath(*dotted.split("."))
    return _first_file(place / "__init__.py", place.with_name(place.name + ".py"))


def _first_file(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # names too long, null bytes
        return False


def _relative(path: Path, start: Path) -> str:
    try:
        text = Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        text = path.as_posix()
    # File names need not be text; what is shown has to be.
    return text.encode("utf-8", "backslashreplace").decode()


def _made_by_us(data: bytes) -> bool:
    return MARK.encode() in data and is_generated(data[:4096].decode("utf-8", "replace"))


def _near_names(qualname: str, names: Sequence[str]) -> list[str]:
    """Names nearest to `qualname`, compared whole and by their last parts, whatever their case."""
    last = qualname.rpartition(".")[2].lower()
    by_key: dict[str, list[str]] = {}
    for name in names:
        for key in {name.lower(), name.rpartition(".")[2].lower()}:
            by_key.setdefault(key, []).append(name)
    keys = [key for text in (qualname.lower(), last) for key in difflib.get_close_matches(text, by_key)]
    return list(dict.fromkeys(name for key in keys for name in by_key[key]))[:3]


def _or(texts: Iterable[str]) -> str:
    return " or ".join(", ".join(f"`{text}`" for text in texts).rsplit(", ", 1))


def _clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(
    code: str, reason: str, hint: str, span: Span | None = None, details: tuple[str, ...] = ()
) -> NoReturn:
    raise RefusalError(Refusal(code, reason, hint, span, details))
