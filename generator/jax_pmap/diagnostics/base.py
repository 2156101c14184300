"""The record every diagnostic file fills."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One refusal code at length: what `jax-pmap explain` prints and the docs page shows.

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
