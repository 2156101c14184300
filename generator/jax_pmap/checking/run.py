"""`check` over files and folders: which files, which checks, what comes out of them together."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jax_pmap.checking.cache import Cache, digest
from jax_pmap.checking.findings import Edit, Finding, apply_edits, fingerprints, sorted_findings
from jax_pmap.checking.generated import ENVIRONMENT, Task, check_generated, is_candidate, task
from jax_pmap.checking.in_place import MARK, Edited, check_in_place
from jax_pmap.checking.snippets import Page, check_pages
from jax_pmap.checking.static import ABOUT, check_text
from jax_pmap.checking.suppress import unsuppressed
from jax_pmap.config import project_root, read_config
from jax_pmap.model import DEFAULT_TIMEOUT, Refusal, RefusalError, Say, Span, quiet, refused
from jax_pmap.sources import (
    MAX_ENTRIES,
    TooManyFilesError,
    decode,
    ignored_folders,
    project_files,
    read_bytes,
)

#: Codes about generated files, and functions changed where they stand.
GENERATED = frozenset({"JP150", "JP151", "JP152", "JP153"})
#: Suffixes of pages; the last two only where a page is named.
_PAGES = (".md", ".rst", ".markdown", ".txt")
_ABOUT_PAGES = frozenset({"JP160", "JP161", "JP162"})
#: Suffixes of the files that are looked at in a folder.
SUFFIXES = (".py", ".md", ".rst")


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The question `check` is asked."""

    #: Files and folders, as typed; empty: the current folder.
    paths: tuple[str, ...] = ()
    #: Codes, or beginnings of codes, to report; empty: all.
    select: tuple[str, ...] = ()
    #: Codes, or beginnings of codes, not to report.
    ignore: tuple[str, ...] = ()
    #: Mend what can be mended for certain.
    fix: bool = False
    #: Prove generated files that were edited as they are, and record that in them.
    accept: bool = False
    #: False: read only, nothing is run.
    run: bool = True
    #: False: every file is looked at anew.
    cache: bool = True
    python: Path | None = None
    #: Seconds of wall time for each thing that is run.
    timeout: float = DEFAULT_TIMEOUT
    #: A text to check in place of files, with the name it goes by.
    text: str | None = None
    text_name: str = "<stdin>"
    #: Folder that relative paths start from.
    directory: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found."""

    findings: tuple[Finding, ...]
    #: Files looked at.
    files: int
    #: Findings that were mended, and are not among `findings`.
    fixed: int = 0
    #: Edited files that were proved as they are, and recorded.
    accepted: int = 0
    #: What there is to say of the proofs of these: the file, and a sentence.
    notes: tuple[tuple[str, str], ...] = ()
    #: With a text in place of files and `fix`: the text as it should be.
    text: str | None = None

    @property
    def exit_code(self) -> int:
        """0: nothing found. 1: something. 2: part of the question could not be asked."""
        import jax_pmap.diagnostics as diagnostics

        return max((diagnostics.exit_code(finding.code) for finding in self.findings), default=0)


def check(request: CheckRequest, say: Say = quiet) -> CheckReport | Refusal:
    """Check files and folders, or one text.

    Args:
        request: the question; see `CheckRequest`.
        say: told in a line what is going on.
    """
    try:
        return _check(request, say)
    except RefusalError as error:
        return error.refusal


class _Gathered:
    """What comes together file by file."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self.wanted = wanted
        self.findings: list[Finding] = []
        #: Lines of the files with findings, by the names the files are shown under.
        self.lines: dict[str, list[str]] = {}
        self.fixed = 0
        self.accepted = 0
        self.notes: list[tuple[str, str]] = []

    def add(self, shown: str, text: str, found: Sequence[Finding], always: Callable[[str], bool]) -> None:
        """Take in what a run of a file found: what is wanted, or `always` reported."""
        self.lines[shown] = text.splitlines()
        kept = unsuppressed(found, self.lines[shown])
        self.findings += [each for each in kept if each.code in self.wanted or always(each.code)]


