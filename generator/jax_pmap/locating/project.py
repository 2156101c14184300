"""The project: its files and modules, the functions in them, and how they are shown and typed."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import jax_pmap.sources as sources
from jax_pmap.config import project_root
from jax_pmap.locating.paths import import_name, imported_as, made_by_us, relative
from jax_pmap.locating.words import refuse
from jax_pmap.model import RefusalError, Source
from jax_pmap.notebook import is_notebook
from jax_pmap.syntax.definitions import find, functions_in
from jax_pmap.syntax.resolve import Resolver
from jax_pmap.units import first_few

#: Names of candidates and neighbours that a message shows.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function that a bare name may mean."""

    path: Path
    qualname: str
    line: int


@dataclass(frozen=True, slots=True)
class File:
    """A file that was read and parsed."""

    path: Path
    source: sources.SourceText
    names: Resolver

    @property
    def tree(self) -> ast.Module:
        """What is parsed of it."""
        return self.names.tree


class Project:
    """The files that a target is looked up in, as seen from the folder the user is in."""

    def __init__(
        self, directory: Path, instead: tuple[Path, str] | None = None, *, hints: bool = True
    ) -> None:
        self.directory = directory
        self.instead = instead
        #: Whether all files are searched for what else may be meant.
        self.hints = hints
        self.root = project_root(directory)

    def shown(self, path: Path) -> str:
        """Path as reports and headers show it: from the project root, also for a file outside it."""
        return relative(path, self.root)

    def typed(self, path: Path, qualname: str = "") -> str:
        """Path, or target, in the form to type in the folder the user is in."""
        text = relative(path, self.directory)
        return shlex.quote(f"{text}::{qualname}" if qualname else text)

    def near_files(self, text: str, *, generated: bool) -> list[Path]:
        """Files of the project with a path or a name near to `text`; `generated` ones only if asked."""
        paths = {relative(path, self.directory): path for path in self.python_files()}
        wanted = Path(text).as_posix()
        name = Path(text).name
        same = [typed for typed in paths if Path(typed).name == name]
        near = difflib.get_close_matches(wanted, paths, n=3, cutoff=0.75)
        by_name = difflib.get_close_matches(name, {Path(typed).name for typed in paths}, n=3, cutoff=0.7)
        similar = [typed for near_name in by_name for typed in paths if Path(typed).name == near_name]
        found = [paths[typed] for typed in dict.fromkeys([*same, *near, *similar])]
        return [path for path in found if generated or not made_by_us(sources.read_bytes(path) or b"")][:3]

    def module_files(self, dotted: str) -> list[tuple[Path, Path]]:
        """(file, root) of a module: the first in import order, or all in other folders of the project."""
        for base in self.source_roots():
            if path := sources.module_in(base, dotted):
                return [(path, base)]
        found = [(path, base) for base in self._other_roots() if (path := sources.module_in(base, dotted))]
        return list({os.path.realpath(path): (path, base) for path, base in found}.values())

    def source(self, file: File, qualname: str, target: str = "") -> Source:
        """What has a name in a file, where `target` is what the user typed for it."""
        module, root = import_name(file.path)
        return Source(
            target=target,
            path=file.path,
            shown_path=self.shown(file.path),
            module=module,
            root=root,
            qualname=qualname,
            text=file.source.text,
            encoding=file.source.encoding,
            newline=file.source.newline,
            others=tuple(self.source_roots()),
        )

    def source_roots(self) -> list[Path]:
        """Folders that dotted names of modules start from."""
        places = (self.directory, self.directory / "src", self.root, self.root / "src")
        return [place for place in dict.fromkeys(places) if place.is_dir()]

    def _other_roots(self) -> list[Path]:
        """Any folder right below the project root may be a source root (``lib``, ``python`` …)."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        except OSError:
            return []
        return [self.root / name for name in names if name not in sources.SKIPPED and name.isidentifier()]

    def dotted_names(self, path: Path) -> Iterator[str]:
        """What the file at `path` is imported as."""
        for base in self.source_roots():
            if path.is_relative_to(base):
                parts = path.relative_to(base).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    def candidates(self, folder: Path, qualname: str) -> list[Candidate]:
        """Functions below `folder` that `qualname` names, alone or as the end of a dotted name."""
        found: dict[str, Candidate] = {}
        broken: list[RefusalError] = []
        name = qualname.rpartition(".")[2]
        # Most files do not hold the name; parsing costs a hundred times what this search does.
        name_bytes = re.escape(name.encode()) + rb"\b" if name.isascii() else b""  # else the encoding decides
        defined = re.compile(rb"\bdef[\s\\]+" + name_bytes)
        for path in sources.python_files(folder):
            data = sources.read_bytes(path)
            if data is None or not defined.search(data) or made_by_us(data):
                continue
            try:
                tree = self.parsed(path, data).tree
                functions = functions_in(tree)
            except RefusalError as error:
                broken.append(error)
                continue
            real = os.path.realpath(path)
            for dotted, line in functions.items():
                if dotted == qualname or dotted.endswith(f".{qualname}"):
                    found.setdefault(f"{real}::{dotted}", Candidate(path, dotted, line))
        if broken and not found:
            raise broken[0]
        return list(found.values())

    def elsewhere(self, folder: Path, qualname: str) -> list[Candidate]:
        """Candidates for a hint, where a folder too large to search has none."""
        try:
            return self.candidates(folder, qualname) if self.hints else []
        except (RefusalError, sources.TooManyFilesError):
            return []

    def python_files(self) -> Iterator[Path]:
        """Files of the project for a hint: as many as there is time for."""
        with contextlib.suppress(sources.TooManyFilesError):
            yield from sources.python_files(self.root) if self.hints else ()

    def name_elsewhere(self, source: Source) -> tuple[str, Path] | None:
        """What all other files import the file of a source as, if one thing, and the folder this starts from.

        Nothing but that tells whether a folder without ``__init__.py`` is a package. Tests find their modules
        in ways of their own.
        """
        if "." in source.module or source.root in self.source_roots():
            return None
        others = (
            each
            for each in self.python_files()
            if each.suffix == ".py"
            and each != source.path
            and not each.name.startswith(("test_", "conftest."))
        )
        found = {imported_as(source.path, each, self.source_roots()) for each in others} - {None}
        return found.pop() if len(found) == 1 else None

    def several(self, found: Sequence[Candidate], what: str) -> NoReturn:
        """Refuse with the candidates to choose from."""
        lines = [f"{self.typed(c.path, c.qualname)}  (line {c.line})" for c in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"and {len(found) - SHOWN} more")
        refuse(
            "JP003",
            f"The project has {len(found)} places for the {what}.",
            f"Say which one, for instance `{self.typed(found[0].path, found[0].qualname)}`.",
            details=("\n".join(lines),),
        )

    def candidate(self, path: Path, qualname: str) -> Candidate:
        """The candidate that a file known to hold it is for a name."""
        chain = find(self.read(path).tree, qualname)
        return Candidate(path, qualname, chain[-1].lineno if chain else 1)

    def read(self, path: Path) -> File:
        """The file at `path`, parsed."""
        data = sources.read_bytes(path)
        if data is None:
            self._refuse_unreadable(path)
        file = self.parsed(path, data)
        if self.instead is None or self.instead[0] != path.resolve():
            return file
        text = self.instead[1]
        return self._file(path, dataclasses.replace(file.source, text=text))

    def _refuse_unreadable(self, path: Path) -> NoReturn:
        shown = self.shown(path)
        try:
            if not path.is_file():
                refuse("JP001", f"`{shown}` is not a regular file.", "Name a file that ends in `.py`.")
            if path.stat().st_size > sources.MAX_SIZE:
                refuse(
                    "JP001",
                    f"`{shown}` has more than {sources.MAX_SIZE >> 20} MiB, too much to parse.",
                    "Move the function to a file of its own.",
                )
            path.read_bytes()
            if is_notebook(path):
                refuse("JP005", f"`{shown}` is not the JSON of a notebook.", "Save it again in Jupyter.")
        except OSError as error:
            what = error.strerror or error
            refuse("JP001", f"`{shown}` cannot be read: {what}.", "Check its permissions.")
        refuse("JP001", f"`{shown}` changed while it was read.", "Try again.")

    def parsed(self, path: Path, data: bytes) -> File:
        """The file at `path`, which holds `data`, parsed."""
        return self._file(path, sources.decode(data, self.shown(path)))

    def _file(self, path: Path, source: sources.SourceText) -> File:
        shown = self.shown(path)
        return File(path, source, Resolver(source.text, shown, sources.parse(source.text, shown)))

    def listed(self, found: Sequence[Candidate]) -> str:
        """The first few candidates, as they are typed."""
        return first_few([f"`{self.typed(c.path, c.qualname)}`" for c in found])

    def imported_file(self, path: Path, dotted: str, level: int) -> Path | None:
        """File of the module that the file at `path` imports as `dotted`, with `level` dots before it."""
        if level:
            base = path.parents[level - 1] if level <= len(path.parents) else path.parent
            return sources.module_in(base, dotted) if dotted else sources.first_file(base / "__init__.py")
        if sibling := sources.module_in(path.parent, dotted):
            return sibling
        found = self.module_files(dotted) if dotted else []
        return found[0][0] if len(found) == 1 else None
