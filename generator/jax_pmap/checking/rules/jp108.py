"""JP108: a mesh context around pmap."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Calls of pmapped functions below `jax.set_mesh`, or on arrays placed with a mesh of `jax.make_mesh`."""
    if not mappings.pmaps:
        return
    for call in module.calls(module.tree):
        mapping = mappings.pmap_at(call.func)
        if mapping is None or not mapping.is_jax_pmap:
            continue
        if _below_set_mesh(module, call):
            yield module.finding(
                "JP108",
                call,
                f"`{module.segment(call.func)}` is mapped with `pmap` and called under `jax.set_mesh`, "
                "which raises an error about a context mesh",
                "Call it outside that block; `pmap` makes a mesh of its own",
            )
        elif any(_placed(module, call, argument, mapping.axis) for argument in call.args):
            yield module.finding(
                "JP108",
                call,
                f"`{module.segment(call.func)}` is mapped with `pmap` and given an array that lies on a "
                "mesh of "
                "`jax.make_mesh` under another axis name, which is a KeyError",
                "Make the mesh with `jax.sharding.Mesh(np.array(jax.local_devices()), (axis_name,))`",
            )


def _below_set_mesh(module: Module, call: ast.Call) -> bool:
    for parent in module.ancestors(call):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        if isinstance(parent, ast.With):
            for item in parent.items:
                made = item.context_expr
                if isinstance(made, ast.Call) and module.qualname(made.func) in (
                    "jax.set_mesh",
                    "jax.sharding.set_mesh",
                    "jax.sharding.use_mesh",
                ):
                    return True
    return False


def _placed(module: Module, call: ast.Call, argument: ast.expr, axis: object) -> bool:
    """Whether `argument` was last placed, in a statement of the same block, on a mesh of `jax.make_mesh`."""
    placing: ast.AST | None = argument
    if isinstance(argument, ast.Name):
        statement = module.statement(call)
        block = next(
            (
                body
                for parent in module.ancestors(call)
                for body in (getattr(parent, "body", None), getattr(parent, "orelse", None))
                if isinstance(body, list) and statement in body
            ),
            [],
        )
        placing = None
        for each in block:
            if each is statement:
                break
            if isinstance(each, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == argument.id for target in each.targets
            ):
                placing = each.value
    if not isinstance(placing, ast.Call) or module.qualname(placing.func) != "jax.device_put":
        return False
    sharding = module.assigned(placing.args[1]) if len(placing.args) > 1 else None
    if not isinstance(sharding, ast.Call) or not sharding.args:
        return False
    mesh = module.assigned(sharding.args[0])
    if not isinstance(mesh, ast.Call) or module.qualname(mesh.func) != "jax.make_mesh" or len(mesh.args) != 2:
        return False
    if mesh.keywords:
        return False  # `axis_types` may say Auto
    names = module.constant(mesh.args[1])
    return isinstance(names, tuple) and axis not in names
