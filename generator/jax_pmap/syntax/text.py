"""The target's own lines, cut out of its file: what is woven, observed and hashed."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from jax_pmap.syntax.parse import ParsedSource


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
    #: What the file has in its place, where the definition only calls that.
    forwards: str = ""
    #: What the names stand for that it calls: ``{"sm": "jax.nn.softmax"}``.
    called: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of what the file has under the function's name."""
        return hashlib.sha256((self.forwards or self.text).encode()).hexdigest()[:16]


def in_one_line(source: str) -> str:
    """Source with its line breaks and indentation gone, as a call over several lines is told by.

    Not to be run: spaces inside strings go as well.
    """
    return " ".join(source.split())


def function_text(parsed: ParsedSource) -> FunctionText:
    """Cut the target out of its file."""
    node = parsed.definition
    return FunctionText(
        text=_dedented(parsed),
        line=node.lineno,
        indent=node.col_offset,
        shown_path=parsed.source.shown_path,
        forwards=parsed.source.forwards,
        called=_called(parsed),
    )


def _dedented(parsed: ParsedSource) -> str:
    """The lines of the definition, moved to the left but for what stands inside strings."""
    node = parsed.definition
    inside: set[int] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr) or (
            isinstance(each, ast.Constant) and isinstance(each.value, str | bytes)
        ):
            inside.update(range(each.lineno + 1, (each.end_lineno or each.lineno) + 1))
    margin = node.col_offset
    lines = []
    for number, line in enumerate(parsed.lines[node.lineno - 1 : node.end_lineno], start=node.lineno):
        # A comment, or a line that goes on inside brackets, may stand further left.
        indent = len(line) - len(line.lstrip())
        lines.append(line if number in inside else line[min(margin, indent) :])
    return "\n".join(lines) + "\n"


def _called(parsed: ParsedSource) -> dict[str, str]:
    """What the names stand for that the target calls: as they are written where imports leave that open."""
    found: dict[str, set[str]] = {}
    for call in parsed.calls(parsed.definition):
        written = ast.unparse(call.func)
        if name := parsed.qualname(call.func) or (written if parsed.is_imported(call.func) else ""):
            found.setdefault(written, set()).add(name)
    return {written: names.pop() if len(names) == 1 else written for written, names in found.items()}
