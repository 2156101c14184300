"""What code reads from outside itself, and what it changes there, by names: read of its text alone."""

import ast
import contextlib
import functools
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..scopes import bound_names, free_names, parameters, root_name

#: Methods that make an object what it is, or are what an assignment does that is seen where it stands.
MAKING = frozenset(
    {"__init__", "__post_init__", "__new__", "setup", "__setstate__", "__setattr__", "__delattr__"}
)
#: Methods that change a dict, a list, a set or an array.
MUTATORS = frozenset({"add", "append", "clear", "discard", "extend", "fill", "insert", "remove", "update"})
#: Those of them that are called for what they return, too.
TAKERS = frozenset({"pop", "popitem", "setdefault"})
#: Methods of containers and arrays that are called for what they do elsewhere: they write a file.
WRITERS = frozenset({"dump", "tofile"})
#: Functions that change what is in their first argument; `at` is that of `np.add.at`.
FILLERS = frozenset(
    {
        *("at", "copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask", "shuffle"),
        *("heapify", "heappop", "heappush", "heappushpop", "heapreplace"),
        *("insort", "insort_left", "insort_right"),
    }
)
#: All attributes of an object, of which code may change or read any: ``vars(config)[name] = value``.
ALL = "__dict__"
#: Between a function and a variable of it that functions in it use: ``make.<locals>.step``.
LOCALS = ".<locals>."
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: What a container is written with in which nothing is another's.
PLAIN = (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Constant, ast.UnaryOp, ast.unaryop, ast.Load)
#: What makes a container of the elements of another one.
COPIES = frozenset({"deepcopy", "dict", "list", "set"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)
#: The names that a function takes from around it.
_free_in = functools.cache(free_names)


@dataclass(frozen=True)
class Parameter:
    """A parameter in whose value its function changes something: its place in a call, and its name."""

    index: int
    name: str
    #: Whether that depends on what the value is.
    in_doubt: bool
    #: Whether it is an attribute that changes.
    attribute: bool = False
    #: Whether it is changed by nothing but the function around the target, that makes it.
    made: bool = False


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: names that are no variables of the module, and whose method it is."""

    path: str
    local: frozenset[str] = frozenset()
    #: Those of them that belong to a function around.
    free: frozenset[str] = frozenset()
    #: The class, the first parameter of the method, and whether the method makes its object.
    owner: str = ""
    receiver: str = ""
    making: bool = False
    #: The outermost function around it.
    function: str = ""
    #: And the innermost.
    within: str = ""
    #: How many functions around it are in that one: when these are called, no line tells.
    nested: int = 0
    #: The function's own variables that functions in it use, and on which line the first of these ends.
    cells: Mapping[str, int] = field(default_factory=dict)
    #: Its variables that hold what nothing else does as it makes it: ``options = copy.deepcopy(defaults)``.
    fresh: frozenset[str] = frozenset()
    #: Those that hold a container of its own, of what others may hold: ``shape = list(grid.shape)``.
    copied: frozenset[str] = frozenset()
    #: The attributes that it reads of its names, and whether it calls them as methods.
    asked: Mapping[str, Collection[tuple[str, bool]]] = field(default_factory=dict)
    #: The user's functions that change what they are given.
    changers: Mapping[str, Collection[Parameter]] = field(default_factory=dict)

    def is_of(self, function: types.FunctionType) -> bool:
        """Whether it is that of a function, or of one that is defined in it."""
        name = f"{self.owner}.{self.function}" if self.owner else self.function
        return (self.path, name) == (function.__code__.co_filename, function.__qualname__)


@dataclass(frozen=True)
class Use:
    """An expression ``root.a.b``, less what follows an index; `changes` says that this gets another value."""

    scope: Scope
    line: int
    root: str
    attributes: tuple[str, ...]
    changes: bool
    #: Whether something in it changes, and not itself: ``root.a[0] = …``, ``root.a.append(…)``.
    inside: bool = False
    #: Whether it does so only if it is a container: ``root.a.rotate()``.
    in_doubt: bool = False
    #: Whether it does so in a call of the function around the target: ``step = make_step(root)``.
    made: bool = False
    #: Whether what changes is the value of `root` itself, and nothing in it: ``root[0] = …``.
    outer: bool = False

    @property
    def is_cell(self) -> bool:
        """Whether the function that a variable belongs to changes something in it."""
        return self.is_free and self.root.rpartition(LOCALS)[2] in self.scope.cells

    @property
    def is_global(self) -> bool:
        """Whether the root is a variable of the module."""
        return self.root not in self.scope.local

    @property
    def is_free(self) -> bool:
        """Whether the root is a variable of a function around."""
        return LOCALS in self.root

    @property
    def is_own(self) -> bool:
        """Whether the root is the object of a method."""
        return self.root == self.scope.receiver


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Keep what is found of functions while the same trees are read, and not the trees any longer."""
    try:
        yield
    finally:
        _bound_in.cache_clear()
        _free_in.cache_clear()


def last_name(node: ast.AST) -> str:
    """``"b"`` of ``b`` and ``a.b``; ``""`` of anything but a name that is read."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def uses_of_module(body: Iterable[ast.AST], scope: Scope) -> Iterator[Use]:
    """The changes in the statements of a module, which are those of the program where it is run as one."""
    own = [node for node in _own(body) if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    stored = [each.id for each in names_in(own) if not isinstance(each.ctx, ast.Load)]
    again = {name for name in stored if stored.count(name) > 1}
    again |= {name for node in own if isinstance(node, LOOPS) for name in _stored(_own([node]))}
    yield from (use for use in _of_code(own, scope, frozenset(again)) if use.changes)


def uses_of_statements(body: Iterable[ast.AST], scope: Scope) -> Iterator[Use]:
    """Those in the functions of a module or a class."""
    pending = [*body][::-1]
    while pending:
        node = pending.pop()
        if isinstance(node, FUNCTIONS):
            yield from uses_of_function(node, scope, is_method=bool(scope.owner))
        elif isinstance(node, ast.ClassDef):
            within = Scope(scope.path, owner=node.name, changers=scope.changers)
            yield from uses_of_statements(ast.iter_child_nodes(node), within)
        else:
            pending += [*ast.iter_child_nodes(node)][::-1]


def uses_of_function(node: Any, around: Scope, *, is_method: bool = False) -> Iterator[Use]:
    """The uses in a function or a lambda that stands in the scope `around` it, and in those inside it."""
    body = node.body if isinstance(node.body, list) else [node.body]
    names = [each.arg for each in parameters(node.args)]
    own = list(_own(body))
    rebound = frozenset(name for each in own if isinstance(each, ast.Global) for name in each.names)
    nonlocal_ = frozenset(name for each in own if isinstance(each, ast.Nonlocal) for name in each.names)
    bound = _bound_in(node) - nonlocal_
    inside = (each for each in own if isinstance(each, (*FUNCTIONS, ast.ClassDef)))
    cells = {
        name: each.end_lineno or 0
        for each in reversed([*inside])
        for name in _free_in(each) & {*names, *bound}
    }
    scope = Scope(
        around.path,
        (around.local | {*names, *bound}) - rebound,
        around.local - {*names, *bound} - rebound,
        around.owner,
        names[0] if is_method and names else around.receiver if around.receiver not in names else "",
        around.making or (is_method and getattr(node, "name", "") in MAKING),
        around.function or getattr(node, "name", "<lambda>"),
        getattr(node, "name", "<lambda>"),
        around.nested + bool(around.function),
        cells,
        frozenset((bound - {*names} - rebound) & _fresh(own, _is_new)),
        frozenset((bound - {*names} - rebound) & _fresh(own, _is_copy)),
        {name: asked for name, asked in around.asked.items() if name not in {*names, *bound}} | _asked(own),
        around.changers,
    )
    yield from _of_code(own, scope, rebound | nonlocal_)


@functools.cache
def _bound_in(node: Any) -> frozenset[str]:
    """The names that the body of a function binds, its comprehensions too."""
    body = node.body if isinstance(node.body, list) else [node.body]
    return frozenset(bound_names(body) | _stored(_own(body)))


def _asked(own: Iterable[ast.AST]) -> dict[str, set[tuple[str, bool]]]:
    """The attributes that are read of each name in a body, and whether they are called."""
    found: dict[str, set[tuple[str, bool]]] = {}
    nodes = list(own)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.value, ast.Name)
        ):
            found.setdefault(node.value.id, set()).add((node.attr, id(node) in called))
    return found


def _fresh(own: Collection[ast.AST], is_new: Callable[[ast.expr], bool]) -> set[str]:
    """The names that a body gives to nothing but what it makes."""
    made = [
        target.id
        for node in own
        if isinstance(node, ast.Assign) and is_new(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    stored = [each.id for each in names_in(own) if not isinstance(each.ctx, ast.Load)]
    return {name for name in made if made.count(name) == stored.count(name)}


def _is_new(value: ast.expr) -> bool:
    """Whether nothing else holds a value, or what is in it: ``{"rate": 0.1}``, ``copy.deepcopy(options)``."""
    if isinstance(value, ast.Call):
        return last_name(value.func) == "deepcopy"
    return all(isinstance(each, PLAIN) for each in ast.walk(value))


def _is_copy(value: ast.expr) -> bool:
    """Whether nothing else holds a value itself: ``list(shape)``, ``{**defaults}``."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in COPIES
    return isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp))


