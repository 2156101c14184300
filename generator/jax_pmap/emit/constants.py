"""Where the user compiles the target, and what a method that is compiled keeps from its first call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jax_pmap.model import Plan, refused
from jax_pmap.reading.decorators import transformations
from jax_pmap.reading.target import Target
from jax_pmap.syntax.library import COMPILERS, MAPPERS


def compiled_at(target: Target) -> list[int]:
    """The lines where the target is compiled for use: ``jax.jit(step)``, ``jax.jit(make_step())``."""
    decorators = target.parsed.definition.decorator_list
    lines = [made.node.lineno for made, _ in transformations(target.parsed) if made.node not in decorators]
    binding = target.source.binding
    return [*lines, binding.span.line] if binding is not None and binding.calls else lines


def is_compiled(target: Target) -> bool:
    """Whether the user compiles or maps the function: then a call of it is traced, too."""
    facts = target.facts
    if any(each.name in COMPILERS | MAPPERS for each in facts.decorators):
        return True
    return bool(target.own_axis or compiled_at(target))


def check_constants(target: Target, plan: Plan) -> None:
    """Refuse what the mapped function would take of the first object, where another one has something else.

    A function that `jax.jit` compiles already takes it, too.

    Raises:
        RefusalError: JP050, with the line that compares the objects.
    """
    if is_compiled(target):
        return
    for what, line in _taken_for_one(target, plan):
        raise refused(
            "JP050",
            f"`{target.source.qualname}` reads `{what}`, and two objects that differ in it are equal by line "
            f"{line}; the compiled function would take that of the first",
            f"Compare it there, or pass it as an argument of `{target.facts.name}`",
            target.facts.span,
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
