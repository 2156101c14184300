"""Whether code of the project may give an object another method than its class has.

Classes are known by their names alone, in all files: two of one name count as one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

#: The head of a class whose bases are names, and of any class.
HEAD = re.compile(r"^[ \t]*class[ \t]+(\w+)[ \t]*(?:\(([^()#]*)\))?[ \t]*:", re.MULTILINE)
ANY_HEAD = re.compile(r"^[ \t]*class[ \t]", re.MULTILINE)
#: A class that is made by a call.
MADE = re.compile(r"\btype\([^()]*,")


def may_store(code: str, name: str, kin: frozenset[str] | None) -> bool:
    """Whether a file may set attribute `name` of an object of the classes `kin`, None of any class.

    What a method sets of its own object is that of objects of its class, by ``setattr`` too.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return True
    own = set() if kin is None else set(_own_stores(tree, kin))
    return any(_stores(node, name) for node in ast.walk(tree) if node not in own)


def _stores(node: ast.AST, name: str) -> bool:
    """Whether code sets attribute `name` of something, or ``setattr`` may."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
        written = node.args[1] if len(node.args) > 1 else None
        return not isinstance(written, ast.Constant) or written.value == name
    return isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)


def _own_stores(tree: ast.Module, kin: frozenset[str]) -> Iterator[ast.AST]:
    """``self.x`` and ``setattr(self, …)`` in methods of other classes than `kin`, of their own objects."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.ClassDef) or each.name in kin:
            continue
        for method in each.body:
            if not isinstance(method, ast.FunctionDef) or method.decorator_list:
                continue
            given = [*method.args.posonlyargs, *method.args.args]
            inside = [node for part in method.body for node in ast.walk(part)]
            if not given or any(_binds(node, given[0].arg) for node in inside):
                continue
            for node in inside:
                of: ast.AST | None = node.value if isinstance(node, ast.Attribute) else None
                if isinstance(node, ast.Call) and node.args:
                    of = node.args[0]
                if getattr(of, "id", "") == given[0].arg:
                    yield node


def _binds(node: ast.AST, name: str) -> bool:
    """Whether code gives a name another value, or another meaning in a function of its own."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    return (isinstance(node, ast.arg) and node.arg == name) or isinstance(node, ast.ClassDef)


def kin_of(owner: str, files: Sequence[str]) -> frozenset[str] | None:
    """The classes whose methods an object may have that has those of `owner`; None where it is not seen."""
    bases: dict[str, set[str]] = {}
    for code in files:
        heads = HEAD.findall(code)
        if len(heads) != len(ANY_HEAD.findall(code)) or MADE.search(code):
            return None
        for name, given in heads:
            bases.setdefault(name, set()).update(_names(given))
    elsewhere = {base for given in bases.values() for base in given} - bases.keys()
    for base in elsewhere:
        # Another name of a class, or a value that is one.
        other = re.compile(rf"\bas\s+{re.escape(base)}\b|^[ \t]*{re.escape(base)}\s*[=:]", re.MULTILINE)
        if any(other.search(code) for code in files):
            return None
    made_of = {owner}
    while more := {name for name, given in bases.items() if given & made_of} - made_of:
        made_of |= more
    while more := {base for name in made_of for base in bases.get(name, ())} - made_of:
        made_of |= more
    return frozenset(made_of)


def _names(given: str) -> Iterable[str]:
    """Names of the bases in the head of a class, without the modules that they are in."""
    plain = re.sub(r"\[[^\[\]]*\]", "", given)
    return (part.rpartition(".")[2].strip() for part in plain.split(",") if part.strip() and "=" not in part)
