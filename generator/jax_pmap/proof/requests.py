"""What the requests of a proof say of a plan and of the code that was emitted for it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from jax_pmap.emit.bound import emitted_name
from jax_pmap.inputs.module import module_of
from jax_pmap.model import Plan, Role, Source
from jax_pmap.planning.search import Observed
from jax_pmap.reading.target import Target
from jax_pmap.worker import protocol


def batch_size(plan: Plan) -> int:
    """Size of the batch axis in the plan's inputs."""
    for argument in plan.arguments:
        for leaf in argument.leaves:
            if leaf.axis is not None:
                return leaf.shape[leaf.axis]
    return plan.made


def comparison_of(
    plan: Plan, observed: Observed, variant: Mapping[str, str], global_view: bool
) -> protocol.Comparison:
    """What every request of a proof says of the reference."""
    return protocol.Comparison(
        observed.roles.request(),
        chain=tuple((argument, steps_into(where)) for argument, where in plan.chain),
        steps=2,
        overrides=variant,
        global_view=global_view,
        donated=tuple(argument.name for argument in plan.arguments if argument.donated),
    )


def emitted_of(
    target: Target, plan: Plan, code: str, in_place: protocol.InPlace | None = None
) -> protocol.Emitted:
    """What every request of a proof says of the emitted `code`."""
    name = emitted_name(target) if in_place is None else target.facts.name
    return protocol.Emitted(
        code,
        name,
        name + "_parallel",
        str(target.source.path.with_name(f"{name}_parallel.py")),
        plan.axis_name,
        replicated_leaves(plan),
        mesh_of(plan),
        in_place,
        module_of(target.source) if in_place is None and imports_file(code, target.source) else None,
    )


def imports_file(code: str, source: Source) -> bool:
    """Whether an emitted file imports the file of the target."""
    return any(
        source.module in (getattr(node, "module", None), *(each.name for each in node.names))
        for node in ast.parse(code).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def replicated_leaves(plan: Plan) -> tuple[int, ...]:
    """Leaves of the result and of what is changed in place that must be the same on every device."""
    if plan.mesh:
        return ()  # Where each lies on the mesh is compared, and so are copies among those.
    found = [i for i, leaf in enumerate(plan.outputs) if leaf.role is Role.REPLICATED]
    changed = [leaf for each in plan.arguments if each.name in plan.mutated for leaf in each.leaves]
    changes = [i for i, leaf in enumerate(changed, len(plan.outputs)) if leaf.role is not Role.STATIC]
    return (*found, *changes)


def mesh_of(plan: Plan) -> protocol.Mesh | None:
    """The mesh, among how many devices it divides the batch, and where each leaf of the result lies on it.

    Behind the result come leaves of arguments that are changed in place. None stands for what is no array.
    """
    if not plan.mesh:
        return None
    changed = [argument for argument in plan.arguments if argument.name in plan.mutated]
    leaves = [*plan.outputs, *(leaf for argument in changed for leaf in argument.leaves)]
    return protocol.Mesh(
        {axis.name: axis.size for axis in plan.mesh},
        plan.shares or 0,
        plan.axis_name,
        tuple(None if leaf.role is Role.STATIC else leaf.spec for leaf in leaves),
        tuple(
            (leaf.path, dimension)
            for argument in plan.arguments
            for leaf in argument.leaves
            for dimension, names in enumerate(leaf.spec)
            if names and dimension != leaf.axis
        ),
    )


def steps_into(path: str) -> tuple[int | str, ...]:
    """``"[0]['w']"`` as the steps ``(0, "w")``."""
    steps: list[int | str] = []
    for part in path.replace("]", "").split("[")[1:]:
        steps.append(int(part) if part.isdigit() else part.strip("'\""))
    return tuple(steps)
