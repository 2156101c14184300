"""Which primitives are jax's own. One that the user made may have the name of one of them, and be another."""

import functools
import sys
from collections.abc import Iterator
from typing import Any

from jax.extend.core import Primitive

#: Packages whose primitives are what their names say: ours has marks.
PACKAGES = ("jax", "jaxlib", __name__.partition(".")[0])
#: Primitives that were found in these packages, by their ids.
_FOUND: dict[int, Primitive] = {}


def _primitives() -> Iterator[Primitive]:
    """The primitives that stand in the modules that are loaded."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            yield from (each for each in list(vars(module).values()) if isinstance(each, Primitive))


@functools.cache
def is_foreign(primitive: Any) -> bool:
    """Whether a primitive is none of jax's own: one that was bound stands in a module that is loaded."""
    if id(primitive) not in _FOUND:
        _FOUND.update((id(each), each) for each in _primitives())
    return isinstance(primitive, Primitive) and id(primitive) not in _FOUND


def names() -> frozenset[str]:
    """The names of jax's own."""
    return frozenset(each.name for each in _FOUND.values())
