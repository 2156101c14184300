"""The functions around tapped code, tapped themselves, each in the namespace of its own module."""

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

from .modules import with_copies
from .protocol import COPIES, Around


def furnish(
    scope: dict[str, Any], around: Around, shared: dict[str, Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Define in `scope`, the namespace of the target's module, the functions it calls.

    `shared` is put into the namespaces of the other modules. The target has to run as what is returned
    makes of it, in which the methods of modules that are among these functions run in place of the originals.
    """
    exec(around.prelude, scope)
    spaces = {"": scope}
    for module, code in around.elsewhere.items():
        spaces[module] = {**vars(importlib.import_module(module)), **shared}
        exec(code, spaces[module])
    for into, called, module, name in around.exports:
        place(spaces[into], called.split("."), spaces[module][name])
    copies = {raw: copy for space in spaces.values() for raw, copy in space.get(COPIES, {}).items()}
    return functools.partial(with_copies, copies=copies)


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
