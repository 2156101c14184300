"""JP103: a collective without an axis."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Collectives that name no axis, and mapped functions whose collectives' axis nobody names."""
    for collective in mappings.collectives(module.tree):
        if collective.axis_node is None:
            yield module.finding(
                "JP103",
                collective.call,
                f"`{collective.name}` is called without an axis name, which is a TypeError",
                f'Name the axis of the map around: `{collective.name}(..., axis_name="batch")`',
            )
    for mapping in mappings.pmaps:
        if mapping.function is None or mapping.axis is not None or not mapping.is_jax_pmap:
            continue
        function = mapping.function.node
        if len(mappings.of(function)) != 1 or _is_mapped_around(mappings, mapping):
            continue
        bound = {other.axis for other in mappings.all if function in module.ancestors(other.node)}
        if any(not isinstance(axis, str | None) for axis in bound):
            continue
        wanted = {
            collective.axis: collective
            for collective in reversed(list(mappings.collectives(function)))
            if isinstance(collective.axis, str) and collective.axis not in bound | mappings.mesh_axes
        }
        if not wanted:
            continue
        axis, collective = next(iter(wanted.items()))
        yield module.finding(
            "JP103",
            collective.call,
            f"`{collective.name}` runs over the axis `{axis}`, but `pmap` is given no `axis_name`",
            f'Name it where the function is mapped: `axis_name="{axis}"`',
            _edits(module, mapping, str(axis)) if len(wanted) == 1 else (),
        )


def _is_mapped_around(mappings: Mappings, mapping: Mapping) -> bool:
    """Whether another map may be around this one, and bind the name."""
    assert mapping.function is not None
    return any(
        other is not mapping
        and (
            other.function is None
            or any(
                mapping.node is inner or mapping.function.node is inner
                for node in mappings.reachable(other.function.node)
                for inner in ast.walk(node)
            )
        )
        for other in mappings.all
    )


def _edits(module: Module, mapping: Mapping, axis: str) -> tuple[Edit, ...]:
    node = mapping.node
    if not isinstance(node, ast.Call):
        partial, edits = module.spelled("functools.partial", node)
        return (module.replace(node, f'{partial}({module.segment(node)}, axis_name="{axis}")'), *edits)
    if mapping.application.factory or not node.args:
        return ()
    last = max(
        (*node.args, *(k.value for k in node.keywords)), key=lambda n: (n.end_lineno, n.end_col_offset)
    )
    at = module.bounds(last)[1]
    closing = module.text[at : module.bounds(node)[1] - 1]
    if closing.strip() not in ("", ","):
        return ()
    return (Edit(at, at, f', axis_name="{axis}"'),)
