"""The files of the user's code: their functions, what they hand to each other and what they do at import."""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..load import text_of
from ..scopes import names_stored, positional
from .uses import (
    ALL,
    FILLERS,
    FUNCTIONS,
    LOCALS,
    TAKERS,
    Parameter,
    Scope,
    last_name,
    names_in,
    uses_of_function,
)

#: What the other ways to write an attribute have in them.
OTHERWISE = ("attr", "vars", ALL)


@dataclass(frozen=True)
class Given:
    """A variable that is given to a function or a class."""

    path: str
    #: The outermost function around; ``""`` where it is given as the file is imported.
    function: str
    variable: str
    maker: str
    #: ``""`` where it is not known.
    parameter: str


@dataclass(frozen=True)
class Mention:
    """A name, or an attribute, in an outermost function or in what a variable of the module is made of."""

    path: str
    line: int
    #: The function, the variable, or the other name that it is imported under.
    by: str
    name: str


class File:
    """A file of the user's: its tree, and the nodes of it with the outermost function that each is in."""

    def __init__(self, path: str) -> None:
        self.path, self.tree = path, _parsed(path)
        self.nodes = list(_within(self.tree))
        self.classes = [node for _, node in self.nodes if isinstance(node, ast.ClassDef)]
        self.functions = [node for _, node in self.nodes if isinstance(node, FUNCTIONS[:2])]
        self._methods = {id(node) for each in self.classes for node in each.body}

    def given(self, function: Any) -> list[str]:
        """The parameters of a function that a call by place gives values, in order: no method's object."""
        static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
        return positional(function)[id(function) in self._methods and not static :]


def changers_in(files: Iterable[File], maker: tuple[str, str]) -> dict[str, list[Parameter]]:
    """The functions and methods that change something in what they are given, by name.

    `maker` is the function around the target, by file and name.
    """
    functions: list[tuple[File, Any]] = []
    calls: list[set[str]] = []
    waiting: list[int] = []
    for file in files:
        # Of a nested function what the outermost one does is more than it does.
        called: dict[ast.AST | None, set[str]] = {}
        filling: set[ast.AST | None] = set()
        for outermost, node in file.nodes:
            if isinstance(node, ast.Call):
                called.setdefault(outermost, set()).add(last_name(node.func))
            if outermost not in filling and _may_fill(node):
                filling.add(outermost)
        for outermost, node in file.nodes:
            if isinstance(node, FUNCTIONS[:2]):
                whole = outermost or node
                waiting += [len(functions)] if whole in filling else []
                functions.append((file, node))
                calls.append(called.get(whole, set()))
    own: list[list[Parameter]] = [[] for _ in functions]
    found: dict[str, list[Parameter]] = {}
    while waiting:
        for at in waiting:
            file, node = functions[at]
            scope, makes = Scope(file.path, changers=found), (file.path, node.name) == maker
            own[at] = _changed_in(node, scope, file.given(node), makes=makes)
        before, found = found, {}
        for (_, node), changed in zip(functions, own, strict=True):
            if changed:
                found.setdefault(node.name, []).extend(changed)
        # Others call nothing of which more is known now.
        news = {name for name in before.keys() | found.keys() if before.get(name) != found.get(name)}
        waiting = [at for at, called in enumerate(calls) if not news.isdisjoint(called)]
    return found


