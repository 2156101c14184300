"""Small pieces of Python source: signatures, indentation, string literals."""

from __future__ import annotations

import ast
import re

from jax_pmap.model import ParameterKind
from jax_pmap.reading.facts import Parameter
from jax_pmap.worker.scopes import bound_names, own_nodes


def signature(parameters: tuple[Parameter, ...]) -> list[str]:
    """Write parameters as they stood, with the markers ``/`` and ``*``."""
    kinds = [p.kind for p in parameters]
    parts = []
    for index, parameter in enumerate(parameters):
        if parameter.kind is ParameterKind.KEYWORD_ONLY and not {
            ParameterKind.VAR_POSITIONAL,
            ParameterKind.KEYWORD_ONLY,
        } & set(kinds[:index]):
            parts.append("*")
        stars = {ParameterKind.VAR_POSITIONAL: "*", ParameterKind.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = f" = {parameter.default}" if parameter.default is not None else ""
        parts.append(f"{stars}{parameter.name}{annotation}{default}")
        is_last = kinds[index + 1 : index + 2] != [parameter.kind]
        if parameter.kind is ParameterKind.POSITIONAL_ONLY and is_last:
            parts.append("/")
    return parts


def indented(body: str, width: int) -> str:
    """Indent statements, but not what stands inside multi-line strings."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        ):
            inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return "\n".join(
        line if number in inside or not line.strip() else " " * width + line
        for number, line in enumerate(body.rstrip("\n").split("\n"), start=1)
    )


def assigned_names(source: str) -> set[str]:
    """Names that statements bind in their own scope."""
    return bound_names(ast.parse(source).body)


def returned(body: str) -> list[ast.expr | None]:
    """What each return of a body gives."""
    return [node.value for node in own_nodes(ast.parse(body).body) if isinstance(node, ast.Return)]


def returned_names(body: str, count: int) -> list[str]:
    """Names of the elements when every return is the same tuple of `count` distinct names."""
    found: set[tuple[str, ...]] = set()
    for value in returned(body):
        if not isinstance(value, ast.Tuple):
            return []
        names = tuple(item.id for item in value.elts if isinstance(item, ast.Name))
        if len(names) != len(value.elts):
            return []
        found.add(names)
    names = found.pop() if len(found) == 1 else ()
    return list(names) if len(set(names)) == len(names) == count else []


def string(text: str) -> str:
    """Write a string literal in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def escaped(text: str) -> str:
    """Write text as the inside of an f-string in double quotes."""
    return string(text)[1:-1].replace("{", "{{").replace("}", "}}").replace("\n", "\\n")


def wrapped_f_string(text: str, width: int = 66) -> str:
    """Break the inside of an f-string at blanks outside of braces into pieces that fit on a line."""
    pieces = [""]
    for word in re.findall(r"(?:\{[^{}]*\}|\S)+\s*|\s+", text):
        if pieces[-1] and len(pieces[-1] + word) > width:
            pieces.append("")
        pieces[-1] += word
    return " ".join(f'{"f" if set(piece) & set("{}") else ""}"{piece}"' for piece in pieces)
