"""The functions around tapped code, tapped themselves, each in the namespace of its own module."""

import importlib
import types
from typing import Any

from .protocol import Around


def furnish(scope: dict[str, Any], around: Around, shared: dict[str, Any]) -> None:
    """Define in `scope`, the namespace of the target's module, the functions it calls.

    `shared` is put into the namespaces of the other modules.
    """
    exec(around.prelude, scope)
    spaces = {"": scope}
    for module, code in around.elsewhere.items():
        spaces[module] = {**vars(importlib.import_module(module)), **shared}
        exec(code, spaces[module])
    for into, called, module, name in around.exports:
        place(spaces[into], called.split("."), spaces[module][name])


def place(space: dict[str, Any], path: list[str], value: Any) -> None:
    """Bind ``a.b.f`` in a namespace; the modules on the way are copied, the user's own stay as they are."""
    head, *rest = path
    if not rest:
        space[head] = value
        return
    copy = types.ModuleType(head)
    vars(copy).update(vars(space[head]))
    place(vars(copy), rest, value)
    space[head] = copy
