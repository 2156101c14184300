"""What `check` reports: findings with a place, a way out and, where the cure is certain, its edits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jax_pmap.model import Span


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a text: characters `start` to `end` (offsets) become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one place."""

    code: str
    #: One or two sentences: what was found, what was expected. Names in backticks.
    message: str
    #: What to write or type instead.
    hint: str
    span: Span
    #: The edits that mend it; empty where the cure is not certain.
    edits: tuple[Edit, ...] = ()
    #: Longer material, such as a traceback or the two sides of a comparison.
    details: tuple[str, ...] = ()
    #: Stable over moves of the line; set by `with_fingerprints`.
    fingerprint: str = ""

    @property
    def fixable(self) -> bool:
        """Whether ``--fix`` mends it by editing the text."""
        return bool(self.edits)


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """By file, place and code."""
    return sorted(findings, key=lambda f: (f.span.file, f.span.line, f.span.column, f.code, f.message))


def fingerprints(findings: Iterable[Finding], lines: Mapping[str, list[str]]) -> dict[int, str]:
    """A fingerprint per index of `findings`, from what the line says and not from where it stands.

    Args:
        findings: in the order of their places.
        lines: file -> its lines; a file that is not there counts as empty.
    """
    seen: dict[str, int] = {}
    out = {}
    for index, finding in enumerate(findings):
        text = lines.get(finding.span.file, [])
        line = text[finding.span.line - 1].strip() if 0 < finding.span.line <= len(text) else ""
        base = f"{finding.code}\0{finding.span.file}\0{' '.join(line.split())}"
        seen[base] = seen.get(base, 0) + 1
        out[index] = hashlib.sha256(f"{base}\0{seen[base]}".encode()).hexdigest()[:16]
    return out


def apply_edits(text: str, findings: Iterable[Finding]) -> tuple[str, int]:
    """`text` with the edits of all findings made that do not overlap, and how many findings that mended.

    Edits that are equal in two findings (an import both need) are made once.
    """
    made: list[Edit] = []
    mended = 0
    for finding in findings:
        new = [edit for edit in finding.edits if edit not in made]
        if finding.edits and not any(_overlap(edit, other) for edit in new for other in made):
            made += new
            mended += 1
    for edit in sorted(made, key=lambda e: (e.start, e.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, mended


def _overlap(left: Edit, right: Edit) -> bool:
    return (left.start < right.end and right.start < left.end) or left.start == right.start