def _may_fill(node: ast.AST) -> bool:
    """Whether a part of a function may change what is in some value; whatever it calls may, too."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        plain = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        return not (plain or isinstance(node.ctx, ast.Load))
    if isinstance(node, ast.Call):
        called = last_name(node.func)
        return called in TAKERS | FILLERS | {"setattr"} or any(each.arg == "out" for each in node.keywords)
    counted = isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    return counted or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


def _changed_in(node: Any, around: Scope, given: Sequence[str], *, makes: bool) -> list[Parameter]:
    """The parameters, of those `given` by place, in whose values a function changes something.

    Of the function that `makes` the target, it may be done by then.
    """
    changed: dict[tuple[str, bool], tuple[bool, bool]] = {}
    for use in uses_of_function(node, around):
        if use.changes and use.inside and use.attributes in ((), (ALL,)):
            root = use.root.rpartition(LOCALS)[2], bool(use.attributes)
            in_doubt, made = changed.get(root, (True, True))
            changed[root] = use.in_doubt and in_doubt, made and (use.made or makes)
    return [
        Parameter(index, name, in_doubt, attribute, made)
        for index, name in enumerate(given)
        for attribute in (False, True)
        if (name, attribute) in changed
        for in_doubt, made in (changed[name, attribute],)
    ]


def handed_on(files: Collection[File]) -> Iterator[Given]:
    """What is given to the functions and classes that some files define.

    Of a function, the parameter that it is given as is known. An object may keep what its class is given
    anywhere, and a class may take it without a method of its own, as a dataclass does.
    """
    named = {each.name for file in files for each in file.classes}
    #: By the name of a function, the names of the parameter at each place, of all functions of that name.
    parameters: dict[str, list[set[str]]] = {}
    for file in files:
        for function in file.functions:
            names = file.given(function)
            places = parameters.setdefault(function.name, [])
            places += [set() for _ in names[len(places) :]]
            for place, name in zip(places, names, strict=False):
                place.add(name)
    for file in files:
        imported = [name for _, node in file.nodes if isinstance(node, ast.ImportFrom) for name in node.names]
        original = {name.asname: name.name for name in imported}
        for outermost, call in file.nodes:
            if not isinstance(call, ast.Call):
                continue
            maker = original.get(called := last_name(call.func), called)
            given = [("", value) for value in call.args if maker in named]
            given += [
                (name, value)
                for names, value in zip(parameters.get(maker, ()), call.args, strict=False)
                for name in names
            ]
            given += [(each.arg or "", each.value) for each in call.keywords]
            for parameter, value in given:
                if isinstance(value, ast.Name):
                    yield Given(file.path, _name(outermost), value.id, maker, parameter)


def mentions_in(file: File, target: str) -> Iterator[Mention]:
    """The names in a file; what the target returns is none of it.

    A class mentions the methods that Python calls for its objects, as `__call__`.
    """
    path = file.path
    for outermost, node in file.nodes:
        by = _name(outermost)
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            yield Mention(path, node.lineno, by, name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for each in node.names:
                yield Mention(path, node.lineno, each.asname or "", each.name)
        elif (
            isinstance(node, ast.Assign) and not by and last_name(getattr(node.value, "func", node)) != target
        ):
            made = list(names_in(ast.walk(node.value)))
            targets = names_stored(*node.targets)
            yield from (Mention(path, each.lineno, to, each.id) for to in targets for each in made)
        elif isinstance(node, ast.ClassDef):
            special = (each.name for each in node.body if isinstance(each, FUNCTIONS[:2]))
            yield from (Mention(path, node.lineno, node.name, each) for each in special if each[:2] == "__")


def _within(tree: ast.Module) -> Iterator[tuple[ast.AST | None, ast.AST]]:
    """The nodes of a file, each with the outermost function that it is in, if any."""
    waiting: list[tuple[ast.AST | None, ast.AST]] = [(None, tree)]
    while waiting:
        outermost, node = waiting.pop()
        yield outermost, node
        if outermost is None and isinstance(node, FUNCTIONS[:2]):
            outermost = node
        waiting += [(outermost, child) for child in ast.iter_child_nodes(node)]


def _name(outermost: ast.AST | None) -> str:
    """The name of an outermost function; ``""`` for none."""
    return getattr(outermost, "name", "")


def _parsed(path: str) -> ast.Module:
    try:
        text = text_of(path)
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
    spelled = text if isinstance(text, str) else text.decode(errors="replace")
    return _Plain().visit(tree) if any(each in spelled for each in OTHERWISE) else tree


class _Plain(ast.NodeTransformer):
    """Attributes by the names that code spells in other ways, and `ALL` of those whose names it computes."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``vars(a)``, ``getattr(a, "b")``, ``object.__setattr__(a, "b", c)``."""
        self.generic_visit(node)
        name, given = last_name(node.func), node.args
        if isinstance(node.func, ast.Attribute) and name in ("__setattr__", "__delattr__"):
            # Of a class it takes the object, too.
            own = [] if last_name(node.func.value) == "object" else [node.func.value]
            name, given = name.strip("_"), [*own, *given]
        elif not isinstance(node.func, ast.Name):
            return node
        if name == "delattr" and len(given) == 2:
            name, given = "setattr", [*given, ast.Constant(None)]
        made: ast.expr = node
        if name == "vars" and len(given) == 1:
            made = ast.Attribute(given[0], ALL, ast.Load())
        elif name == "getattr" and len(given) > 1:
            attribute = given[1].value if isinstance(given[1], ast.Constant) else ALL
            made = ast.Attribute(given[0], str(attribute), ast.Load())
            if len(given) > 2 or attribute == ALL:
                made = ast.Tuple([made, *given[1:]], ast.Load())
        elif name == "setattr" and len(given) == 3:
            made = ast.Call(ast.Name("setattr", ast.Load()), given, [])
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """``vars(a)["b"]``."""
        self.generic_visit(node)
        of, key = node.value, node.slice
        if not (isinstance(of, ast.Attribute) and of.attr == ALL and isinstance(key, ast.Constant)):
            return node
        return ast.copy_location(ast.Attribute(of.value, str(key.value), node.ctx), node)


def done_at_import(tree: ast.Module) -> tuple[dict[str, list[int]], set[str]]:
    """What a file calls, or decorates with, as it is imported; and what it reads there in other ways.

    The calls are by name, with their lines. Whoever is given a function may call it later: a thread, a
    signal, a table.
    """
    called: dict[str, list[int]] = {}
    read: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        callees = [node.func] if isinstance(node, ast.Call) else getattr(node, "decorator_list", [])
        for each in callees:
            called.setdefault(last_name(each), []).append(each.lineno)
        body = node.body if isinstance(node, FUNCTIONS) else []
        inside = body if isinstance(body, list) else [body]
        children = [each for each in ast.iter_child_nodes(node) if each not in inside]
        read |= {last_name(each) for each in children if each not in callees}
        waiting += children
    return called, read


def calls_in(file: File) -> tuple[set[str], set[str]]:
    """The names of what a file calls to decorate, ``@name(…)``, and of all that it calls in other ways."""
    nodes = [node for _, node in file.nodes]
    above = {id(each): each for node in nodes for each in getattr(node, "decorator_list", [])}
    made = [each.func for each in above.values() if isinstance(each, ast.Call)]
    plain = [each for each in above.values() if not isinstance(each, ast.Call)]
    plain += [node.func for node in nodes if isinstance(node, ast.Call) and id(node) not in above]
    return {*map(last_name, made)}, {*map(last_name, plain)}


def names_module(file: File, stem: str) -> bool:
    """Whether a file may import a module of that name, by a statement or by a string."""
    nodes = [node for _, node in file.nodes]
    named = [node.name for node in nodes if isinstance(node, ast.alias)]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    named += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any(stem in name.split(".") for name in named)
