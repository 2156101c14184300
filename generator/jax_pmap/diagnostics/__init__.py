"""Every code, one file each (`jpNNN.toml`), found by name: adding a file registers it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One code at length: what `jax-pmap explain` prints and the docs page shows.

    Prose fields are plain text with Markdown code spans; a blank line starts a new paragraph.
    """

    #: ``"JP043"``.
    code: str
    #: A noun phrase, lower case, no full stop.
    title: str
    #: 1: the answer is no. 2: the question could not be asked.
    exit_code: int
    #: What the tool saw.
    meaning: str
    #: Why going on would be wrong.
    why: str
    #: What to do now.
    cure: str
    #: A file (or a shell session) that triggers the code.
    example: str
    #: The command run on `example`; empty when the example is itself a shell session.
    command: str = ""
    #: What to write or type instead; empty where there is no other way to write it.
    fixed: str = ""
    #: What `fixed` is: ``"python"`` or ``"console"``.
    fixed_language: str = "python"

    @property
    def example_language(self) -> str:
        """``"python"`` for a file, ``"console"`` for a shell session."""
        return "python" if self.command else "console"


def codes() -> tuple[str, ...]:
    """All registered codes, in order."""
    return tuple(sorted(path.stem.upper() for path in _FOLDER.glob("jp*.toml")))


def find(code: str) -> Diagnostic | None:
    """The diagnostic registered as `code` (``"JP043"``), or None. Reads that one file only."""
    import tomllib

    if code not in codes():
        return None
    fields = tomllib.loads((_FOLDER / f"{code.lower()}.toml").read_text(encoding="utf-8"))
    for prose in ("meaning", "why", "cure"):
        paragraphs = fields[prose].split("\n\n")
        fields[prose] = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    return Diagnostic(code, **fields)


def exit_code(code: str) -> int:
    """Exit status of a refusal with `code`: 1 for "no", 2 for "could not ask".

    Raises:
        KeyError: `code` is not registered.
    """
    diagnostic = find(code)
    if diagnostic is None:
        raise KeyError(code)
    return diagnostic.exit_code


def nearest(text: str) -> str | None:
    """The code a person most likely meant by `text` (``jp43``, ``43``, ``JP0430``), or None."""
    import difflib

    known = codes()
    digits = re.sub(r"\D", "", text)
    if digits and f"JP{int(digits):03d}" in known:
        return f"JP{int(digits):03d}"
    matches = difflib.get_close_matches(text.upper(), known, n=1, cutoff=0.85)
    return matches[0] if matches else None
