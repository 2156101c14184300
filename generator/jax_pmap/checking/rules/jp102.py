"""JP102: a collective under a name that no map binds."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Collectives in a mapped function over a name that neither it nor anything around it binds."""
    for mapping in mappings.pmaps:
        if mapping.function is None or not isinstance(mapping.axis, str):
            continue
        function = mapping.function.node
        own = mappings.of(function)
        if any(other.axis is not None and not isinstance(other.axis, str) for other in own):
            continue
        bound = {other.axis for other in own} | mappings.mesh_axes
        around: set[object] = set()
        for other in mappings.all:
            if other in own or other.axis is None:
                continue
            inside = function in module.ancestors(other.node)
            reaches = other.function is None or any(
                node is function or function in module.ancestors(node)
                for node in mappings.reachable(other.function.node)
            )
            if inside or reaches:
                around.add(other.axis)
        if any(not isinstance(axis, str) for axis in around):
            continue
        bound |= {axis for axis in around if isinstance(axis, str)}
        for collective in mappings.collectives(function):
            names = collective.axis if isinstance(collective.axis, tuple) else (collective.axis,)
            unbound = [name for name in names if isinstance(name, str) and name not in bound]
            if not unbound or own[0] is not mapping:
                continue
            yield module.finding(
                "JP102",
                collective.call,
                f"`{collective.name}` runs over the axis `{unbound[0]}`, but the function is mapped over "
                f"`{mapping.axis}`",
                f"Use one name in both: `axis_name={mapping.axis!r}`",
            )
