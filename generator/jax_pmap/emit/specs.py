"""Where arrays lie on a mesh, as a table by the ends of their paths, which emitted code looks them up in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax_pmap.emit.axes import tuple_source
from jax_pmap.leaf_paths import keys_of
from jax_pmap.model import Argument, Leaf, Plan, Role, Spec

#: What the result is called in paths of the table.
RESULT = "result"


def placed_arguments(plan: Plan) -> tuple[Argument, ...]:
    """Arguments with arrays that no batch divides and that do not lie whole on every device."""
    return tuple(
        each
        for each in plan.arguments
        if not each.static and any(leaf.spec and leaf.axis is None for leaf in each.leaves)
    )


def spec_table(plan: Plan, *, valued: bool) -> dict[str, Spec]:
    """The spec of every array that is divided, by as much of the end of its path as tells it from others.

    Of arguments of which all is batch, nothing stands in it. `valued` says whether the function returns
    anything besides arguments that it changes in place.
    """
    rows: list[tuple[tuple[str, ...], Spec]] = []
    for argument in plan.arguments:
        if not argument.static and any(leaf.axis is None for leaf in argument.leaves):
            rows += _rows(argument.leaves)
    changed = [argument for argument in plan.arguments if argument.name in plan.mutated]
    first = (RESULT, "0") if changed and valued else (RESULT,)
    rows += _rows(plan.outputs, first)
    for index, argument in enumerate(changed):
        root = (RESULT, *(("1",) if valued else ()), *((str(index),) if len(changed) > 1 else ()))
        rows += _rows(argument.leaves, root)
    table: dict[str, Spec] = {}
    for keys, spec in rows:
        if spec:
            table[_end(keys, spec, rows)] = spec
    return table


def _rows(leaves: Sequence[Leaf], root: tuple[str, ...] | None = None) -> list[tuple[tuple[str, ...], Spec]]:
    """(keys, spec) of arrays; `root` stands in place of the first key."""
    found = []
    for leaf in leaves:
        if leaf.role is not Role.STATIC:
            keys = keys_of(leaf.path)
            found.append((keys if root is None else (*root, *keys[1:]), leaf.spec))
    return found


def _end(keys: tuple[str, ...], spec: Spec, rows: Sequence[tuple[tuple[str, ...], Spec]]) -> str:
    """The shortest end of a path that only arrays with its spec have."""
    for length in range(1, len(keys)):
        end = keys[-length:]
        if all(each == spec for other, each in rows if other[-length:] == end):
            return ".".join(end)
    return ".".join(keys)


def partition_spec(spec: Spec, constants: Mapping[str, str], name: str = "P") -> str:
    """Source of a `PartitionSpec`; `constants` names variables that hold axis names."""

    def axis(each: str) -> str:
        return constants.get(each, f'"{each}"')

    parts = [
        "None" if not names else axis(names[0]) if len(names) == 1 else tuple_source([*map(axis, names)])
        for names in spec
    ]
    return f"{name}({', '.join(parts)})"
