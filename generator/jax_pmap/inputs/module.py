"""Import the target's module in the worker, or load the part of it that the target needs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jax_pmap.drift import outdated
from jax_pmap.emit.constants import compiled_at
from jax_pmap.model import Refusal, RefusalError, Request, Source, refused
from jax_pmap.notebook import is_notebook, place
from jax_pmap.problems import error_details, error_span, install
from jax_pmap.reading.target import Target, made_by_a_program, owner_of
from jax_pmap.session import Session
from jax_pmap.syntax.imports import Import
from jax_pmap.syntax.library import COMPILERS, MARKERS
from jax_pmap.syntax.slice import Module, Slice
from jax_pmap.syntax.text import function_text
from jax_pmap.units import first_few
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Problem
from jax_pmap.worker.scopes import used_names

#: Ranges of lines that a note lists.
SHOWN = 6
#: Lines of other modules that a note lists.
SHOWN_MODULES = 3


@dataclass(frozen=True, slots=True)
class Imported:
    """How the target's module came into the worker."""

    #: What the emitted file must hold itself, because the module is not there to import from.
    carried: Slice | None
    notes: tuple[str, ...]
    #: Arguments that are bound already, to what the module's object holds.
    given: tuple[str, ...] = ()
    #: Settings of jax that are made when it is imported, with their values as Python source.
    settings: tuple[tuple[str, str], ...] = ()
    #: Why it could not be imported as a whole, where that fails.
    failed: str = ""


def import_target(
    session: Session,
    target: Target,
    request: Request,
    text: str | None = None,
    original: Target | None = None,
) -> Imported:
    """Import the target's module, or where that fails or would do work, the part the target needs.

    With `text`, which the target was read from, that is run in place of what the file holds, with what the
    `original` needs as well.

    Raises:
        RefusalError: JP008, with the line that fails and the names by which the target needs it; JP050,
            where another file that would have to be imported is a program.
    """
    source, module = target.source, Module(target.parsed)
    needed = needed_names(target)
    loaded = needed | _names_for_inputs(target, request)
    if original is not None:
        loaded |= needed_names(original) | {source.qualname.partition(".")[0]}
    made = taken_from(target)
    if made is not None and made.module == module_of(source):
        loaded |= {made.name}
    elif made is not None:
        if (error := made_by_a_program(target)) is not None:
            raise error
        loaded |= {source.qualname.partition(".")[0]}
    loaded_part = module.slice_for(loaded, itself=original is not None)
    loader = _Loader(text, session, target, module, needed, loaded_part)
    whole: Problem | None = None
    work = None if is_notebook(source.path) else module.work()
    if is_notebook(source.path):
        why = f"`{source.shown_path}` is a notebook"
    elif work is not None:
        why = f"importing `{source.shown_path}` would run the program (line {work})"
    elif module.under_guard(needed):
        why = (
            f"`{target.facts.name}` needs names that only exist when `{source.shown_path}` is run as a script"
        )
    else:
        try:
            return loader.whole()
        except Problem as problem:
            whole = problem
            line = error_span(problem.error, session.directory, source)
            where = f" (line {line.line})" if line else ""
            why = f"`{source.shown_path}` cannot be imported{where}: {problem.message}"
    try:
        part = loader.part(why)
        return part if whole is None else replace(part, failed=why)
    except Problem as problem:
        if whole is None and problem.kind == "import" and not is_notebook(source.path):
            # What it needs may be made by the program itself.
            try:
                return loader.whole()
            except Problem as second:
                whole = second
        raise RefusalError(loader.refusal(whole or problem, problem)) from None


def taken_from(target: Target) -> protocol.Object | None:
    """The module's object that brings values which the target's own text has not.

    They are what is bound to it, or what the functions around it hold.
    """
    binding = target.source.binding
    if binding is None or not binding.live:
        return None
    brings = binding.positional or binding.keywords or target.parsed.enclosing
    return protocol.Object(module_of(binding.file or target.source), binding.qualname) if brings else None


def written(target: Target, module: Module) -> protocol.Written | None:
    """How the target is written, where a name at the top of its `module` leads to it and nothing else."""
    if target.source.binding is not None or target.parsed.enclosing:
        return None
    node = target.parsed.definition
    around = [each for each in target.facts.decorators if each.name not in COMPILERS | MARKERS]
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    # Type checkers may be switched off, and what the statement puts around the function is no decorator's.
    return protocol.Written(first, 0 if given_away(target, module) else len(around))