def names_in(nodes: Iterable[ast.AST]) -> Iterator[ast.Name]:
    """The names among nodes."""
    return (node for node in nodes if isinstance(node, ast.Name))


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in names_in(nodes) if not isinstance(node.ctx, ast.Load)}


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body, those inside functions and classes in it left out."""
    pending = [*body][::-1]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            pending += [*ast.iter_child_nodes(node)][::-1]


def _of_code(own: Sequence[ast.AST], scope: Scope, rebound: frozenset[str]) -> Iterator[Use]:
    """The uses in the nodes of code that runs after the import, as `_own` gives them.

    Assigning to a name of `rebound` changes the module's.
    """
    aliases = _aliases(own)
    within = {id(node.value) for node in own if isinstance(node, ast.Attribute)}
    counted = {id(node.target) for node in own if isinstance(node, ast.AugAssign)}
    statements = {id(node.value) for node in own if isinstance(node, ast.Expr)}
    passing = {id(of) for each in own if isinstance(each, ast.comprehension) for of in ast.walk(each.target)}
    for node in own:
        if isinstance(node, FUNCTIONS):
            yield from uses_of_function(node, scope)
        elif isinstance(node, ast.ClassDef):
            within_class = replace(scope, owner=node.name, receiver="", making=False)
            yield from uses_of_statements(ast.iter_child_nodes(node), within_class)
        elif isinstance(node, ast.Call):
            called, given = last_name(node.func), node.args
            sure = called in TAKERS or (called in MUTATORS and id(node) in statements)
            # What it returns is not asked for.
            in_doubt = not sure and id(node) in statements and called not in WRITERS
            if isinstance(node.func, ast.Attribute) and (sure or in_doubt):
                yield from _inside(node.func.value, scope, aliases, in_doubt=in_doubt)
            for parameter in scope.changers.get(called, ()):
                by_name = [each.value for each in node.keywords if each.arg == parameter.name]
                for each in (*given[parameter.index : parameter.index + 1], *by_name):
                    changed = _all_of(each) if parameter.attribute else each
                    within_it = _inside(changed, scope, aliases, in_doubt=parameter.in_doubt)
                    yield from (replace(use, made=parameter.made) for use in within_it)
            yield from (
                use
                for each in node.keywords
                if each.arg == "out"
                for use in _inside(each.value, scope, aliases, in_doubt=True)
            )
            if called in FILLERS and given:
                yield from _inside(given[0], scope, aliases)
            elif called == "setattr" and len(given) == 3 and isinstance(given[1], ast.Constant):
                attribute = ast.Attribute(given[0], str(given[1].value), ast.Store(), lineno=node.lineno)
                yield from _use(attribute, scope, changes=True)
            elif called == "setattr" and len(given) == 3:
                yield from _inside(_all_of(given[0]), scope, aliases)
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            continue
        if isinstance(node.ctx, ast.Load):
            if id(node) not in within and not isinstance(node, ast.Subscript):
                yield from _use(node, scope, changes=False)
        elif isinstance(node, ast.Subscript) and (name := _global_of(node)):
            yield Use(replace(scope, local=frozenset()), node.lineno, name, (), changes=True)
        elif isinstance(node, ast.Subscript):
            yield from _inside(node.value, scope, aliases)
        elif isinstance(node, ast.Attribute) or node.id in rebound:
            yield from _use(node, scope, changes=True)
        elif node.lineno > scope.cells.get(node.id, node.lineno) and id(node) not in passing:
            # What a function in this one had from it until here.
            yield from _use(node, scope, changes=True)
        elif id(node) in counted:
            yield from _inside(node, scope, aliases)


def _global_of(node: ast.Subscript) -> str:
    """The variable of the module that is meant by ``globals()["name"]``; ``""`` by anything else."""
    of, key = node.value, node.slice
    if isinstance(of, ast.Call) and last_name(of.func) == "globals" and isinstance(key, ast.Constant):
        return str(key.value)
    return ""


def _all_of(node: ast.expr) -> ast.Attribute:
    return ast.copy_location(ast.Attribute(node, ALL, ast.Load()), node)


def _aliases(own: Iterable[ast.AST]) -> dict[str, ast.AST]:
    """Names that a body gives to what others hold: ``options = CONFIG["adam"]``, ``for group in GROUPS``."""
    found: dict[str, ast.AST] = {}
    for node in own:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            target, value = node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            target, value = node.target, node.iter
        else:
            continue
        # One that goes on from itself (`at = at[name]`) is what it was first.
        if isinstance(target, ast.Name) and value is not None and root_name(value) not in (None, target.id):
            found[target.id] = value
    return found


def _inside(
    node: ast.AST, scope: Scope, aliases: Mapping[str, ast.AST], *, in_doubt: bool = False
) -> Iterator[Use]:
    """A change of what is in a value, by all names that it goes by."""
    seen: set[str] = set()
    value: ast.AST | None = node
    while value is not None:
        for use in _use(value, scope, changes=True, inside=True):
            outer = value is node and isinstance(node, ast.Name)
            yield replace(use, line=getattr(node, "lineno", 0), in_doubt=in_doubt, outer=outer)
        root = root_name(value)
        if root is None or root in seen:
            return
        seen.add(root)
        value = aliases.get(root)


def _use(node: ast.AST, scope: Scope, *, changes: bool, inside: bool = False) -> Iterator[Use]:
    line = getattr(node, "lineno", 0)
    attributes: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Subscript):
            attributes, inside = [], True
        else:
            attributes.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        free = (node.id in scope.free or (changes and node.id in scope.cells)) and not attributes
        root = f"{scope.function}{LOCALS}{node.id}" if free else node.id
        use = Use(scope, line, root, tuple(attributes), changes, inside)
        if not (use.changes and use.is_own and scope.making):
            yield use
