"""Where code comes from: the user's own files, installed packages, Python, or this worker."""

import functools
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

#: Folders of packages and of Python itself, and code of no file.
INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@functools.cache
def is_users(path: str) -> bool:
    """Whether code in this file is the user's own, and not of Python, an installed package or ours."""
    return bool(path) and not INSTALLED.search(path) and not path.startswith(_HERE)


def is_users_object(value: Any) -> bool:
    """Whether a value is a class of the user's own, or an object of one."""
    own = value if isinstance(value, type) else type(value)
    return is_users(file_of(sys.modules.get(own.__module__)))


def namespace_of(module: Any) -> dict[str, Any]:
    """What a module has by name; nothing of what is none.

    No code of the module's runs: a `__getattr__` of its own may answer with anything, and a lazy module
    would be loaded.
    """
    try:
        namespace: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return namespace


def file_of(module: Any) -> str:
    """The file that a module was made of; ``""`` without one."""
    file = namespace_of(module).get("__file__")
    return file if isinstance(file, str) else ""


def loaded() -> Iterator[tuple[dict[str, Any], str]]:
    """What all modules have by name that are imported now and were made of a file, each with that file."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and (file := file_of(module)):
            yield namespace_of(module), file


def users_modules() -> Iterator[tuple[dict[str, Any], str]]:
    """That of the user's own."""
    return ((namespace, file) for namespace, file in loaded() if is_users(file))
