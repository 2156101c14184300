"""JP104: gradients that differ between devices go into an update."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.gradients import Gradients, gradients, returned_reduction
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.syntax.scopes import Function, names_in, positional


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Updates with gradients that no collective took."""
    replicated = "replicate" in module.text
    seen: set[object] = set()
    for mapping in mappings.pmaps:
        if mapping.function is None or (mapping.axis is None and not replicated):
            continue
        function = mapping.function.node
        if function in seen:
            continue
        seen.add(function)
        for made in gradients(module, mappings, function):
            if (
                made.synced_by
                or made.lost
                or not made.updates
                or _elsewhere(module, mappings, made, function)
            ):
                continue
            if returned_reduction(module, made) is not None:
                continue  # JP105
            if isinstance(made.updates[0], ast.BinOp) and not _of_shares(module, mapping, made):
                continue  # a chain or a member of an ensemble may be each device's own
            name = sorted(made.names)[0]
            axis = f'"{mapping.axis}"' if isinstance(mapping.axis, str) else '"batch"'
            yield module.finding(
                "JP104",
                made.updates[0],
                f"`{name}` is each device's own gradient: the parameters are updated with it before it is "
                "averaged over the devices",
                f"Average it first: `{name} = jax.lax.pmean({name}, axis_name={axis})`",
            )


def _of_shares(module: Module, mapping: Mapping, made: Gradients) -> bool:
    """Whether a gradient is taken with data that is split, beside what it is taken of."""
    reference, application = mapping.function, mapping.application
    if reference is None or application.open:
        return False
    names = positional(reference.node)[reference.bound :]
    node = application.argument(99, "in_axes")
    axes = 0 if node is None else module.constant(node)
    if not isinstance(axes, int | tuple):
        return False
    per_name = dict(zip(names, axes, strict=False)) if isinstance(axes, tuple) else dict.fromkeys(names, axes)
    first, *others = made.call.args
    used = set().union(*(names_in(each) for each in others)) if others else set()
    if made.loss is not None and reference.node in module.ancestors(made.loss.node):
        used |= names_in(made.loss.node)
    return any(isinstance(per_name.get(name), int) for name in used - names_in(first))


def _elsewhere(module: Module, mappings: Mappings, made: Gradients, function: Function) -> bool:
    """Whether a function that the mapped one calls holds a collective, which may be what synchronises."""
    loss = made.loss.node if made.loss is not None else None
    return any(
        node is not function and node is not loss and loss not in set(module.ancestors(collective.call))
        for node in mappings.reachable(function)
        for collective in mappings.collectives(node)
        if function not in module.ancestors(collective.call)
    )
