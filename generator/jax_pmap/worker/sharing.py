"""Objects of Flax NNX that the arguments reach by more than one way: one object after the call, too.

jax takes every argument apart as a tree, where one object becomes two. Whatever is put together from leaves
is therefore joined again, as `nnx.jit` does: ``optimizer.model = model``.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax

from .leaves import is_graph_node, object_type
from .protocol import Problem

#: (place, the place before it that holds the same object) of the inputs at hand, as Python source.
PLACES: list[tuple[str, str]] = []


def note(values: Mapping[str, Any]) -> None:
    """Find the objects that `values` hold at more than one place, to be joined from now on.

    Raises:
        Problem: ``"graph"``, with the place of an object that is no pytree, or that no assignment could join.
    """
    PLACES.clear()
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    seen: dict[int, str] = {}
    for name, value in values.items():
        _walk(nnx, name, value, None, seen)


def _walk(nnx: Any, place: str, node: Any, around: Any, seen: dict[int, str]) -> None:
    if is_graph_node(node):
        if id(node) in seen:
            if not isinstance(around, (object_type(nnx), dict, list, type(None))):
                raise Problem("graph", place, name=seen[id(node)], type=type(node).__name__)
            PLACES.append((place, seen[id(node)]))
            return
        seen[id(node)] = place
    if isinstance(node, nnx.Variable):
        return
    paths, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda inner: inner is not node)
    for path, child in paths:
        if path:
            _walk(nnx, place + jax.tree_util.keystr(path), child, node, seen)
        elif isinstance(node, (nnx.Module, nnx.Optimizer)):
            raise Problem("graph", place, type=type(node).__name__)


def concerned() -> frozenset[str]:
    """The arguments that are joined with others, or within."""
    return frozenset(_argument(place) for pair in PLACES for place in pair)


def join(values: dict[str, Any]) -> dict[str, Any]:
    """`values`, whose objects are changed so that every place holds the one that the inputs had there."""
    for place, other in PLACES:
        exec(f"{place} = {other}", {}, values)
    return values


def _argument(place: str) -> str:
    return place.partition(".")[0].partition("[")[0]
