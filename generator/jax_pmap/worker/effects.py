"""Calls back to Python that a traced function makes for their effect."""

import os
from collections.abc import Iterator
from typing import Any

from .capture import INSTALLED
from .work import jaxprs

OURS = os.path.dirname(os.path.abspath(__file__))
#: What users call, by primitive; an older jax prints by a callback.
CALLBACKS = {
    "debug_callback": "jax.debug",
    "debug_print": "jax.debug.print",
    "io_callback": "io_callback",
}


def callbacks(jaxpr: Any, seen: set[tuple[str, str, int]] | None = None) -> Iterator[dict[str, Any]]:
    """Each place that calls back: what is called there (``what``), ``file`` and ``line``."""
    seen = set() if seen is None else seen
    for equation in jaxpr.eqns:
        what = CALLBACKS.get(equation.primitive.name)
        if what is not None:
            file, line = place_of(equation)
            if (what, file, line) not in seen:
                seen.add((what, file, line))
                yield {"what": what, "file": file, "line": line}
        for value in equation.params.values():
            for inner in jaxprs(value):
                yield from callbacks(inner, seen)


def place_of(equation: Any) -> tuple[str, int]:
    """The innermost line of the user's that an equation comes from; ``("", 0)`` where none is known."""
    trace = getattr(equation.source_info, "traceback", None)
    for frame in getattr(trace, "frames", ()):
        if not INSTALLED.search(frame.file_name) and not frame.file_name.startswith((OURS, "<")):
            return frame.file_name, frame.line_num
    return "", 0