def _check(request: CheckRequest, say: Say) -> CheckReport:
    settings = read_config(request.directory).check
    _check_codes(request, "`--{name} {code}`")
    stored = CheckRequest(select=settings.select, ignore=settings.ignore)
    _check_codes(stored, "`{code}`, under `{name}` of `[tool.jax-pmap.check]` in pyproject.toml,")
    request = dataclasses.replace(
        request,
        select=request.select or settings.select,
        ignore=request.ignore or settings.ignore,
        run=request.run and settings.run,
    )
    wanted = _wanted(request)
    if request.text is not None:
        return _check_one_text(request, request.text, wanted, say)
    cache = Cache(project_root(request.directory) if request.cache else None)
    files = list(files_of(request))
    gathered = _Gathered(wanted)
    generated: list[Task] = []
    edited: list[Edited] = []
    pages: list[Page] = []
    for path, shown in files:
        data = read_bytes(path)
        if data is None:
            continue
        if path.suffix in _PAGES:
            pages.append(_page(request, path, shown, data, wanted))
            continue
        if not ABOUT.search(data):
            continue
        if is_candidate(data):
            try:
                generated.append(task(path, shown, data, request.python, request.timeout))
            except RefusalError as error:  # it cannot be decoded
                refusal = error.refusal
                span = refusal.span or Span(shown, 1)
                gathered.findings.append(Finding(refusal.code, refusal.reason, refusal.hint, span))
            continue
        if b">>> " in data:
            pages.append(_page(request, path, shown, data, wanted))
        say(f"reading: {shown}")
        found = [finding for finding in _static(data, shown, cache) if finding.code in wanted]
        if request.fix and any(finding.fixable for finding in found):
            found, mended = _fix(path, data, shown, found, wanted)
            gathered.fixed += mended
            data = read_bytes(path) or b""
        if found:
            gathered.lines[shown] = data.decode("utf-8", "replace").splitlines()
        gathered.findings += found
        if request.run and MARK in data:
            edited.append(Edited(path, shown, request.python, request.timeout))
    if request.accept:
        _check_generated(request, {each.path.resolve() for each in generated})
    if edited and not wanted.isdisjoint(GENERATED):
        outcomes = check_in_place(edited, cache, request.fix, say)
        for file, outcome in zip(edited, outcomes, strict=True):
            text = (read_bytes(file.path) or b"").decode("utf-8", "replace")
            gathered.add(file.shown, text, outcome.findings, lambda code: code not in GENERATED)
            gathered.fixed += outcome.fixed
    if generated and not wanted.isdisjoint(GENERATED):
        outcomes = check_generated(generated, cache, request.fix, request.run, say, request.accept)
        for each, outcome in zip(generated, outcomes, strict=True):
            gathered.add(each.shown, each.text, outcome.findings, lambda code: code not in GENERATED)
            gathered.fixed += outcome.fixed
            gathered.accepted += outcome.accepted
            gathered.notes += [(each.shown, note) for note in outcome.notes]
    if pages:
        for page, found in zip(pages, check_pages(pages, cache, say), strict=True):
            gathered.add(page.shown, page.text, found, ENVIRONMENT.__contains__)
    cache.save()
    numbered = _numbered(gathered.findings, gathered.lines)
    return CheckReport(numbered, len(files), gathered.fixed, gathered.accepted, tuple(gathered.notes))


def _page(request: CheckRequest, path: Path, shown: str, data: bytes, wanted: frozenset[str]) -> Page:
    named = str(path) in {str(request.directory / text) for text in request.paths}
    text = data.decode("utf-8-sig", "replace")
    run = request.run and not wanted.isdisjoint(_ABOUT_PAGES)
    return Page(path.resolve(), shown, text, named, run, request.python, request.timeout)


def _wanted(request: CheckRequest) -> frozenset[str]:
    """The codes to report, those that begin as is selected and not as is ignored.

    JP005 always: what cannot be read cannot be said to be right.
    """
    import jax_pmap.diagnostics as diagnostics

    select, ignore = request.select or ("",), request.ignore
    kept = {code for code in diagnostics.codes() if code.startswith(select) and not code.startswith(ignore)}
    return frozenset(kept | {"JP005"})


def _check_codes(request: CheckRequest, said: str) -> None:
    """Refuse codes that there are not, JP018; `said` is how one is spoken of."""
    import jax_pmap.diagnostics as diagnostics

    known = diagnostics.codes()
    for option, codes in (("select", request.select), ("ignore", request.ignore)):
        for code in codes:
            if not any(name.startswith(code) for name in known):
                near = diagnostics.nearest(code)
                raise refused(
                    "JP018",
                    f"{said.format(name=option, code=code)} names no code.",
                    f"Did you mean `{near}`?" if near else "`jax-pmap explain` lists them all.",
                    None,
                )


def _check_one_text(request: CheckRequest, text: str, wanted: frozenset[str], say: Say) -> CheckReport:
    """Check a text by the rules alone: nothing of it is run."""
    shown = request.text_name
    if shown.endswith(_PAGES):
        page = Page(request.directory / shown, shown, text, True, False, None, request.timeout)
        on_page = [each for each in check_pages([page], Cache(None), say)[0] if each.code in wanted]
        kept = unsuppressed(on_page, text.splitlines())
        lines = {shown: text.splitlines()}
        return CheckReport(_numbered(kept, lines), 1, text=text if request.fix else None)
    found = [finding for finding in check_text(text, shown) if finding.code in wanted]
    fixed = 0
    if request.fix:
        new, fixed = apply_edits(text, found)
        found = [finding for finding in check_text(new, shown) if finding.code in wanted]
        text = new
    lines = {shown: text.splitlines()}
    return CheckReport(_numbered(found, lines), 1, fixed, text=text if request.fix else None)


