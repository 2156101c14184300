"""From what the body says of an argument to a spec whose leaves are still to be found."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_pmap.inputs.hints import hint_of
from jax_pmap.inputs.nodes import Node
from jax_pmap.inputs.spec import Spec
from jax_pmap.syntax.parse import ParsedSource

#: Hints of what is an array itself, and names of data that are often containers.
_LEAVES = frozenset({"labels", "tokens", "mask", "image", "sequence", "vector", "key", "scalar"})
_BATCHES = frozenset({"batch", "data", "inputs", "examples", "input"})


@dataclass(frozen=True, slots=True)
class Classes:
    """Fields of the file's NamedTuples and dataclasses, by class."""

    fields: Mapping[str, tuple[str, ...]]

    def holding(self, attributes: Sequence[str]) -> str | None:
        """The only class that has all these fields."""
        found = [name for name, fields in self.fields.items() if set(attributes) <= set(fields)]
        return found[0] if len(found) == 1 else None


def classes_in(parsed: ParsedSource) -> Classes:
    """Classes of the file whose fields are annotated: what can be made by keyword."""
    found = {}
    for statement in parsed.tree.body:
        if isinstance(statement, ast.ClassDef):
            rows = [
                row
                for row in statement.body
                if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name)
            ]
            marks = [ast.unparse(item) for item in (*statement.bases, *statement.decorator_list)]
            if any("NamedTuple" in mark or "dataclass" in mark or "struct" in mark for mark in marks):
                found[statement.name] = tuple(
                    row.target.id for row in rows if isinstance(row.target, ast.Name) and row.value is None
                )
    return Classes(found)


def form_of(node: Node, hint: str, classes: Classes, *, containers: bool = True) -> Spec:
    """The form of a node: a spec with unknown leaves. `hint` is what its container says it is.

    With ``containers=False``, what is only subscripted by position is taken for an array.
    """
    if node.differentiated:
        for part in (*node.keys.values(), *node.positions.values(), *node.attributes.values(), node.each):
            if part is not None:
                part.differentiated = True
    own = hint_of_node(node)
    inherited = own if own in ("parameter", "data", "like") else hint
    if node.attributes:
        return _object(node, inherited, classes, containers)
    if "dict" in node.uses and not node.keys:
        # Any names do: the body only goes over them.
        names = ("w", "b") if inherited != "data" else ("x", "y")
        children = [[name, unknown(Node(name), inherited or "parameter")] for name in names]
        return {"kind": "dict", "items": children}
    if node.keys:
        items = [
            [key, form_of(child, inherited, classes, containers=containers)]
            for key, child in node.keys.items()
        ]
        return {"kind": "dict", "items": items}
    positions = containers and node.positions and not node.arraylike and node.rank is None
    if own in _LEAVES or (own == "data" and node.word.lower() not in _BATCHES):
        positions = False  # `x[0]` of an array is its first row
    if (node.unpacked or node.each is not None or positions) and "index" not in node.uses:
        return _sequence(node, inherited, classes, containers)
    if "index" in node.uses and own == "tokens":
        return unknown(node, "tokens")
    for use in ("key", "seed", "callable", "size", "index", "scanned"):
        if use in node.uses:
            return unknown(node, use)
    if node.values:
        return unknown(node, "string")
    if "flag" in node.uses:
        return unknown(node, "flag")
    if own in ("", "data") and hint == "parameter":
        own = "parameter"
    elif own in ("", "parameter", "like") and hint == "data":
        own = "data"
    if node.differentiated:
        own = "parameter"
    return unknown(node, own if own != "like" else hint or "parameter")


def unknown(node: Node, hint: str) -> Spec:
    """A leaf to be found."""
    form: Spec = {"kind": "unknown", "word": node.word, "hint": hint}
    if node.values:
        form["values"] = node.values
    if node.rank is not None:
        form["rank"] = node.rank
    return form


def hint_of_node(node: Node) -> str:
    """What the name of a node and its uses say it is; a letter names an array, and no container."""
    if node.differentiated:
        return "parameter"
    named = hint_of(node.word)
    if len(node.word) == 1 and node.keys:
        named = "parameter" if node.word in ("p", "w") else ""
    return named or ("parameter" if node.parameter else "")


def _object(node: Node, hint: str, classes: Classes, containers: bool) -> Spec:
    name = classes.holding(list(node.attributes))
    if name is None:
        shown = ", ".join(f".{attribute}" for attribute in list(node.attributes)[:3])
        return {
            "kind": "missing",
            "reason": f"it is an object (the body uses {shown} of it), which shapes alone do not make",
        }
    items = []
    for attribute in classes.fields[name]:
        child = node.attributes.get(attribute, Node(attribute))
        items.append([attribute, form_of(child, hint, classes, containers=containers)])
    return {"kind": "object", "type": name, "items": items}


def _sequence(node: Node, hint: str, classes: Classes, containers: bool) -> Spec:
    count = max([node.count, *(i + 1 if i >= 0 else -i for i in node.positions), 1])
    if node.each is not None and not node.unpacked:
        count = max(count, 2)
    items = []
    for index in range(count):
        child = node.positions.get(index) or node.positions.get(index - count)
        if node.each is not None and (child is None or not _known(child)):
            child = node.each
        items.append(form_of(child or Node(node.word), hint, classes, containers=containers))
    return {"kind": "list" if node.each is not None else "tuple", "items": items}


def _known(node: Node) -> bool:
    return bool(node.keys or node.positions or node.attributes or node.each or node.uses)


def spec_children(form: Mapping[str, Any]) -> list[Spec]:
    """Forms directly inside a container form."""
    if form["kind"] in ("dict", "object"):
        return [item for _, item in form["items"]]
    return list(form["items"]) if form["kind"] in ("tuple", "list") else []
