"""JP106: one key for all devices."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.worker.scopes import Function


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Draws in the shape of a device's share from a key that is the same on all devices."""
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.function is None or _tells_devices_apart(mappings, mapping.function.node):
            continue
        axis = mapping.axis if isinstance(mapping.axis, str) else "batch"
        unnamed = mapping.axis is None
        for draw in events(mappings, mapping).draws:
            if draw.call in seen:
                continue
            seen.add(draw.call)
            yield module.finding(
                "JP106",
                draw.call,
                f"`{draw.key}` is the same key on all devices: every device draws the same numbers for its "
                "share",
                (f'Give the map an axis to name, `axis_name="{axis}"`. ' if unnamed else "")
                + f"Make it differ: `{draw.key} = jax.random.fold_in({draw.key}, "
                f'jax.lax.axis_index("{axis}"))`',
            )


def _tells_devices_apart(mappings: Mappings, function: Function) -> bool:
    return any(
        collective.name == "axis_index"
        for node in mappings.reachable(function)
        for collective in mappings.collectives(node)
    )
