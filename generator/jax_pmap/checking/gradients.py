"""Follow gradients through a mapped function: are they made the same on all devices before they are used?

By names and without order: a name that is assigned from an expression with a gradient in it holds a gradient.
What goes to a function that cannot be read counts as taken care of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from jax_pmap.checking.mapped import REDUCTIONS, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.syntax.library import COLLECTIVES, GRADIENTS
from jax_pmap.syntax.resolve import FunctionRef, returned_by
from jax_pmap.syntax.scopes import Function, names_in

#: Calls that take gradients and neither synchronise nor keep them.
_HARMLESS = (
    "jax.numpy.",
    "jax.tree.",
    "jax.tree_util.",
    "jax.nn.",
    "numpy.",
    "optax.",
    "builtins.",
    "jax.debug.",
    "jax.lax.",
    "flax.core.",
    "functools.partial",
    "dataclasses.replace",
)


@dataclass(slots=True)
class Gradients:
    """The gradients that one function makes, and what becomes of them."""

    #: The call that makes them.
    call: ast.Call
    #: The function they are taken of, where it is one of this module.
    loss: FunctionRef | None
    has_aux: bool
    #: Names they are given.
    names: set[str]
    #: Where parameters or optimiser state are updated with them: calls, and ``params - rate * grads``.
    updates: list[ast.expr] = field(default_factory=list)
    #: Collectives that take them, or what was made of them.
    synced_by: set[str] = field(default_factory=set)
    #: True when they go somewhere that cannot be followed.
    lost: bool = False


def gradients(module: Module, mappings: Mappings, function: Function) -> Iterator[Gradients]:
    """Every gradient that `function` (or a function inside it) computes and names, followed."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or len(node.targets) != 1:
            continue
        made = _made(module, node.value)
        if made is None:
            continue
        with_value, has_aux, loss = made
        target = node.targets[0]
        if with_value or has_aux:
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                continue
            target = target.elts[1 if with_value else 0]
        if not isinstance(target, ast.Name):
            continue
        found = Gradients(node.value, loss, has_aux, {target.id})
        _follow(module, mappings, function, found)
        yield found


def _made(module: Module, call: ast.Call) -> tuple[bool, bool, FunctionRef | None] | None:
    """Whether `call` runs a gradient function: (with the value, with aux, of which function)."""
    made = module.assigned(call.func)
    if not isinstance(made, ast.Call):
        return None
    application = module.application(made)
    if application is None or application.qualname not in GRADIENTS or application.open:
        return None
    aux = application.keywords.get("has_aux")
    has_aux = aux is not None and module.constant(aux) is not False
    first = application.argument(0, "fun")
    loss = FunctionRef(first) if isinstance(first, ast.FunctionDef) else module.function(first)
    return "value_and_grad" in application.qualname, has_aux, loss


def _follow(module: Module, mappings: Mappings, function: Function, found: Gradients) -> None:
    holders = _holders(function, found)
    gradient_names = set(found.names)
    inside_loss = found.loss.node if found.loss is not None else None
    for call in module.calls(function):
        if call.lineno <= (found.call.end_lineno or 0):
            continue  # nothing that happens before the gradient is made can use it
        if inside_loss is not None and inside_loss in (call, *module.ancestors(call)):
            continue
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        taken = set().union(*(names_in(argument) for argument in arguments)) if arguments else set()
        if not taken & holders:
            continue
        application = module.application(call)
        name = application.qualname if application else module.qualname(call.func) or ""
        if name in COLLECTIVES:
            found.synced_by.add(name)
        elif name == "jax.tree.map" and application is not None and _maps_collective(module, mappings, call):
            found.synced_by.add("jax.lax.pmean")
        elif _is_update(module, name, call, gradient_names):
            found.updates.append(call)
        elif not _is_harmless(module, mappings, name, call):
            found.lost = True
    found.updates += _subtractions(function, found)


def _subtractions(function: Function, found: Gradients) -> Iterator[ast.expr]:
    """``params - rate * grads``, of what the gradient is taken of."""
    first = found.call.args[0] if found.call.args else None
    if not isinstance(first, ast.Name):
        return
    for node in ast.walk(function):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        if not isinstance(node.left, ast.Name) or node.left.id != first.id:
            continue
        step = node.right
        parts = [step.left, step.right] if isinstance(step, ast.BinOp) else [step]
        if any(isinstance(part, ast.Name) and part.id in found.names for part in parts):
            yield node


def _holders(function: ast.AST, found: Gradients) -> set[str]:
    """The gradients' names and every name assigned from an expression with one of them in it."""
    holders = set(found.names)
    assignments = [
        (set().union(*(names_in(target) for target in node.targets)), names_in(node.value))
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and node.value is not found.call
    ]
    while True:
        more = {
            name for targets, used in assignments if used & holders for name in targets if name not in holders
        }
        if not more:
            return holders
        holders |= more


def _maps_collective(module: Module, mappings: Mappings, call: ast.Call) -> bool:
    """``tree.map(lambda g: lax.pmean(g, …), grads)``, or a function that cannot be read."""
    first = call.args[0] if call.args else None
    if first is None:
        return True
    name = module.qualname(first)
    function = module.function(first)
    if function is not None:
        return any(True for node in mappings.reachable(function.node) for _ in mappings.collectives(node))
    if isinstance(first, ast.Call):
        collected = module.application(ast.Call(first, [], []))
        return collected is None or collected.qualname in COLLECTIVES
    return name is None or not name.startswith(_HARMLESS) or name in COLLECTIVES


def _is_update(module: Module, name: str, call: ast.Call, gradient_names: set[str]) -> bool:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    direct = any(isinstance(value, ast.Name) and value.id in gradient_names for value in given)
    if not direct:
        return False
    if method == "apply_gradients":
        return True
    if method == "update":
        parent = module.parents.get(call)
        return isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple)
    if name == "jax.tree.map" and call.args and isinstance(call.args[0], ast.Lambda) and len(call.args) > 2:
        body = call.args[0].body
        return isinstance(body, ast.BinOp) and isinstance(body.op, ast.Sub)
    return False


def _is_harmless(module: Module, mappings: Mappings, name: str, call: ast.Call) -> bool:
    if name.startswith(_HARMLESS):
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr in (
        "replace",
        "apply_gradients",
        "update",
        "items",
    ):
        return True
    function = module.function(call.func)
    if function is None:
        return False
    return not any(
        True for node in mappings.reachable(function.node) for each in mappings.collectives(node) if each
    )


def returned_reduction(module: Module, made: Gradients) -> ast.Call | None:
    """The `psum` or `pmean` that the differentiated function returns as its value, or None."""
    if made.loss is None:
        return None
    function = made.loss.node
    value = returned_by(function)
    if made.has_aux and isinstance(value, ast.Tuple) and value.elts:
        value = value.elts[0]
    if isinstance(value, ast.Name) and not isinstance(function, ast.Lambda):
        last = [
            node
            for node in function.body
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == value.id for target in node.targets)
        ]
        if not last:
            return None
        value = last[-1].value
    if isinstance(value, ast.Call):
        application = module.application(value)
        if application is not None and application.qualname in REDUCTIONS:
            return value
    return None
