"""What tapped code calls while it is traced: every value that passes is marked, and noted with its form."""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.export import is_symbolic_dim

from .arguments import Values, invoke
from .functions import guarded, in_place_of, named, unwrapped
from .leaves import acts, category, name_of, skeleton, with_paths
from .marks import mark

#: The name tapped code calls; the generator's weaver writes it.
RECORDER = "__jax_pmap__"
#: Bytes up to which an array of numpy is copied where it is met.
COPIED = 1 << 20


def largest(events: Sequence[Mapping[str, Any]]) -> int:
    """Elements of the largest array in `events`."""
    return max((math.prod(leaf.get("shape", ())) for event in events for leaf in event["leaves"]), default=0)


class Recorder:
    """Collects what tapped code passes through it while a function is traced.

    Args:
        results: points of the returned values, whose containers are always wanted.
        mutated: arguments that the function changes in place, recorded after it as points -1, -2, …
    """

    def __init__(self, results: Sequence[int] = (), mutated: Sequence[str] = ()) -> None:
        self.mutated = tuple(mutated)
        self.results = frozenset(results)
        #: Elements of a value at which a trace ends: a collective in a loop may multiply it each time.
        self.most: int | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything; called at the start of every trace."""
        self.events: list[dict[str, Any]] = []
        #: Arrays that are known while tracing, by the number of the value.
        self.constants: dict[int, Any] = {}
        #: Each value that was marked, with its number and itself as it is handed on, by identity: parameters
        #: pass many points, and are many. It keeps them alive, too: jax drops equations nobody refers to.
        self.marked: dict[int, tuple[Any, int, Any]] = {}
        self.numbers = itertools.count()
        self.reached: set[int] = set()
        #: Methods that objects have in place of one that has a copy: its scope, and their name.
        self.others: set[tuple[int, str]] = set()

    def tap(self, point: int, value: Any) -> Any:
        """Record `value` as seen at `point` and hand it on, with a mark on each array in it.

        The mark is on what is handed on where that is an array, or tuples of arrays; a list, a dict or an
        object is handed on itself, since the function may change it later.
        """
        leaves, handed = [], []
        paths, tree = with_paths(value)
        for path, leaf in paths:
            # The shape of an array is none; only inputs may be known by theirs.
            kind = "opaque" if isinstance(leaf, jax.ShapeDtypeStruct) else category(leaf)
            if is_symbolic_dim(leaf):
                kind = "int"
            entry: dict[str, Any] = {"path": jax.tree_util.keystr(path), "category": kind}
            passed = leaf
            if kind in ("array", "key"):
                entry["shape"], entry["dtype"] = list(leaf.shape), name_of(leaf.dtype)
                if self.most is not None and leaf.size > self.most:
                    raise OverflowError(f"a value grows to shape {tuple(leaf.shape)}")
                entry["index"], passed = self.number(leaf)
            elif kind != "opaque":
                entry["value"] = leaf
            leaves.append(entry)
            handed.append(passed)
        event: dict[str, Any] = {"point": point, "leaves": leaves}
        if any(where for where, _ in paths) and any(map(acts, jax.tree.leaves(value, is_leaf=acts))):
            event["acts"] = True
        if point in self.results or len(leaves) > 1:
            event["tree"] = skeleton(value)
        self.events.append(event)
        return jax.tree.unflatten(tree, handed) if tree is not None and is_immutable(value) else value

    def before(self, point: int, value: Any) -> Any:
        """Record the operand of the collective at `point`, as `tap` does, and hand it on."""
        handed = self.tap(point, value)
        self.events[-1]["before"] = True
        return handed

    def number(self, leaf: Any) -> tuple[int, Any]:
        """The number of an array, and the array with a mark on it where it is a traced one."""
        if id(leaf) in self.marked:
            _, index, passed = self.marked[id(leaf)]
            return index, passed
        index = next(self.numbers)
        if not isinstance(leaf, jax.core.Tracer):
            if isinstance(leaf, np.ndarray) and leaf.nbytes <= COPIED:
                # What is written into it later is another value.
                self.constants[index] = leaf.copy()
            else:
                self.constants[index] = leaf
                self.marked[id(leaf)] = leaf, index, leaf
            return index, leaf
        passed = mark(leaf, index)
        self.marked[id(passed)] = passed, index, passed
        if passed._trace is leaf._trace:
            # What a loop's body has of the function around it may be marked in that body alone.
            self.marked[id(leaf)] = leaf, index, passed
        return index, passed

    def call(self, fn: Callable[..., Any], signature: inspect.Signature, values: Values) -> None:
        """Run tapped code from the start, and record what it left of the arguments it changes."""
        invoke(fn, signature, values)
        for index, name in enumerate(self.mutated):
            self.tap(-1 - index, values[name])

    def test(self, point: int, value: Any) -> Any:
        """Record `value` where it is made of Python numbers, as `tap` does, and hand it on."""
        leaves = value if isinstance(value, tuple | list) else [value]
        numbers = all(isinstance(leaf, bool | int | float) or is_symbolic_dim(leaf) for leaf in leaves)
        return self.tap(point, value) if numbers else value

    def reach(self, branch: int) -> None:
        """Note that a branch of the body was entered."""
        self.reached.add(branch)

    def side(self, point: int, value: Any) -> Any:
        """Note that an expression was evaluated, and hand its value on."""
        self.reached.add(point)
        return value

    def guarded(self, scope: int, owner: type, name: str, copy: Any) -> Callable[..., Any]:
        """The copy of a method, that of its class for objects of others, which is noted."""

        def other(receiver: Any) -> Any:
            self.others.add((scope, getattr(getattr(receiver, name), "__qualname__", name)))
            return getattr(receiver, name)

        return guarded(copy, owner, name, other)

    def in_place_of(self, scope: int, given: Any, module: str, name: str, copy: Any) -> Any:
        """The copy of a function of a module that a value holds; another function is noted, and stays."""
        found = in_place_of(given, named(module, name), copy)
        if found is None:
            raw = unwrapped(given)[0]
            self.others.add((scope, type(given).__name__ if raw is None else raw.__qualname__))
        return given if found is None else found


def is_immutable(value: Any) -> bool:
    """Whether a value is an array, or tuples of such: what may be made anew without anybody noticing."""
    if isinstance(value, tuple):
        return all(map(is_immutable, value))
    return value is None or category(value) != "opaque"


def split_axis(whole: Sequence[int], part: Sequence[int], count: int) -> int | None:
    """The axis along which `part` has the shape of one of `count` shares of `whole`, or None."""
    if len(whole) != len(part):
        return None
    axes = [axis for axis, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    return axes[0] if len(axes) == 1 and part[axes[0]] * count == whole[axes[0]] else None
