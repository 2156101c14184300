"""Changes made in place that a compiled function makes to a copy, or not at all."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jax_pmap.emit.constants import is_compiled
from jax_pmap.inputs.load import Loaded
from jax_pmap.model import refused
from jax_pmap.planning.as_called import COMPILED
from jax_pmap.reading.target import Target
from jax_pmap.worker.protocol import Mutated
from jax_pmap.worker.scopes import names_in, root_name

#: Methods that change a dict or a list.
MUTATORS = frozenset(
    {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
)

#: Methods by which a module of Flax NNX, or a part of it, goes from training to evaluation.
MODES = frozenset({"train", "eval", "set_attributes"})


def check_mutation(target: Target, loaded: Loaded, changes: Sequence[Mutated]) -> None:
    """A compiled function changes copies of its arguments; the caller of the original sees the change.

    What it changes outside itself, of ``self`` or of a list beside it, changes once, while tracing. Graphs of
    objects are handed back with their new values; `changes` are the arguments that tracing saw changed.

    Raises:
        RefusalError: JP049, at the place of the change.
    """
    _check_written(target, loaded)
    for change in changes:
        if not change.graph:
            raise refused(
                "JP049",
                f"`{target.facts.name}` changes its argument `{change.name}` in place; on several devices "
                "that changes a copy",
                f"Return what changed instead of assigning it to a part of `{change.name}`",
                target.facts.span,
            )
        if not change.same_structure:
            switch = _switch_of_mode(target, change.name)
            raise refused(
                "JP049",
                f"`{target.facts.name}` changes what `{change.name}` is made of (new variables, another "
                "mode); only values can be handed back",
                f"Call `{target.parsed.segment(switch)}` before `{target.facts.name}` too: inside, it then "
                "changes nothing"
                if switch
                else "Make the change before the call",
                target.parsed.span(switch) if switch else target.facts.span,
            )


def switches_ahead(target: Target, loaded: Loaded) -> tuple[str, ...]:
    """The calls that set the mode of arguments, ``"model.eval()"``, before anything else is done with them.

    The caller may as well make them, and then the function changes nothing by them.
    """
    found = []
    for name in (row["name"] for row in loaded.described if row["modes"]):
        first = next((each for each in target.parsed.definition.body if name in names_in(each)), None)
        call = _switch_in(first, name)
        given = [*call.args, *(keyword.value for keyword in call.keywords)] if call is not None else []
        if call is not None and all(isinstance(each, ast.Constant) for each in given):
            found.append(call)
    # In the order of the source: a module may be a part of another one.
    return tuple(target.parsed.segment(call) for call in sorted(found, key=lambda call: call.lineno))


def _switch_in(node: ast.AST | None, name: str) -> ast.Call | None:
    """The call of a statement that sets the mode of an argument, as ``model.eval()``, or None."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    return call if call.func.attr in MODES and root_name(call.func) == name else None


def _switch_of_mode(target: Target, name: str) -> ast.Call | None:
    """The only call that sets the mode of an argument, or None."""
    found = [call for n in ast.walk(target.parsed.definition) if (call := _switch_in(n, name)) is not None]
    return found[0] if len(found) == 1 else None


def _check_written(target: Target, loaded: Loaded) -> None:
    """Refuse changes that the source shows, of dicts, lists and what is outside the function."""
    if is_compiled(target):
        return
    _check_outside(target, loaded)
    containers = {
        a["name"]: a["tree"]["kind"]
        for a in loaded.described
        if isinstance(a["tree"], dict) and a["tree"]["kind"] in ("dict", "list")
    }
    nodes = sorted(
        (
            n
            for n in ast.walk(target.parsed.definition)
            if isinstance(n, ast.Name | ast.Call) and hasattr(n, "lineno")
        ),
        key=lambda node: (node.lineno, node.col_offset),
    )
    changed = {
        id(node.value)
        for node in ast.walk(target.parsed.definition)
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
    } | {
        id(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
    }
    for node in nodes:
        if not isinstance(node, ast.Name) or node.id not in containers:
            continue
        if isinstance(node.ctx, ast.Store):
            containers.pop(node.id)
        elif id(node) in changed:
            raise refused(
                "JP049",
                f"`{target.facts.name}` changes its argument `{node.id}` in place; on several devices that "
                "changes a copy",
                f"Copy it first (`{node.id} = {containers[node.id]}({node.id})`) and return what changed; "
                f"{COMPILED}",
                target.parsed.span(node),
            )


def _check_outside(target: Target, loaded: Loaded) -> None:
    """Refuse to change what the function has from outside: objects, enclosing variables, globals."""
    facts = target.facts
    outside = {facts.receiver, *facts.closure_names, *facts.module_names} - {""}
    # What jax takes for one leaf, and is no array: a method's object, where it is an argument.
    outside |= {a["name"] for a in loaded.described if isinstance(a["tree"], int) and a["kept"]}
    for node in ast.walk(target.parsed.definition):
        place: ast.expr | None = None
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            place = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            # `tx.update(grads)` with its result used changes nothing.
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr in MUTATORS:
                place = called.value
        if place is not None and root_name(place) in outside:
            raise refused(
                "JP049",
                f"`{facts.name}` changes `{target.parsed.segment(place)}`, which is not its own; on devices "
                "that happens once, while tracing",
                "Return the new value, and have the caller keep it",
                target.parsed.span(place),
            )
