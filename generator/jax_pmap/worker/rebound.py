"""What the user's code reads from outside itself, and their code changes later.

Called as it stands, a function takes a variable of its module, or an attribute of an object that one holds,
as it is at each call. Traced, it keeps what there was at the first.
"""

import ast
import inspect
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .load import text_of
from .protocol import Later, Site
from .type_tests import Watch, is_users, is_users_object, line_at

#: Methods that make an object what it is.
MAKING = frozenset({"__init__", "__post_init__", "__new__", "setup"})
#: Methods that change a dict, a list, a set or an array.
MUTATORS = frozenset({"add", "append", "clear", "discard", "extend", "fill", "insert", "remove", "update"})
#: Those of them that are called for what they return, too.
TAKERS = frozenset({"pop", "popitem", "setdefault"})
#: Functions that change what is in their first argument.
FILLERS = frozenset({"copyto", "fill_diagonal", "heappush", "insort", "place", "put", "putmask", "shuffle"})
#: What nothing can be changed in.
FIXED = (bool, int, float, complex, str, bytes, tuple, frozenset, types.FunctionType, type(None))
_NOTHING = object()
#: Between a function and a variable of it that functions in it use: ``make.<locals>.step``.
LOCALS = ".<locals>."
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


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


#: What holds a value, by its id (a module's namespace, an object), and the name it has there; ``""`` for all
#: that is in an object.
Place = tuple[int, str]


def changed_later(
    watch: Watch,
    target: types.ModuleType,
    name: str,
    left_out: Collection[str] = (),
    constants: Iterable[Any] = (),
) -> Later | None:
    """The first line that was reached and reads what another line changes after the import; None without any.

    What a module does when it is imported is not later; what its functions do is, and its loops in which the
    target, called `name`, stands. Functions that nothing names but the module that calls them as it is
    imported, as a decorator that fills a table, are done by then, but for what they do after they call the
    target. What is read in functions that are `left_out` of the emitted code does not count: decorators, by
    the names that the target's module has for them. Arguments that are `constants` of the emitted code, as
    the object of a method is, are kept with what they hold.
    """
    loaded = [(each, getattr(each, "__file__", None)) for each in (*list(sys.modules.values()), target)]
    spaces = {
        path: vars(module)
        for module, path in loaded
        if isinstance(module, types.ModuleType) and isinstance(path, str) and is_users(path)
    }
    files = {path: _parsed(path) for path in spaces}
    uses = [use for path, tree in files.items() for use in _of_statements(tree.body, Scope(path), name)]
    named = {part for use in uses if not use.changes for part in (use.root, *use.attributes)}
    imported = [_at_import(tree) for tree in files.values()]
    done = {part for called, _ in imported for part in called} - named
    done -= {part for _, read in imported for part in read}
    mentions = [mention for path, tree in files.items() for mention in _mentions(path, tree, name)]
    leading = _leading_to(name, mentions)
    # What a call makes anew, and its nested functions change, is its own affair.
    ran = {(code.co_filename, code.co_name) for code in watch.taken}
    changes = [
        use
        for use in uses
        if use.changes
        and (
            (use.scope.path, use.scope.function) not in ran
            if use.is_free
            else use.scope.function not in done or _may_follow(use, files[use.scope.path], mentions, leading)
        )
    ]
    reached = {(code.co_filename, line_at(code, at)) for code, taken in watch.taken.items() for at in taken}
    apart = {_defined(vars(target), name) for name in left_out}
    reads = [
        use
        for use in uses
        if not use.changes
        and (use.scope.path, use.line) in reached
        and (use.scope.path, use.scope.function) not in apart
    ]
    globals_ = [value for use in reads if use.is_global for value in _values(use, spaces)]
    held = [value for value in globals_ if is_users_object(value)]
    held += [value for value in constants if not isinstance(value, FIXED)]
    given = list(_handed_on(files))
    written = {place: use for use in changes for place in _places(use, spaces, held)}
    written |= {place: use for use in changes for place in _kept_elsewhere(use, given, spaces, held)}
    for use in sorted(reads, key=lambda use: (use.scope.path, use.line)):
        for place in _places(use, spaces, held):
            if (change := written.get(place)) is not None:
                what = ".".join((use.root.rpartition(LOCALS)[2], *use.attributes))
                by = Site(change.scope.path, change.line, what)
                return Later(Site(use.scope.path, use.line, what), by)
    return None


