"""Functions that `gen --in-place` changed in the user's own files: are they what their command makes today?

A change is taken back, by the mark above it, and made anew: that proves it again, and what comes out is
compared with what is there. Layout, comments and imports do not count: the file is the user's to format.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from dataclasses import dataclass
from pathlib import Path

from jax_pmap.checking.cache import Cache, digest
from jax_pmap.checking.commands import is_unproved, recorded_request
from jax_pmap.checking.environment import file_digests, machine_digest, unchanged
from jax_pmap.checking.findings import Finding
from jax_pmap.checking.generated import ENVIRONMENT, SHOWN, Outcome, never_proved, users
from jax_pmap.config import PYPROJECT, project_root, read_config
from jax_pmap.emit.mark import Mark, marks
from jax_pmap.files import replace_text
from jax_pmap.interpreter import find_interpreter
from jax_pmap.model import Generated, Refusal, RefusalError, Request, Say, Source, Span
from jax_pmap.sources import SourceText, decode, read_bytes
from jax_pmap.threads import at_once

#: Stands in the mark above every such function.
MARK = b"# Parallel by jax-pmap"


@dataclass(frozen=True, slots=True)
class Edited:
    """A file with functions that were changed where they stand."""

    path: Path
    shown: str
    python: Path | None
    timeout: float


def check_in_place(files: list[Edited], cache: Cache, fix: bool, say: Say) -> list[Outcome]:
    """Look at every function that was changed where it stands, in the order of `files`."""
    found = {file: Outcome(()) for file in files}
    todo = [file for file in files if not _File(file, cache, fix, say).is_known()]
    if not todo:
        return [found[file] for file in files]
    # Before there are threads: two that import one of these at once find it half made.
    for name in ("black", "jinja2", "libcst", "jax_pmap.emit.undo", "jax_pmap.planning.search"):
        importlib.import_module(name)

    def one(file: Edited) -> Outcome:
        return _File(file, cache, fix, say).outcome()

    found |= zip(todo, at_once(one, todo), strict=True)
    return [found[file] for file in files]


class _File:
    """One file, and what is found in it."""

    def __init__(self, file: Edited, cache: Cache, fix: bool, say: Say) -> None:
        self.file, self.cache, self.fix, self.say = file, cache, fix, say
        self.path = file.path.resolve()
        self.findings: list[Finding] = []
        self.fixed = 0
        self.source = self._read()

    def _read(self) -> SourceText:
        return decode(read_bytes(self.path) or b"", self.file.shown)

    def is_known(self) -> bool:
        """Whether every function was looked at before, and nothing it depends on changed since."""
        try:
            return all(self._kept(mark) for mark in marks(self.source.text) if mark.added is not None)
        except RefusalError:
            return False

    def outcome(self) -> Outcome:
        """What is found, function by function: each is mended before the next one is looked at."""
        for name in [each.qualname for each in marks(self.source.text)]:
            mark = next((each for each in marks(self.source.text) if each.qualname == name), None)
            if mark is None or mark.added is None:
                continue
            try:
                self._look(mark)
            except RefusalError as error:
                self._unasked(mark, error.refusal)
        return Outcome(tuple(self.findings), self.fixed)

    def _look(self, mark: Mark) -> None:
        from jax_pmap.emit.undo import is_same, taken_back
        from jax_pmap.pipeline import generate

        text = self.source.text
        back = taken_back(text, mark)
        if back is None:
            self._found(mark, "JP153", _GONE.format(name=mark.qualname), _KEEP)
            return
        if self._kept(mark):
            return
        request = self._request(mark)
        unproved = is_unproved(mark.command)
        if unproved and not self.fix:
            where = f"{self.file.shown}::{mark.qualname}"
            span = Span(self.file.shown, mark.command_line)
            self.findings.append(never_proved(where, request.command, span))
            return
        self.say(f"proving: {self.file.shown}::{mark.qualname} again")
        result = generate(dataclasses.replace(request, instead=(self.path, back)))
        if isinstance(result, Refusal):
            if result.code in ENVIRONMENT:
                self._unasked(mark, result)
            else:
                self._refused(mark, result)
        elif not unproved and is_same(result.code, text, mark.qualname):
            files = {*users(result.files), str(project_root(request.directory) / PYPROJECT)}
            self.cache.put(self._key(mark), {"files": file_digests(sorted(files))})
        elif self.fix:
            self._mend(result)
        else:
            self._stale(mark, result)

    def _request(self, mark: Mark) -> Request:
        request = recorded_request(mark.command, self.path)
        return dataclasses.replace(
            request, python=self.file.python or request.python, timeout=self.file.timeout
        )

    def _key(self, mark: Mark) -> str:
        request = self._request(mark)
        interpreter = find_interpreter(
            request.python, request.directory, read_config(request.directory).python
        )
        known = machine_digest(interpreter.path)
        return digest("in place", str(self.path), self.source.text, mark.qualname, known)

    def _kept(self, mark: Mark) -> bool:
        kept = self.cache.get(self._key(mark))
        return kept is not None and unchanged(kept["files"])

    def _mend(self, result: Generated) -> None:
        source = self.source
        there = Source("", self.path, self.file.shown, "", self.path.parent, "", source.text, source.encoding)
        replace_text(there, result.code)
        self.fixed += 1
        self.source = self._read()

    # --- what is said ---------------------------------------------------------------------

    def _found(self, mark: Mark, code: str, message: str, hint: str, details: tuple[str, ...] = ()) -> None:
        span = Span(self.file.shown, mark.line)
        self.findings.append(Finding(code, message, hint, span, (), details))

    def _unasked(self, mark: Mark, refusal: Refusal) -> None:
        self._found(mark, refusal.code, refusal.reason, refusal.hint, refusal.details)

    def _refused(self, mark: Mark, refusal: Refusal) -> None:
        # Lines are those of the file with the change taken back.
        self._found(
            mark,
            "JP152",
            f"`{self.file.shown}::{mark.qualname}` is refused today, so its parallel form is no longer "
            f"proved: {refusal.code}: {refusal.reason}",
            refusal.hint,
            refusal.details,
        )

    def _stale(self, mark: Mark, result: Generated) -> None:
        lines = list(
            difflib.unified_diff(
                self.source.text.splitlines(), result.code.splitlines(), "there", "today", lineterm="", n=1
            )
        )
        more = [f"... {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
        self._found(
            mark,
            "JP153",
            f"the parallel form of `{mark.qualname}` is not what its command makes today: it, or what it "
            "was made from, changed since",
            f"Make it again with `jax-pmap check --fix {self.file.shown}`; or delete the comment above it, "
            "and it is a function of your own",
            ("\n".join([*lines[:SHOWN], *more]),),
        )


_GONE = "the comment above `{name}` speaks of definitions that are not there any more"
_KEEP = (
    "Delete the comment, and the function is one of your own; or put back the single-device function and "
    "run the command in the comment"
)
