"""JP104: gradients that differ between devices go into an update."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.values import Gradient, name_of


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Updates with gradients that no collective took."""
    replicated = "replicate" in module.text
    seen: set[object] = set()
    for mapping in mappings.pmaps:
        if mapping.axis is None and not replicated:
            continue
        for made in events(mappings, mapping).gradients:
            if made.synced or made.lost or made.call in seen:
                continue
            if made.loss is not None and made.loss.reduced is not None:
                continue  # JP105
            name = name_of(module, made)
            update = name and next(filter(None, (_step(module, made, name, e) for e in made.updates)), None)
            if not update:
                continue
            seen.add(made.call)
            axis = f'"{mapping.axis}"' if isinstance(mapping.axis, str) else '"batch"'
            yield module.finding(
                "JP104",
                update,
                f"`{name}` is each device's own gradient: the parameters are updated with it before it is "
                "averaged over the devices",
                f"Average it first: `{name} = jax.lax.pmean({name}, axis_name={axis})`",
            )


def _step(module: Module, made: Gradient, name: str, update: ast.expr) -> ast.expr | None:
    """The expression that surely changes parameters, of one that may."""
    parent = module.parents.get(update)
    if isinstance(update, ast.Call) and isinstance(update.func, ast.Attribute):
        pair = isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple)
        method = update.func.attr
        return update if method == "apply_gradients" or (method == "update" and pair) else None
    call = module.parents.get(parent) if isinstance(parent, ast.Lambda) else None
    if isinstance(call, ast.Call) and module.qualname(call.func) == "jax.tree.map":
        return call
    # ``params - rate * grads``: a chain or a member of an ensemble may be each device's own.
    first = made.call.args[0] if made.call.args else None
    if not isinstance(update, ast.BinOp) or not isinstance(first, ast.Name) or not made.shares:
        return None
    step = update.right
    parts = [step.left, step.right] if isinstance(step, ast.BinOp) else [step]
    of_first = isinstance(update.left, ast.Name) and update.left.id == first.id
    return update if of_first and any(isinstance(p, ast.Name) and p.id == name for p in parts) else None