def _leading_to(name: str, mentions: Collection[Mention]) -> set[str]:
    """A name, the functions and variables that mention it, those that mention them, and so on."""
    found, more = {name}, {name}
    while more:
        more = {each.by for each in mentions if each.name in more} - found - {""}
        found |= more
    return found


def _may_follow(change: Use, tree: ast.Module, mentions: Iterable[Mention], names: Collection[str]) -> bool:
    """Whether a change comes behind one of some names in its function, or is in a loop with one."""
    own = (change.scope.path, change.scope.function)
    lines = [each.line for each in mentions if (each.path, each.by) == own and each.name in names]
    loops = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, LOOPS)
    ]
    return any(
        line <= change.line or any(line in loop and change.line in loop for loop in loops) for line in lines
    )


def _defined(space: dict[str, Any], name: str) -> tuple[str, str]:
    """File and outermost function that define what a dotted name stands for; empty for no function."""
    found: Any = None
    for part in name.split("."):
        found = space.get(part)
        space = getattr(found, "__dict__", {})
    if not isinstance(found, types.FunctionType):
        return "", ""
    return found.__code__.co_filename, found.__qualname__.partition(".")[0]


def _values(use: Use, spaces: dict[str, dict[str, Any]]) -> list[Any]:
    """What a global variable holds, and its attributes, as far as they are plain ones."""
    space, values = spaces[use.scope.path], []
    for name in (use.root, *use.attributes):
        if name not in space:
            break
        values.append(space[name])
        space = getattr(values[-1], "__dict__", {})
    return values


def _places(use: Use, spaces: dict[str, dict[str, Any]], held: Sequence[Any]) -> list[Place]:
    """What a read comes by, or what a change changes; `held` are objects that locals may stand for."""
    space = spaces[use.scope.path]
    if not use.is_global:
        if not use.attributes:
            return []
        name = use.attributes[0]
        found = [value for value in held if not use.is_own or _is_of(value, space, use)]
        return [(id(value), name) for value in found if _has(value, name)]
    values, names = _values(use, spaces), (use.root, *use.attributes)
    holders = [space, *(vars(each) if isinstance(each, types.ModuleType) else each for each in values)]
    named = [(id(holder), name) for holder, name in zip(holders, names, strict=False)]
    content = [(id(values[-1]), "")] if values else []
    if not use.changes:
        return [*named, *content]
    if use.inside and use.is_free:
        return named
    if use.inside:
        return content if len(values) == len(names) and not isinstance(values[-1], FIXED) else []
    return named[-1:] if len(named) == len(names) else []


def _kept_elsewhere(
    change: Use, given: Iterable[Given], spaces: dict[str, dict[str, Any]], held: Sequence[Any]
) -> Iterator[Place]:
    """Where functions and objects keep what changes by a name that their makers were given."""
    local = (change.scope.path, change.scope.function, change.root)
    # A global may have another name where it is given.
    values = _values(change, spaces)[-1:] if change.inside else []
    for each in given:
        if (
            any(spaces[each.path].get(each.variable) is value for value in values)
            if change.is_global
            else (each.path, each.function, each.variable) == local
        ):
            yield from ((id(space), f"{each.maker}{LOCALS}{each.parameter}") for space in spaces.values())
            made = [value for value in held if type(value).__name__ == each.maker]
            yield from ((id(value), name) for value in made for name in getattr(value, "__dict__", ()))


