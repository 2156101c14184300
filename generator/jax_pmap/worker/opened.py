"""The files that are read in this process: what an answer depends on, beside what is imported."""

import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

#: What is no file of anybody's, and another one each time.
_VOLATILE = ("/dev/", "/proc/", "/sys/")
_paths: set[str] = set()
#: Modules that an `import` asked for.
_asked: set[str] = set()


@functools.cache
def watch() -> None:
    """Note from now on what Python code opens; libraries that open files by themselves are not seen."""
    # Once: a hook stays for good, in processes that are forked, too.
    sys.addaudithook(_note)


def opened() -> list[str]:
    """The files that were opened for reading, or looked for: those that are not there, too.

    Code that falls back on something else without one is other code as soon as there is one.
    """
    found = {*_paths, *(path for name in list(_asked) for path in _missing(name))}
    return [path for path in sorted(found) if not path.startswith(_VOLATILE) and not os.path.isdir(path)]


def _missing(name: str) -> Iterator[str]:
    """Where the source of a module would be that was asked for and is not there."""
    if name in sys.modules:
        return
    package, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else sys.path
    for folder in folders:
        for file in (f"{last}.py", os.path.join(last, "__init__.py")):
            path = os.path.abspath(os.path.join(folder, file))
            if not os.path.exists(path):
                yield path


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import":
        _asked.add(arguments[0])
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