def given_away(target: Target, module: Module) -> int:
    """The line below the ``def`` that gives its name to what is made of it but for compiling it; else 0.

    A name that a script gives to what a call returns (``loss = loss(w, x)``) stands for the function.
    """
    name, compiled = target.facts.name, compiled_at(target)
    lines = (
        unit.node.lineno
        for unit in module.units
        if name in unit.binds
        and unit.first > target.parsed.definition.lineno
        and (isinstance(unit.node, Import) or _refers_to(unit.node, name))
    )
    return next((line for line in lines if line not in compiled), 0)


def needed_names(target: Target) -> frozenset[str]:
    """Names of the module that the target's own text uses."""
    facts = target.facts
    binding = target.source.binding
    given = (
        [*binding.positional, *(value for _, value in binding.keywords)] if binding and binding.live else ()
    )
    bound = {name for text in given for name in used_names([ast.parse(text, mode="eval")])}
    return frozenset(facts.found_in_module) | bound | {row.name for row in facts.imported}


def module_of(source: Source) -> protocol.Module:
    """The file that a source is in, as the worker imports it."""
    return protocol.Module(str(source.path), source.module, str(source.root))


def as_imported(source: Source, session: Session) -> Source:
    """The source with the folders that modules of the user's were imported from in the worker.

    A file that a program has under another name than a file there is expected to have, as in a folder
    without ``__init__.py``, has that: under two names it would be two modules, each with classes of its own.
    """
    answer = session.ask(protocol.FindImporting(str(source.path)), "listing what was imported")
    source = replace(source, others=(*source.others, *map(Path, answer.folders)))
    if not answer.names or source.module in answer.names:
        return source
    name = answer.names[0]
    parts = name.split(".")
    is_at_end = source.path.with_suffix("").parts[-len(parts) :] == tuple(parts)
    return replace(source, module=name, root=source.path.parents[len(parts) - 1]) if is_at_end else source


def made(answer: protocol.Loaded) -> tuple[tuple[str, str], ...]:
    """The settings of jax that the worker found made, with their values as Python source."""
    return tuple((name, repr(value)) for name, value in answer.settings.items())


def _refers_to(statement: ast.stmt, name: str) -> bool:
    """Whether a statement uses a function in another way than to call it."""
    nodes = list(ast.walk(statement))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    used = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return any(node.id == name and id(node) not in called for node in used)


