"""Source of sizes: of arrays whose rows are counted, and of numbers that are made of such counts."""

from __future__ import annotations

import ast

from jax_pmap.syntax.lines import parsed_expression

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)


def is_part(text: str) -> bool:
    """Whether an expression is a name, or an element or an attribute of one: ``batch["image"]``."""
    return _is_part(_parsed(text))


def is_size(text: str) -> bool:
    """Whether an expression is arithmetic of such parts and of whole numbers: ``z.shape[0] // 2``."""
    return _is_size(_parsed(text))


def names_in(text: str) -> set[str]:
    """The names that an expression reads."""
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


def _parsed(text: str) -> ast.expr:
    try:
        return parsed_expression(text)
    except SyntaxError:
        return ast.Constant(None)


def _is_part(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and _is_part(node.value)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_part(node.value))


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _OPERATORS) and _is_size(node.left) and _is_size(node.right)
    return _is_part(node) or (isinstance(node, ast.Constant) and type(node.value) is int)