def _numbered(findings: Sequence[Finding], lines: dict[str, list[str]]) -> tuple[Finding, ...]:
    """In order, with fingerprints."""
    ordered = sorted_findings(findings)
    marks = fingerprints(ordered, lines)
    return tuple(dataclasses.replace(each, fingerprint=marks[i]) for i, each in enumerate(ordered))


# --- files --------------------------------------------------------------------------------


def files_of(request: CheckRequest) -> Iterator[tuple[Path, str]]:
    """Every file to look at and its name in messages, each once.

    Raises:
        RefusalError: JP018, for a path that is not there.
    """
    seen: set[Path] = set()
    excluded = read_config(request.directory).check.exclude
    for text in request.paths or (".",):
        path = request.directory / text
        if path.is_dir():
            found: Iterator[Path] = (p for p in _below(path, text) if not _is_excluded(p, excluded))
        elif path.is_file():
            found = iter([path])
        else:
            hint = "Name files or folders to check; without any, the current folder is checked."
            if text == "-":
                hint = "A text on standard input is checked alone: `jax-pmap check - --stdin-filename NAME`."
            raise refused("JP018", f"`{text}` is neither a file nor a folder.", hint, None)
        for each in found:
            if each not in seen:
                seen.add(each)
                yield each, _shown(each, request.directory)


def _check_generated(request: CheckRequest, generated: set[Path]) -> None:
    """Refuse to accept the edits of a file that was named, and that no command made.

    Raises:
        RefusalError: JP018, for the first.
    """
    for text in request.paths:
        path = request.directory / text
        if path.is_file() and path.resolve() not in generated:
            raise refused(
                "JP018",
                f"`{text}` has no header of a generated file: there are no edits to accept.",
                "Name a file that `jax-pmap gen -o` wrote; `jax-pmap check FILE` looks at any other.",
                None,
            )


def _below(folder: Path, text: str) -> Iterator[Path]:
    """The files to look at below a folder that was typed as `text`.

    Raises:
        RefusalError: JP018, where there are too many.
    """
    try:
        yield from project_files(folder, SUFFIXES, ignored_folders(folder))
    except TooManyFilesError:
        raise refused(
            "JP018",
            f"`{text}` holds more than {MAX_ENTRIES:,} folders, Python files and pages.",
            "Name the files or folders to check, or leave some out: `exclude` in `[tool.jax-pmap.check]`.",
            None,
        ) from None


def _is_excluded(path: Path, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern fits `path`, or a folder above it, from the project root."""
    if not patterns:
        return False
    full = path.resolve()
    root = project_root(full.parent)
    name = full.relative_to(root).as_posix()
    parts = name.split("/")
    names = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatch.fnmatch(each, pattern.rstrip("/")) for each in names for pattern in patterns)


def _shown(path: Path, directory: Path) -> str:
    try:
        return path.resolve().relative_to(directory.resolve()).as_posix()
    except ValueError:
        return path.as_posix()


# --- the rules ----------------------------------------------------------------------------


def _static(data: bytes, shown: str, cache: Cache) -> list[Finding]:
    key = digest("rules", shown, data)
    kept = cache.get(key)
    if kept is not None:
        return [_from_json(each) for each in kept]
    found = check_bytes(data, shown)
    cache.put(key, [dataclasses.asdict(each) for each in found])
    return found


def check_bytes(data: bytes, shown: str) -> list[Finding]:
    """Every finding in the bytes of a Python file."""
    try:
        source = decode(data, shown)
    except RefusalError as error:
        assert error.refusal.span is not None
        return [Finding("JP005", error.refusal.reason, error.refusal.hint, error.refusal.span)]
    return check_text(source.text, shown)


def _from_json(document: dict[str, object]) -> Finding:
    values = dict(document)
    values["span"] = Span(**values["span"])  # type: ignore[arg-type]
    values["edits"] = tuple(Edit(**edit) for edit in values["edits"])  # type: ignore[attr-defined]
    values["details"] = tuple(values["details"])  # type: ignore[arg-type]
    return Finding(**values)  # type: ignore[arg-type]


def _fix(
    path: Path, data: bytes, shown: str, found: list[Finding], wanted: frozenset[str]
) -> tuple[list[Finding], int]:
    """Edit the file until nothing certain is left; what remains to be reported, and how much was mended."""
    from jax_pmap.files import write_text

    source = decode(data, shown)
    text, mended = source.text, 0
    for _ in range(10):
        text, count = apply_edits(text, found)
        if not count:
            break
        mended += count
        found = [finding for finding in check_text(text, shown) if finding.code in wanted]
    write_text(path, text.encode(source.encoding))
    return found, mended
