"""JP119: gradients clipped before they are averaged."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import REDUCTIONS, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.values import name_of
from jax_pmap.worker.scopes import names_in

#: What keeps numbers within limits.
_CLIPS = frozenset({"jax.numpy.clip", "jax.numpy.minimum", "jax.lax.clamp", "jax.lax.min"})


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Gradients that a clipping takes before the collective does."""
    for mapping in mappings.pmaps:
        function = mapping.function.node if mapping.function is not None else None
        if function is None or isinstance(function, ast.Lambda):
            continue
        for made in events(mappings, mapping).gradients:
            name = name_of(module, made)
            if name is None or not made.synced & REDUCTIONS:
                continue
            clipped: ast.Call | None = None
            for statement in _after(function.body, made.call):
                for call in module.calls(statement):
                    given = (
                        set().union(*(names_in(argument) for argument in call.args)) if call.args else set()
                    )
                    if name not in given:
                        continue
                    if module.qualname(call.func) in REDUCTIONS:
                        if clipped is not None and _keeps(module, clipped, name):
                            yield _finding(module, clipped, name)
                        clipped = None
                        break
                    if _is_clip(module, call):
                        clipped = clipped or call
                else:
                    continue
                break


def _finding(module: Module, clipped: ast.Call, name: str) -> Finding:
    return module.finding(
        "JP119",
        clipped,
        f"`{name}` is clipped on each device before it is averaged: that is another update than clipping the "
        "average",
        "Average first, then clip",
    )


def _after(body: list[ast.stmt], call: ast.Call) -> list[ast.stmt]:
    """The statements of `body` that follow the one with `call` in it."""
    for index, statement in enumerate(body):
        if any(node is call for node in ast.walk(statement)):
            return body[index + 1 :]
    return []


def _keeps(module: Module, clipped: ast.Call, name: str) -> bool:
    """Whether the clipped gradients take the place of the others."""
    statement = module.statement(clipped)
    if not isinstance(statement, ast.Assign):
        return False
    return any(name in names_in(target) for target in statement.targets)


def _is_clip(module: Module, call: ast.Call) -> bool:
    """``clip.update(grads, …)`` of a clipping transformation of optax, or a clip of the numbers."""
    name = module.qualname(call.func)
    if name in _CLIPS:
        return True
    if name == "jax.tree.map" and call.args and isinstance(call.args[0], ast.Lambda):
        return any(module.qualname(each.func) in _CLIPS for each in module.calls(call.args[0].body))
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "update":
        return False
    made = module.assigned(call.func.value)
    return isinstance(made, ast.Call) and (module.qualname(made.func) or "").startswith(
        ("optax.clip_by_global_norm", "optax.clip", "optax.adaptive_grad_clip")
    )
