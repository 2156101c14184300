"""A tree whose arrays have other places in two versions of a function: renamed, nested, in another order."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from . import load, protocol
from .examples import describe
from .leaves import leaf_paths
from .protocol import Problem
from .server import describe_exception, summary
from .target import become, current


@dataclasses.dataclass(frozen=True)
class Renaming:
    """``{"w": a, "b": c}`` and ``{"dense": {"bias": c, "kernel": a}}``."""

    old: Any
    new: Any
    #: For each leaf of the new tree, its index in the old one.
    places: tuple[int, ...]

    def forward(self, tree: Any) -> Any:
        """Every part of `tree` that is made like the old one, as the new one."""
        return self._moved(tree, self.old, self.new, self.places)

    def back(self, tree: Any) -> Any:
        """The reverse."""
        places = tuple(self.places.index(place) for place in range(len(self.places)))
        return self._moved(tree, self.new, self.old, places)

    @staticmethod
    def _moved(tree: Any, before: Any, after: Any, places: tuple[int, ...]) -> Any:
        def is_one(node: Any) -> bool:
            return bool(jax.tree.structure(node) == before)

        def move(node: Any) -> Any:
            leaves = jax.tree.leaves(node)
            return after.unflatten([leaves[place] for place in places]) if is_one(node) else node

        return jax.tree.map(move, tree, is_leaf=is_one)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of old trees, called with new ones; it returns new ones."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.back((args, kwargs))
            return self.forward(function(*args, **kwargs))

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
    places = tuple(index[id(leaf)] for leaf in new_leaves)
    if sorted(places) != list(range(len(leaves))):
        paths = leaf_paths(value)
        lost = next((paths[at] for at in range(len(leaves)) if places.count(at) != 1), "")
        raise Problem("inputs", f"`{name}` does not have `{argument}{lost}` once in its result")
    return Renaming(old, new, places)


def _own(leaf: Any) -> Any:
    """A copy of an array of NumPy; anything else as it is."""
    return leaf.copy() if hasattr(leaf, "copy") and hasattr(leaf, "dtype") else leaf