class _Loader:
    """The ways to load one target's module."""

    def __init__(
        self,
        text: str | None,
        session: Session,
        target: Target,
        module: Module,
        needed: frozenset[str],
        loaded: Slice,
    ) -> None:
        self.text = text
        self.session = session
        self.target = target
        self.module = module
        self.written = written(target, module)
        self.needed = needed
        #: What is loaded: the needs of the target and of the function that makes its inputs.
        self.slice = loaded

    def whole(self) -> Imported:
        """Import the file as it is."""
        answer = self._ask(self.text, tolerant=False)
        source = self.target.source
        notes = self._notes(answer)
        if not answer.taken:
            return Imported(None, notes, answer.given, made(answer))
        carried = self.module.slice_for(self.needed)
        if carried.definitions:
            note = f"`import {source.module}` means another module; the emitted file carries what it needs"
            notes = (note, *notes)
        return Imported(carried, notes, answer.given, made(answer))

    def part(self, why: str) -> Imported:
        """Load what the target needs; `why` not the whole.

        Raises:
            RefusalError: JP042, a statement that is left out gives its name to another function.
        """
        line = given_away(self.target, self.module)
        if line and self.text is None and self.written is not None:
            raise self._another("another function", f"from {self._line(line)} on")
        tolerant = False
        try:
            answer = self._ask(self.slice.text, tolerant=False)
        except Problem as problem:
            if _last_file(problem.error) in (None, str(self.target.source.path)):
                raise
            # The failure is inside another module of the user's, in a part that may not be needed.
            tolerant = True
            answer = self._ask(self.slice.text, tolerant=True)
        carried = self.module.slice_for(self.needed)
        notes = [f"{why}; only what `{self.target.facts.name}` needs was loaded{self._left_out(carried)}"]
        for line, name in self.slice.doubtful:
            notes.append(f"{self._line(line)}, which is given `{name}` and may change it, was left out")
        if tolerant and answer.failed:
            notes.append(_failed(answer.failed))
        notes += self._notes(answer)
        return Imported(carried, tuple(notes), answer.given, made(answer))

    def _another(self, what: str, when: str) -> RefusalError:
        """The refusal of a function whose name stands for another one."""
        name = self.target.source.qualname
        return refused(
            "JP042",
            f"`{name}` is {what} {when}, and what that adds to the `def` is not known",
            f"Name a function that calls it (def step(…): return {name}(…)), or give the two different "
            "names, and name the one you mean",
            self.target.facts.span,
        )

    def _line(self, line: int) -> str:
        """``"line 12"``, of a notebook ``"line 4 of cell 3"``."""
        source = self.target.source
        found = place(source.text, line) if is_notebook(source.path) else None
        return f"line {found[1]} of cell {found[0]}" if found else f"line {line}"

    def _left_out(self, carried: Slice) -> str:
        words = []
        if carried.definitions:
            words.append("and the emitted file carries a copy of it")
        if self.slice.left_out and not is_notebook(self.target.source.path):
            words.append(f"without {_ranges(self.slice.left_out)}")
        return "".join(f", {word}" for word in reversed(words))

    def _notes(self, answer: protocol.Loaded) -> tuple[str, ...]:
        """What else a reader must know of how the module was loaded."""
        name = self._flags()
        if answer.flags and name:
            return (f"absl flags have their defaults: `{name}` was read without a command line",)
        return ()

    def _flags(self) -> str | None:
        """The name by which the target reaches absl's flag values, if it does."""
        for unit in self.module.units:
            node = unit.node
            named = unit.binds & self.slice.names
            if named and isinstance(node, ast.Assign) and ast.unparse(node.value).endswith("flags.FLAGS"):
                return sorted(named)[0]
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("absl.flags") and named:
                return sorted(named)[0]
        return None

    def _ask(self, replacement: str | None, *, tolerant: bool) -> protocol.Loaded:
        target, session = self.target, self.session
        source, facts, binding = target.source, target.facts, target.source.binding
        text = function_text(target.parsed)
        asked = protocol.Load(
            module_of(source),
            protocol.Definition(text.text, str(source.path), text.line, facts.name),
            session.devices,
            collectives=bool(facts.collectives),
            in_place=facts.changes_seen,
            axis=target.axis_name,
            axis_given=target.axis_given,
            source=replacement,
            tolerant=tolerant,
            names=tuple(sorted(self.slice.names)) if tolerant else (),
            taken_from=taken_from(target),
            owner=owner_of(target),
            nested=bool(target.parsed.enclosing),
            called_by=binding.called_by if binding is not None else "",
            written=self.written if replacement is None or replacement == self.text else None,
        )
        try:
            answer = session.ask(asked, f"importing `{source.shown_path}`")
        except Problem as problem:
            if problem.kind == "another":
                raise self._another(problem.message, f"once `{source.shown_path}` is imported") from None
            if problem.kind != "other" or binding is None:
                raise
            raise refused(
                "JP004",
                f"{problem.message}, not `{source.qualname}` with something bound to it",
                f"Name the function: {source.shown_path}::{source.qualname}",
                binding.span,
            ) from None
        self._check_in_time(answer.too_late)
        return answer

    def _check_in_time(self, variables: Mapping[str, str]) -> None:
        """Refuse settings of jax that are made as variables of the process, which another import undoes.

        Raises:
            RefusalError: JP008.
        """
        for name, value in variables.items():
            raise refused(
                "JP008",
                f"importing `{self.target.source.shown_path}` sets `{name}={value}` in os.environ, which "
                "counts only where jax is imported later: a file that imports jax first, as the emitted one "
                "does, would compute otherwise",
                f'Set it by jax itself: `jax.config.update("{name.lower()}", …)`, or for the whole process '
                "in the shell",
                self.target.facts.span,
            )

    # --- what to say when it fails --------------------------------------------------------

    def refusal(self, whole: Problem, part: Problem) -> Refusal:
        """What is needed and fails, by which names, and the way out."""
        target, source = self.target, self.target.source
        problem = part
        if is_name_error(part) and not is_name_error(whole):
            problem = whole  # What reading left out was needed after all; the cause is the first failure.
        error = problem.error
        span = error_span(error, self.session.directory, source)
        reason = f"`{self._imported(error).shown_path}` cannot be imported: {problem.message}"
        line = self._own_line(error)
        names: Sequence[str] = self.slice.chain(line) if line else ()
        if problem.kind == "missing":
            names = self.slice.chain_of(problem.name)
        if names:
            chain = " → ".join([target.facts.name, *names])
            reason += f". `{target.facts.name}` needs it: {chain}" + (
                f" ({self._line(line)})" if line else ""
            )
        return Refusal("JP008", reason, self._hint(error), span, error_details(error))

    def _imported(self, error: protocol.Raised | None) -> Source:
        """The file whose import failed: the target's, or the one that makes the target's object."""
        source = self.target.source
        made_in = source.binding.file if source.binding is not None else None
        files = [file for file, *_ in error.frames] if error is not None else []
        return made_in if made_in is not None and str(made_in.path) in files else source

    def _own_line(self, error: protocol.Raised | None) -> int | None:
        """The line of the target's file, outside functions, that failed."""
        path, frames = str(self.target.source.path), error.frames if error is not None else ()
        return next((line for file, line, name in frames if file == path and name == "<module>"), None)

    def _hint(self, error: protocol.Raised | None) -> str:
        kind, message = (error.type, error.message) if error is not None else ("", "")
        shown = self.target.source.shown_path
        if drift := outdated(error, self.session.directory):
            return drift
        if missing := install(error, str(self.session.python)):
            return missing
        if kind == "KeyError" and any("environ" in block for block in error_details(error)):
            return f"Set the variable: {message.strip(chr(39))}=… jax-pmap gen …"
        if kind == "SystemExit" or "Flag" in kind:
            return (
                f'Give the program with its options: --run "python {shown} …"; or put what runs it under '
                "`if __name__ == '__main__':`"
            )
        if kind == "FileNotFoundError":
            return (
                "Start jax-pmap in the folder that the path is meant from, with the file there, or pass what "
                "the line makes as an argument"
            )
        if is_notebook(self.target.source.path):
            return "Correct the cell, or pass what the line makes as an argument"
        return (
            f"Make it importable: `python -c 'import {self._imported(error).module}'` must work. Or put "
            "what runs the program under `if __name__ == '__main__':`, or pass what the line makes as an "
            "argument"
        )


