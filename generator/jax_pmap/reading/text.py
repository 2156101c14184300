"""The target's own lines, cut out of its file: what is woven, observed and hashed."""

from __future__ import annotations

import hashlib
import textwrap
from dataclasses import dataclass

from jax_pmap.reading.parse import ParsedSource


@dataclass(frozen=True, slots=True)
class FunctionText:
    """A function definition without its decorators, dedented, and where it stands in its file."""

    text: str
    #: Line of ``def`` in the file, counting from 1.
    line: int
    #: Columns the definition is indented by.
    indent: int
    #: Path as shown to people.
    shown_path: str

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def function_text(parsed: ParsedSource) -> FunctionText:
    """Cut the target out of its file."""
    node = parsed.definition
    body = "\n".join(parsed.lines[node.lineno - 1 : node.end_lineno]) + "\n"
    return FunctionText(
        text=textwrap.dedent(body) if node.col_offset else body,
        line=node.lineno,
        indent=node.col_offset,
        shown_path=parsed.source.shown_path,
    )
