"""From an equation back to the user's expression that it came from."""

import functools
import os
from typing import Any

from ..protocol import Place

#: Folders of which no frame is the user's: jax itself and this worker.
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@functools.lru_cache(maxsize=1 << 14)
def is_users(file: str) -> bool:
    """Whether a file is neither jax's, nor ours, nor made up (``<string>``)."""
    return (
        not file.startswith((OURS, "<frozen"))
        and f"{os.sep}jax{os.sep}_src{os.sep}" not in file
        and f"{os.sep}jax{os.sep}" not in file.rpartition("site-packages")[2][:5]
    )


def frames(equation: Any) -> list[Place]:
    """Places that led to an equation, the innermost first; frames of jax and of this worker left out."""
    from jax._src import source_info_util

    traceback = getattr(equation.source_info, "traceback", None)
    if traceback is None:
        return []
    try:
        found = list(source_info_util.user_frames(traceback))
    except Exception:
        found = list(source_info_util.user_frames(equation.source_info))
    return [
        Place(f.file_name, f.start_line, f.start_column, f.end_line, f.end_column)
        for f in found
        if is_users(f.file_name)
    ]
