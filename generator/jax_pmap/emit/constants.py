"""What a compiled method or nested function keeps from its first call, and the original reads anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jax_pmap.model import Plan, refused
from jax_pmap.reading.decorators import transformations
from jax_pmap.reading.target import Target
from jax_pmap.syntax.library import COMPILERS, MAPPERS
from jax_pmap.worker.scopes import own_nodes, root_name

#: Methods that make an object what it is.
MAKING = ("__init__", "__post_init__", "__new__", "setup")


def compiled_at(target: Target) -> list[int]:
    """The lines where the target is compiled for use: ``jax.jit(step)``, ``jax.jit(make_step())``."""
    decorators = target.parsed.definition.decorator_list
    lines = [made.node.lineno for made, _ in transformations(target.parsed) if made.node not in decorators]
    binding = target.source.binding
    return [*lines, binding.span.line] if binding is not None and binding.calls else lines


def check_constants(target: Target, plan: Plan) -> None:
    """Refuse what the mapped function would take as it was at the first call, where it changes later.

    A function that `jax.jit` compiles already keeps it, too.

    Raises:
        RefusalError: JP050, with the line that changes it.
    """
    facts = target.facts
    compiled = any(each.name in COMPILERS | MAPPERS for each in facts.decorators)
    if compiled or compiled_at(target):
        return
    changed = next(_changes(target), None)
    if changed is not None:
        what, line = changed
        raise refused(
            "JP050",
            f"`{target.source.qualname}` reads `{what}`, which line {line} changes later; the compiled "
            "function would keep what it was at the first call",
            f"Pass it as an argument of `{facts.name}`",
            facts.span,
        )
    alike = next(_taken_for_one(target, plan), None)
    if alike is not None:
        what, line = alike
        raise refused(
            "JP050",
            f"`{target.source.qualname}` reads `{what}`, and two objects that differ in it are equal by line "
            f"{line}; the compiled function would take that of the first",
            f"Compare it there, or pass it as an argument of `{facts.name}`",
            facts.span,
        )


def _taken_for_one(target: Target, plan: Plan) -> Iterator[tuple[str, int]]:
    """What a method reads of its object that does not tell objects apart, with the line that compares them.

    Compiled code is kept for each object that is equal to no other.
    """
    receiver = target.facts.receiver
    if receiver not in {argument.name for argument in plan.arguments if argument.static}:
        return
    read = _of_receiver(target)
    for node in target.parsed.enclosing[-1].body:  # A method stands in its class.
        if isinstance(node, ast.FunctionDef) and node.name == "__eq__":
            compared = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            if not compared & {"__dict__", "__class__"}:
                yield from ((f"{receiver}.{name}", node.lineno) for name in read if name not in compared)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            left_out = any(
                each.arg == "compare" and isinstance(each.value, ast.Constant) and each.value.value is False
                for each in node.value.keywords
            )
            if left_out and isinstance(node.target, ast.Name) and node.target.id in read:
                yield f"{receiver}.{node.target.id}", node.lineno


def _of_receiver(target: Target) -> list[str]:
    """What a method reads of its object besides methods, also by the methods that it calls."""
    owner = target.parsed.enclosing[-1]
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    found: dict[str, None] = {}
    pending: list[tuple[ast.AST, str]] = [(target.parsed.definition, target.facts.receiver or "")]
    while pending:
        body, receiver = pending.pop()
        for node in ast.walk(body):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if node.value.id != receiver or node.attr in found:
                continue
            found[node.attr] = None
            method = methods.get(node.attr)
            if method is not None and method.args.args:
                pending.append((method, method.args.args[0].arg))
    return [name for name in found if name not in methods]


def _changes(target: Target) -> Iterator[tuple[str, int]]:
    """What the target has from functions around that is assigned after it was made, with the line."""
    facts, parsed = target.facts, target.parsed
    end = parsed.definition.end_lineno or 0
    for scope in parsed.enclosing:
        if isinstance(scope, ast.ClassDef):
            continue
        for name in facts.closure_names:
            places = [
                node.lineno
                for node in own_nodes(scope.body)
                if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
            ]
            later = [line for line in places if line > end]
            if later and len(places) > 1:
                yield name, later[0]
            for node in ast.walk(scope):
                if isinstance(node, ast.Nonlocal) and name in node.names:
                    yield name, node.lineno
                if (
                    isinstance(node, ast.Attribute | ast.Subscript)
                    and not isinstance(node.ctx, ast.Load)
                    and root_name(node) == name
                    and node.lineno > end
                ):
                    yield name, node.lineno
