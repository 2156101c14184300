"""A tree whose arrays have other places in two versions of a function: renamed, nested, in another order."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from . import load, protocol
from .examples import describe
from .exceptions import describe_exception, summary
from .leaves import leaf_paths, shape_of
from .protocol import Problem
from .target import become, current


@dataclasses.dataclass(frozen=True)
class Renaming:
    """``{"w": a, "b": c}`` and ``{"dense": {"bias": c, "kernel": a}}``."""

    old: Any
    new: Any
    #: For each leaf of the new tree, its index in the old one.
    places: tuple[int, ...]
    #: The shapes of the leaves of the old tree.
    shapes: tuple[tuple[int, ...], ...]

    def forward(self, arguments: Any) -> Any:
        """Every part of arguments, by name, that is made like the old tree, as the new one.

        An argument itself is held to the shapes of the tree as well: a pair of arrays may be parameters, and
        a batch too. Inside of one, as in the state of an optimiser, shapes may be others.
        """
        return self._moved(arguments, self.old, self.new, self.places, self._fits(self.shapes))

    def results(self, tree: Any) -> Any:
        """As `forward`, of results: of arrays with more axes, a gradient for each example, and no other."""
        return self._moved(tree, self.old, self.new, self.places, self._fits(self.shapes, None))

    def back(self, arguments: Any, count: int = 0) -> Any:
        """The reverse of `forward`; every array may have a copy for each of `count` devices."""
        places = tuple(self.places.index(place) for place in range(len(self.places)))
        fits = self._fits([self.shapes[place] for place in self.places], count)
        return self._moved(arguments, self.new, self.old, places, fits)

    @staticmethod
    def _fits(shapes: Sequence[tuple[int, ...]], count: int | None = 0) -> Callable[[Any], bool]:
        """Whether leaves have `shapes`, or those behind an axis of `count`; behind any axes, for None."""

        def fits(leaves: Any) -> bool:
            found = [shape_of(leaf) for leaf in leaves]
            if not found:
                return True
            more = len(found[0]) - len(shapes[0])
            before = found[0][: max(more, 0)]
            allowed = count is None or before in ((), (count,))
            return allowed and all(one == (*before, *own) for one, own in zip(found, shapes, strict=True))

        return fits

    @staticmethod
    def _moved(
        tree: Any, before: Any, after: Any, places: tuple[int, ...], fits: Callable[[Any], bool]
    ) -> Any:
        outer = [tree]
        if type(tree) in (dict, list, tuple):
            outer += tree.values() if isinstance(tree, dict) else tree
        known = {id(node) for node in outer}

        def is_one(node: Any) -> bool:
            leaves, structure = jax.tree.flatten(node)
            return bool(structure == before) and (id(node) not in known or fits(leaves))

        def move(node: Any) -> Any:
            if not is_one(node):
                return node
            leaves = jax.tree.leaves(node)
            return after.unflatten([leaves[place] for place in places])

        return jax.tree.map(move, tree, is_leaf=is_one)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of old trees, called with new ones; it returns new ones."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.results(function(*self.back(args), **self.back(kwargs)))

        return call


def rename(request: protocol.Rename) -> protocol.Renamed:
    """Have the reference take and return the trees that the user's function makes of its own.

    Raises:
        Problem: ``"inputs"``, it is no function, fails, or does not only move arrays.
    """
    target = current()
    function = load.resolve(request.reference, request.directory, request.file)
    if not callable(function):
        raise Problem("inputs", f"`{request.reference}` is a {type(function).__name__}, not a function")
    names = [request.argument] if request.argument else [n for n, v in target.data[0].items() if has_tree(v)]
    failed: Problem | None = None
    for name in names:
        try:
            renaming = found(request.reference, function, name, target.data[0][name])
        except Problem as problem:
            failed = failed or problem
            continue
        hold_places(request.reference, function, name, renaming, [values[name] for values in target.data])
        data = tuple(renaming.forward(values) for values in target.data)
        called = None if target.called is None else renaming.forward(target.called)
        fn = renaming.around(target.fn)
        become(dataclasses.replace(target, fn=fn, data=data, called=called, renaming=renaming))
        return protocol.Renamed(name, describe(data[0]))
    raise failed or Problem("inputs", "no argument of the reference is a tree of arrays")


def has_tree(value: Any) -> bool:
    """Whether a value is a container with leaves in it."""
    structure = jax.tree.structure(value)
    return structure.num_leaves > 0 and not jax.tree_util.treedef_is_leaf(structure)


def found(name: str, function: Callable[..., Any], argument: str, value: Any) -> Renaming:
    """What `function` does to a value.

    Raises:
        Problem: ``"inputs"``, as `rename`.
    """
    leaves, old = jax.tree.flatten(value)
    new, places = _places(name, function, argument, value)
    if sorted(places) != list(range(len(leaves))):
        paths = leaf_paths(value)
        lost = next((paths[at] for at in range(len(leaves)) if places.count(at) != 1), "")
        raise Problem("inputs", f"`{name}` does not have `{argument}{lost}` once in its result")
    return Renaming(old, new, places, tuple(map(shape_of, leaves)))


def hold_places(
    name: str, function: Callable[..., Any], argument: str, renaming: Renaming, values: Sequence[Any]
) -> None:
    """Have `function` move other arrays to the same places: the `values`, and ones in either order of size.

    Raises:
        Problem: ``"inputs"``, where they go depends on the numbers in them.
    """
    alike = [value for value in values if jax.tree.structure(value) == renaming.old]
    leaves, made = jax.tree.leaves(values[0]), list[Any]()
    for step in (1, -1):
        numbers = range(len(leaves))[::step]
        made.append(renaming.old.unflatten([_full(x, n) for x, n in zip(leaves, numbers, strict=True)]))
    for value in (*alike, *made):
        try:
            places = _places(name, function, argument, value)
        except Problem:
            continue  # It may take no such numbers.
        if places != (renaming.new, renaming.places):
            raise Problem(
                "inputs",
                f"`{name}` puts the arrays of `{argument}` in other places where their numbers are others",
            )


def _places(
    name: str, function: Callable[..., Any], argument: str, value: Any
) -> tuple[Any, tuple[int, ...]]:
    """What `function` makes of a tree, and for each leaf of that its index in the tree.

    Raises:
        Problem: ``"inputs"``, it fails, or one of them is none of the tree.
    """
    leaves, old = jax.tree.flatten(value)
    # Each an object of its own, to be known again.
    marked = [jax.numpy.array(leaf) if isinstance(leaf, jax.Array) else _own(leaf) for leaf in leaves]
    try:
        made = function(old.unflatten(marked))
    except MemoryError:
        raise
    except BaseException as error:
        said = f"`{name}` fails on `{argument}` of the reference: {summary(error)}"
        raise Problem("inputs", said, error=describe_exception(error)) from error
    new_leaves, new = jax.tree.flatten(made)
    index = {id(leaf): place for place, leaf in enumerate(marked)}
    for path, leaf in zip(leaf_paths(made), new_leaves, strict=True):
        if id(leaf) not in index:
            raise Problem(
                "inputs", f"`{name}` does not only move arrays: `{path}` of its result is another one"
            )
    return new, tuple(index[id(leaf)] for leaf in new_leaves)


def _full(leaf: Any, number: int) -> Any:
    """An array of numbers with this one everywhere; anything else as it is."""
    is_number = getattr(getattr(leaf, "dtype", None), "kind", "") in ("f", "i", "u", "c")
    return np.full(shape_of(leaf), number, leaf.dtype) if is_number else leaf


def _own(leaf: Any) -> Any:
    """A copy of an array of NumPy; anything else as it is."""
    return leaf.copy() if hasattr(leaf, "copy") and hasattr(leaf, "dtype") else leaf
