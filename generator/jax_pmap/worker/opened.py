"""The files that are read in this process: what an answer depends on, beside what is imported."""

import functools
import os
import sys
from typing import Any

#: What is no file of anybody's, and another one each time.
_VOLATILE = ("/dev/", "/proc/", "/sys/")
_paths: set[str] = set()


@functools.cache
def watch() -> None:
    """Note from now on what Python code opens; libraries that open files by themselves are not seen."""
    # Once: a hook stays for good, in processes that are forked, too.
    sys.addaudithook(_note)


def opened() -> list[str]:
    """The files that were opened for reading and are still there."""
    return [path for path in sorted(_paths) if not path.startswith(_VOLATILE) and os.path.isfile(path)]


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    path, _, flags = arguments
    if isinstance(path, int) or flags & os.O_WRONLY:
        return
    try:
        name = os.path.abspath(os.fsdecode(path))
    except (OSError, TypeError, ValueError):
        return  # It cannot be opened either.
    # Compiled code says no more than its source, which is imported.
    if not name.endswith(".pyc"):
        _paths.add(name)
