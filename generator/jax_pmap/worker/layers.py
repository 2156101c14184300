"""Layers of libraries that take statistics of the batch they see, found as the function is traced."""

import contextlib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from .protocol import Layer

OURS = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True)
class Kind:
    """A library's batch normalisation, or another layer with statistics of its batch."""

    module: str
    name: str
    #: Its attribute that names the mapped axes to synchronise over.
    axis: str
    #: The argument of a call that chooses the statistics, also an attribute for its default, and the value
    #: that chooses those of the batch. Without one, every call takes these.
    mode: str
    training: bool
    #: Whether a map inside the user's function has to bind one axis, so that devices need a second one.
    mapped: bool = False

    def of_batch(self, layer: Any, call: inspect.BoundArguments) -> bool:
        """Whether a call normalises by the statistics of its batch, not by those kept."""
        chosen = call.arguments.get(self.mode)
        chosen = getattr(layer, self.mode, None) if chosen is None else chosen
        return bool(chosen) is self.training or bool(call.arguments.get("test_local_stats"))

    def axes(self, layer: Any) -> list[Any]:
        """The axes that a layer synchronises over."""
        named = getattr(layer, self.axis, None)
        return list(named) if isinstance(named, (tuple, list)) else [] if named is None else [named]


KINDS = (
    Kind("flax.linen", "BatchNorm", "axis_name", "use_running_average", False),
    Kind("flax.nnx", "BatchNorm", "axis_name", "use_running_average", False),
    Kind("haiku", "BatchNorm", "cross_replica_axis", "is_training", True),
    Kind("haiku.nets", "VectorQuantizer", "cross_replica_axis", "", False),
    Kind("haiku.nets", "VectorQuantizerEMA", "cross_replica_axis", "", False),
    Kind("equinox.nn", "BatchNorm", "axis_name", "inference", False, mapped=True),
)


def apart_from(rows: Sequence[Layer], bound: Collection[str]) -> list[Layer]:
    """Those of the calls that synchronise over none of the axes `bound`."""
    return [row for row in rows if not set(bound) & set(row.axes)]


@contextlib.contextmanager
def noted(arguments: dict[str, Any], rows: list[Layer]) -> Iterator[None]:
    """While this holds, every call of such a layer is noted in `rows`."""
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            # What is not imported is not used, and importing it here could fail.
            cls = getattr(sys.modules.get(kind.module), kind.name, None)
            if cls is not None and "__call__" in vars(cls):
                stack.enter_context(noting(kind, cls, arguments, rows))
        yield


@contextlib.contextmanager
def noting(kind: Kind, cls: Any, arguments: dict[str, Any], rows: list[Layer]) -> Iterator[None]:
    """While this holds, calls of `cls` are noted in `rows`."""
    saved = vars(cls)["__call__"]

    @functools.wraps(getattr(saved, "method", saved))
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        method = saved.__get__(self, type(self))
        given = inspect.signature(method).bind(*args, **kwargs)
        axes = kind.axes(self)
        if kind.of_batch(self, given):
            rows.append(
                Layer(
                    f"{kind.module}.{kind.name}",
                    path_of(self, cls, arguments),
                    kind.axis,
                    tuple(str(axis) for axis in axes),
                    kind.mapped or bool(axes),
                    tuple(
                        (frame.filename, frame.lineno or 0, frame.name)
                        for frame in traceback.extract_stack()
                        if not frame.filename.startswith(OURS)
                    ),
                )
            )
        return method(*args, **kwargs)

    cls.__call__ = call
    try:
        yield
    finally:
        cls.__call__ = saved


def path_of(layer: Any, cls: Any, arguments: dict[str, Any]) -> str:
    """What users know a layer by: its path in the model, or in the arguments if it is the only one there."""
    scope: Any = getattr(layer, "scope", None)
    if getattr(scope, "path", None):
        return "/".join(map(str, scope.path))
    if isinstance(getattr(layer, "module_name", None), str):
        return str(layer.module_name)
    there = jax.tree_util.tree_leaves_with_path(arguments, is_leaf=lambda node: isinstance(node, cls))
    paths = [path for path, node in there if isinstance(node, cls)]
    return paths[0][0].key + jax.tree_util.keystr(paths[0][1:]) if len(paths) == 1 else ""