def _failed(rows: Iterable[tuple[str, int, str]]) -> str:
    """What of the user's other modules could not be loaded; what only follows from that is left out."""
    places = list(
        dict.fromkeys(
            f"`{name}` line {line} ({error})"
            for name, line, error in rows
            if not error.startswith("MissingError")
        )
    )
    return (
        f"other modules were loaded without what fails in them: {first_few(places, SHOWN_MODULES)}; "
        "the emitted file runs where its imports work"
    )


def is_name_error(problem: Problem) -> bool:
    """Whether the user's code met a name that is not there."""
    return problem.error is not None and problem.error.type == "NameError"


def _last_file(error: protocol.Raised | None) -> str | None:
    return error.frames[-1][0] if error is not None and error.frames else None


def _ranges(lines: Iterable[tuple[int, int]]) -> str:
    """``"lines 3, 7-12"``, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for first, last in lines:
        if joined and first <= joined[-1][1] + 3:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in joined]
    more = f" and {len(texts) - SHOWN} more places" if len(texts) > SHOWN else ""
    one = len(texts) == 1 and "-" not in texts[0]
    return f"line{'' if one else 's'} {', '.join(texts[:SHOWN])}{more}"


def _names_for_inputs(target: Target, request: Request) -> frozenset[str]:
    """Names of the target's module that the function making the inputs takes from it."""
    file, double, name = (request.inputs or "").partition("::")
    if not double:
        return frozenset()
    path = (request.directory / Path(file).expanduser()).resolve()
    if path == target.source.path.resolve():
        return frozenset({name.partition(".")[0]})
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return frozenset()  # The worker says what is wrong with it.
    module = target.source.module
    found: set[str] = set()
    # Other modules may have names of their own that the target's has too.
    called = _names_of_module(tree, module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in called:
            found.add(node.attr)
    bound = {name for unit in Module(target.parsed).units for name in unit.binds}
    return frozenset(found & bound)


def _names_of_module(tree: ast.Module, module: str) -> set[str]:
    """What a file calls a module: ``m`` after ``import p.m as m`` or ``from p import m``."""
    package, _, last = module.rpartition(".")
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            called |= {alias.asname or alias.name for alias in node.names if alias.name == module}
        elif isinstance(node, ast.ImportFrom) and (package in ("", node.module) or node.level):
            called |= {alias.asname or alias.name for alias in node.names if alias.name == last}
    return called
