"""JP109: in_axes that does not fit the parameters."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.syntax.resolve import UNKNOWN, FunctionRef
from jax_pmap.worker.scopes import positional


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Lists, and tuples whose length is not that of the parameters."""
    for mapping in mappings.pmaps:
        node = mapping.application.argument(99, "in_axes")
        if not mapping.is_jax_pmap or not isinstance(node, ast.expr):
            continue
        axes = module.assigned(node)
        if isinstance(axes, ast.List):
            edits: tuple[Edit, ...] = ()
            if axes is node and axes.elts:
                inner = ", ".join(module.segment(element) for element in axes.elts)
                edits = (module.replace(node, f"({inner}{',' if len(axes.elts) == 1 else ''})"),)
            yield module.finding(
                "JP109",
                node,
                "`in_axes` is a list, which jax takes for a part of the arguments' structure",
                "Write a tuple, with one entry for each argument",
                edits,
            )
        elif isinstance(axes, ast.Tuple) and mapping.function is not None:
            static = _static(module, mapping.application.argument(99, "static_broadcasted_argnums"))
            count = _required(mapping.function, len(axes.elts))
            if static is None or count is None or mapping.application.open:
                continue
            dynamic = [index for index in range(count) if index not in static]
            if static and dynamic and len(axes.elts) <= max(dynamic):
                yield module.finding(
                    "JP109",
                    node,
                    f"`in_axes` has {len(axes.elts)} entries for {count} arguments: static ones need a "
                    "place too",
                    f"Put `None` at position {min(static)}, where the static argument is",
                )
            elif not static and len(axes.elts) != count:
                yield module.finding(
                    "JP109",
                    node,
                    f"`in_axes` has {len(axes.elts)} entries for {count} arguments",
                    "Write one entry for each argument, `None` for those that all devices get whole",
                )


def _static(module: Module, node: object) -> set[int] | None:
    """Positions of the static arguments, None where they cannot be told."""
    if node is None:
        return set()
    value = module.constant(node) if isinstance(node, ast.AST) else UNKNOWN
    values = value if isinstance(value, tuple) else (value,)
    positions = {each for each in values if isinstance(each, int) and each >= 0}
    return positions if len(positions) == len(values) else None


def _required(reference: FunctionRef, given: int) -> int | None:
    """How many arguments a call has; with defaults, the number nearest to `given` that is possible."""
    arguments = reference.node.args
    if arguments.vararg is not None or reference.keywords:
        return None
    most = len(positional(reference.node)) - reference.bound
    least = most - len(arguments.defaults)
    return min(max(given, least), most) if least >= 0 else None
