"""Axes trees as Python source: `in_axes`, `out_axes`, PartitionSpecs and shardings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jax_pmap.model import Axes, AxesNode


def leaves(axes: Axes) -> Iterator[int | None]:
    """Yield the leaves of an axes tree in source order."""
    if isinstance(axes, AxesNode):
        for child in axes.children:
            yield from leaves(child)
    else:
        yield axes


def used_axes(axes: Axes) -> tuple[int, ...]:
    """Return the distinct batch axes of a tree, ascending."""
    return tuple(sorted({axis for axis in leaves(axes) if axis is not None}))


def collapse(axes: Axes) -> Axes:
    """Return the shortest prefix that means the same: ``{"x": 0, "y": 0}`` becomes ``0``.

    Containers without leaves agree with everything beside them, and become None alone.
    """
    if not isinstance(axes, AxesNode):
        return axes
    found = set(leaves(axes))
    if len(found) <= 1:
        return found.pop() if found else None
    return AxesNode(axes.kind, axes.keys, tuple(map(collapse, axes.children)), axes.type_name)


def tree_source(axes: Axes, leaf: Callable[[int | None], str] = repr) -> str:
    """Write an axes tree as an expression, each leaf as `leaf` writes it.

    Raises:
        ValueError: the tree holds a container of unknown kind.
    """
    if not isinstance(axes, AxesNode):
        return leaf(axes)
    parts = [tree_source(child, leaf) for child in axes.children]
    match axes.kind:
        case "dict":
            return "{" + ", ".join(f"{key}: {part}" for key, part in zip(axes.keys, parts, strict=True)) + "}"
        case "tuple":
            return tuple_source(parts)
        case "list":
            return f"[{', '.join(parts)}]"
        case "namedtuple" | "dataclass":
            fields = ", ".join(f"{key}={part}" for key, part in zip(axes.keys, parts, strict=True))
            return f"{axes.type_name.partition(':')[2]}({fields})"
        case kind:
            raise ValueError(f"unknown container kind {kind!r}")


def tuple_source(parts: list[str]) -> str:
    """Write a tuple display, with the comma that a single element needs."""
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def spec_source(axis: int | None, spec: str = "P", axis_constant: str = "AXIS") -> str:
    """Write the PartitionSpec of one leaf: ``P(None, AXIS)`` for batch axis 1, ``P()`` for None."""
    if axis is None:
        return f"{spec}()"
    return f"{spec}({', '.join(['None'] * axis + [axis_constant])})"


def in_module(axes: Axes, module: str) -> Axes:
    """The tree with the classes of the program that ran as `module` has them, which is its file."""
    if not isinstance(axes, AxesNode):
        return axes
    home, colon, name = axes.type_name.partition(":")
    return AxesNode(
        axes.kind,
        axes.keys,
        tuple(in_module(child, module) for child in axes.children),
        f"{module if home == '__main__' else home}{colon}{name}",
    )


def type_imports(axes: Axes) -> tuple[tuple[str, str], ...]:
    """Return the (module, name) pairs that `tree_source` needs imported, sorted."""
    if not isinstance(axes, AxesNode):
        return ()
    pairs = {pair for child in axes.children for pair in type_imports(child)}
    if axes.type_name:
        module, _, qualname = axes.type_name.partition(":")
        pairs.add((module, qualname.partition(".")[0]))
    return tuple(sorted(pairs))
