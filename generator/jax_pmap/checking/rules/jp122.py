"""JP122: `out_axes=None` for a result that differs between devices."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.values import leaves
from jax_pmap.syntax.resolve import returned_by


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Functions that return what they made of their share, with `out_axes=None`."""
    for mapping in mappings.pmaps:
        node = mapping.application.argument(99, "out_axes")
        if not mapping.is_jax_pmap or mapping.function is None:
            continue
        if not isinstance(node, ast.Constant) or node.value is not None:
            continue
        axes = module.constant(mapping.application.keywords.get("in_axes"))
        if not isinstance(axes, tuple) or None not in axes:
            continue  # it may be copies that are mapped, which are the same on every device
        returned = module.assigned(returned_by(mapping.function.node))
        if returned is None or isinstance(returned, ast.Name | ast.Subscript | ast.arg):
            continue  # the arguments themselves, which may be equal copies
        made = list(leaves(events(mappings, mapping).result))
        shares = {name for each in made for name in each.shares} - {"axis_index"}
        unread = (gradient.loss is None or not gradient.local for each in made for gradient in each.gradients)
        if not shares or any(each.foreign for each in made) or any(unread):
            continue
        yield module.finding(
            "JP122",
            node,
            f"`out_axes=None` says that the result is the same on every device, but it is made of "
            f"`{min(shares)}` without a collective: the caller gets that of device 0",
            "Apply `jax.lax.pmean` or `psum` to the result, or leave `out_axes` out to get one of each",
        )