def _handed_on(files: Mapping[str, ast.Module]) -> Iterator[Given]:
    """What is given to the functions and classes that some files define.

    Of a function, the parameter that it is given as is known. An object may keep what its class is given
    anywhere, and a class may take it without a method of its own, as a dataclass does.
    """
    nodes = [node for tree in files.values() for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    named = {each.name for each in classes}
    methods = {id(node) for each in classes for node in each.body}
    parameters: dict[str, list[list[str]]] = {}
    for node in nodes:
        if isinstance(node, FUNCTIONS[:2]):
            static = any(_last(each) == "staticmethod" for each in node.decorator_list)
            names = _parameters(node)[id(node) in methods and not static :]
            parameters.setdefault(node.name, []).append(names)
    for path, tree in files.items():
        imported = [
            name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
        ]
        original = {name.asname: name.name for name in imported}
        for function, call in _within(tree):
            if not isinstance(call, ast.Call):
                continue
            maker = original.get(called := _last(call.func), called)
            given = [("", value) for value in call.args if maker in named]
            given += [
                each for names in parameters.get(maker, ()) for each in zip(names, call.args, strict=False)
            ]
            given += [(each.arg or "", each.value) for each in call.keywords]
            for parameter, value in given:
                if isinstance(value, ast.Name):
                    yield Given(path, function, value.id, maker, parameter)


def _mentions(path: str, tree: ast.Module, target: str) -> Iterator[Mention]:
    """The names in a file; what the target returns is none of it.

    A class mentions the methods that Python calls for its objects, as `__call__`.
    """
    for by, node in _within(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            yield Mention(path, node.lineno, by, name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for each in node.names:
                yield Mention(path, node.lineno, each.asname or "", each.name)
        elif isinstance(node, ast.Assign) and not by and _last(getattr(node.value, "func", node)) != target:
            targets = _stored(part for target in node.targets for part in ast.walk(target))
            made = list(_names(ast.walk(node.value)))
            yield from (Mention(path, each.lineno, to, each.id) for to in targets for each in made)
        elif isinstance(node, ast.ClassDef):
            special = (each.name for each in node.body if isinstance(each, FUNCTIONS[:2]))
            yield from (Mention(path, node.lineno, node.name, each) for each in special if each[:2] == "__")


def _within(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """The nodes of a file, each with the outermost function that it is in; ``""`` for none."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        function, node = waiting.pop()
        yield function, node
        if isinstance(node, FUNCTIONS[:2]):
            function = function or node.name
        waiting += [(function, child) for child in ast.iter_child_nodes(node)]


def _parameters(node: Any) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args)]


def _is_of(value: Any, space: dict[str, Any], use: Use) -> bool:
    own = space.get(use.scope.owner)
    if not isinstance(own, type):
        return False
    return issubclass(value, own) if isinstance(value, type) else isinstance(value, own)


def _has(value: Any, name: str) -> bool:
    """Whether an object may have an attribute: it has it, or its class makes some when they are asked for.

    A local that has one which no object of the user's has is none of these: Flax's ``mean.value``. Nor has a
    class what its objects have each for itself, as fields of a named tuple.
    """
    found = inspect.getattr_static(value, name, _NOTHING)
    if found is not _NOTHING:
        return not (isinstance(value, type) and inspect.isdatadescriptor(found))
    makes = inspect.getattr_static(type(value), "__getattr__", None)
    return inspect.isfunction(makes) and is_users(makes.__code__.co_filename)


def _parsed(path: str) -> ast.Module:
    try:
        return ast.parse(text_of(path))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _at_import(tree: ast.Module) -> tuple[set[str], set[str]]:
    """What a file calls, or decorates with, as it is imported; and what it reads there in other ways.

    Whoever is given a function may call it later: a thread, a signal, a table.
    """
    called: set[str] = set()
    read: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        callees = [node.func] if isinstance(node, ast.Call) else getattr(node, "decorator_list", [])
        called |= {_last(each) for each in callees}
        body = node.body if isinstance(node, FUNCTIONS) else []
        inside = body if isinstance(body, list) else [body]
        children = [each for each in ast.iter_child_nodes(node) if each not in inside]
        read |= {_last(each) for each in children if each not in callees}
        waiting += children
    return called, read


def _last(node: ast.AST) -> str:
    """``"b"`` of ``b`` and ``a.b``; ``""`` of anything but a name that is read."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _of_statements(body: Iterable[ast.AST], scope: Scope, name: str) -> Iterator[Use]:
    """Those of a module or a class, whose statements run when it is imported."""
    pending = [*body][::-1]
    while pending:
        node = pending.pop()
        if isinstance(node, FUNCTIONS):
            yield from _of_function(node, scope, is_method=bool(scope.owner))
        elif isinstance(node, ast.ClassDef):
            yield from _of_statements(ast.iter_child_nodes(node), Scope(scope.path, owner=node.name), name)
        elif isinstance(node, LOOPS) and any(each.id == name for each in _names(ast.walk(node))):
            yield from _of_code([node], scope, frozenset(_stored(ast.walk(node))))
        else:
            pending += [*ast.iter_child_nodes(node)][::-1]


def _of_function(node: Any, around: Scope, *, is_method: bool = False) -> Iterator[Use]:
    body = node.body if isinstance(node.body, list) else [node.body]
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    names = [each.arg for each in (*arguments, node.args.vararg, node.args.kwarg) if each is not None]
    own = list(_own(body))
    rebound = frozenset(name for each in own if isinstance(each, ast.Global) for name in each.names)
    nonlocal_ = frozenset(name for each in own if isinstance(each, ast.Nonlocal) for name in each.names)
    bound = _stored(own) - nonlocal_
    for each in own:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
            bound.add(each.name or "")
        elif isinstance(each, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in each.names}
    scope = Scope(
        around.path,
        (around.local | {*names, *bound}) - rebound,
        around.local - {*names, *bound} - rebound,
        around.owner,
        names[0] if is_method and names else around.receiver if around.receiver not in names else "",
        around.making or (is_method and getattr(node, "name", "") in MAKING),
        around.function or getattr(node, "name", ""),
    )
    yield from _of_code(body, scope, rebound | nonlocal_)


def _names(nodes: Iterable[ast.AST]) -> Iterator[ast.Name]:
    return (node for node in nodes if isinstance(node, ast.Name))


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in _names(nodes) if not isinstance(node.ctx, ast.Load)}


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body, those inside functions and classes in it left out."""
    pending = [*body][::-1]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            pending += [*ast.iter_child_nodes(node)][::-1]


def _of_code(body: Iterable[ast.AST], scope: Scope, rebound: frozenset[str]) -> Iterator[Use]:
    """The uses in code that runs after the import; assigning to a name of `rebound` changes the module's."""
    own = list(_own(body))
    aliases = _aliases(own)
    within = {id(node.value) for node in own if isinstance(node, ast.Attribute)}
    counted = {id(node.target) for node in own if isinstance(node, ast.AugAssign)}
    statements = {id(node.value) for node in own if isinstance(node, ast.Expr)}
    for node in own:
        if isinstance(node, FUNCTIONS):
            yield from _of_function(node, scope)
        elif isinstance(node, ast.ClassDef):
            yield from _of_statements(ast.iter_child_nodes(node), scope, "")
        elif isinstance(node, ast.Call):
            called, given = _last(node.func), node.args
            taken = called in TAKERS or (called in MUTATORS and id(node) in statements)
            if taken and isinstance(node.func, ast.Attribute):
                yield from _inside(node.func.value, scope, aliases)
            elif called in FILLERS and given:
                yield from _inside(given[0], scope, aliases)
            elif called == "setattr" and len(given) == 3 and isinstance(given[1], ast.Constant):
                attribute = ast.Attribute(given[0], str(given[1].value), ast.Store(), lineno=node.lineno)
                yield from _use(attribute, scope, changes=True)
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            continue
        if isinstance(node.ctx, ast.Load):
            if id(node) not in within and not isinstance(node, ast.Subscript):
                yield from _use(node, scope, changes=False)
        elif isinstance(node, ast.Subscript):
            yield from _inside(node.value, scope, aliases)
        elif isinstance(node, ast.Attribute) or node.id in rebound:
            yield from _use(node, scope, changes=True)
        elif id(node) in counted:
            yield from _inside(node, scope, aliases)


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
        if (
            isinstance(target, ast.Name)
            and value is not None
            and (root := _root(value))
            and root.id != target.id
        ):
            found[target.id] = value
    return found


def _root(node: ast.AST | None) -> ast.Name | None:
    """The name that an expression ``root.a[b].c`` begins with; None of another one."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _inside(node: ast.AST, scope: Scope, aliases: Mapping[str, ast.AST]) -> Iterator[Use]:
    """A change of what is in a value, by all names that it goes by."""
    seen: set[str] = set()
    value: ast.AST | None = node
    while value is not None:
        for use in _use(value, scope, changes=True, inside=True):
            yield replace(use, line=getattr(node, "lineno", 0))
        root = _root(value)
        if root is None or root.id in seen:
            return
        seen.add(root.id)
        value = aliases.get(root.id)


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
        free = node.id in scope.free and not attributes
        root = f"{scope.function}{LOCALS}{node.id}" if free else node.id
        use = Use(scope, line, root, tuple(attributes), changes, inside)
        if not (use.changes and use.is_own and scope.making):
            yield use
