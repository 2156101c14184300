"""What the user's code reads from outside itself, and their code changes later.

Called as it stands, a function takes a variable of its module, or an attribute of an object that one holds,
as it is at each call. Traced, it keeps what there was at the first.
"""

import ast
import contextlib
import dis
import functools
import gc
import inspect
import itertools
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from .functions import enclosed, unwrapped
from .load import text_of
from .origins import file_of, is_users, is_users_object, users_modules
from .protocol import Later, Site
from .scopes import bound_names, free_names, names_stored, parameters, positional, root_name
from .type_tests import Watch, line_at

#: Methods that make an object what it is, or are what an assignment does that is seen where it stands.
MAKING = frozenset(
    {"__init__", "__post_init__", "__new__", "setup", "__setstate__", "__setattr__", "__delattr__"}
)
#: Methods that change a dict, a list, a set or an array.
MUTATORS = frozenset({"add", "append", "clear", "discard", "extend", "fill", "insert", "remove", "update"})
#: Those of them that are called for what they return, too.
TAKERS = frozenset({"pop", "popitem", "setdefault"})
#: What has no method to call for anything but what it returns, or for a change of what is in it.
CONTAINERS = (dict, list, set, bytearray, deque, np.ndarray)
#: But for these, which write it to a file.
WRITERS = frozenset({"dump", "tofile"})
#: What has others in it, and no keys for them.
COLLECTIONS = (list, tuple, set, deque)
#: Parts of a container that are looked at: more are data, as a replay buffer's transitions.
MANY_PARTS = 1_000
#: Functions that change what is in their first argument; `at` is that of `np.add.at`.
FILLERS = frozenset(
    {
        *("at", "copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask", "shuffle"),
        *("heapify", "heappop", "heappush", "heappushpop", "heapreplace"),
        *("insort", "insort_left", "insort_right"),
    }
)
#: What nothing can be changed in.
FIXED = (bool, int, float, complex, str, bytes, tuple, frozenset, types.FunctionType, type(None))
_NOTHING = object()
#: All attributes of an object, of which code may change or read any: ``vars(config)[name] = value``.
ALL = "__dict__"
#: What each change of an attribute is to code that reads all of them.
ONE = "__dict__[…]"
#: Between a function and a variable of it that functions in it use: ``make.<locals>.step``.
LOCALS = ".<locals>."
#: What the other ways to write an attribute have in them.
OTHERWISE = ("attr", "vars", ALL)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: What a container is written with in which nothing is another's.
PLAIN = (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Constant, ast.UnaryOp, ast.unaryop, ast.Load)
#: What makes a container of the elements of another one.
COPIES = frozenset({"deepcopy", "dict", "list", "set"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)


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


@dataclass(frozen=True)
class Spaces:
    """What names stand for, by file."""

    modules: dict[str, dict[str, Any]]
    #: What the target has from functions around, as ``F.<locals>.name``.
    enclosed: dict[str, dict[str, Any]]


#: What holds a value, by its id (a module's namespace, an object), and the name it has there; ``""`` for all
#: that is in an object.
Place = tuple[int, str]
#: In the place of that id: whichever module defines the function that a name of ``F.<locals>.name`` is in.
ANY_MODULE = 0


@contextlib.contextmanager
def _remembering() -> Iterator[None]:
    """Keep what is found of functions while the same trees are read, and not the trees any longer."""
    try:
        yield
    finally:
        _bound_in.cache_clear()
        _free_in.cache_clear()


@_remembering()
def changed_later(
    watch: Watch,
    target: types.ModuleType,
    function: Callable[..., Any],
    left_out: Collection[str] = (),
    constants: Mapping[str, Any] = MappingProxyType({}),
    maker: "Callable[..., Any] | None" = None,
) -> Later | None:
    """The first line that was reached and reads what another line changes after the import; None without any.

    What a module does when it is imported is not later, but for what comes behind the target, `function`,
    or is in a loop with it; what its functions do is. Functions that nothing names but the module that
    calls them as it is imported, ahead of the target, as a decorator that fills a table, are done by then,
    but for what they do after they call the target; so are the function in which the target is defined, and
    the `maker` of the example inputs where nothing else names it, in its file or in one that imports that.
    What is read in functions that are `left_out` of the emitted code does not count: decorators, by the
    names that the target's module has for them. Arguments that are `constants` of the emitted code, as the
    object of a method is, are kept with what they hold.
    """
    loaded = (*users_modules(), (vars(target), file_of(target)))
    modules = {path: space for space, path in loaded if is_users(path)}
    plain = unwrapped(function)[0]
    spaces = Spaces(modules, {} if plain is None else _enclosed(plain))
    files = [File(path) for path in modules]
    name = function.__name__
    around = ("", "") if plain is None else _outermost(plain)
    made = None if maker is None else unwrapped(maker)[0]
    made_by = ("", "") if made is None else (made.__code__.co_filename, made.__name__)
    changers = _changers(files, around)
    uses = [
        use
        for file in files
        for of in (_of_statements, _of_module)
        for use in of(file.tree.body, Scope(file.path, changers=changers))
    ]
    named = _names_read(uses)
    mentions = [mention for file in files for mention in _mentions(file, name)]
    order = Order(files, mentions, _leading_to(name, mentions))
    done, not_done = set[str](), named
    makers, otherwise = set[str](), named
    for file in files:
        called, read = _at_import(file.tree)
        done |= called.keys()
        decorating, plainly = _calls(file)
        makers, otherwise = makers | decorating, otherwise | plainly
        not_done = not_done | read
        not_done |= {
            part
            for part, lines in called.items()
            if any(order.comes_after(file.path, "", line, itself=False) for line in lines)
        }
    done -= not_done
    # What these return is called with what stands below, and kept by nothing: ``@table.register("name")``.
    makers = (makers & done) - otherwise
    stem = PurePath(made_by[0]).stem
    near = {file.path for file in files if file.path == made_by[0] or _names_module(file, stem)}
    if made_by[1] in _names_read(use for use in uses if use.scope.path in near):
        made_by = ("", "")
    # What a call makes anew, and its nested functions change, is its own affair.
    ran = {(code.co_filename, code.co_name) for code in watch.taken}

    def is_later(change: Use) -> bool:
        own = (change.scope.path, change.scope.function)
        if (change.is_free and own in ran) or (change.is_cell and (own[0], change.scope.within) in ran):
            return False
        if change.made:
            # What it changes ahead of the target is what the target begins with, but for one made before.
            return order.may_follow(change, itself=False)
        if not own[1]:
            return order.may_follow(change)
        if change.scope.nested > (own[1] in makers):
            return True
        new = change.scope.copied if change.outer else change.scope.fresh
        if change.root in new and not change.attributes:
            return order.may_follow(change)
        if change.is_cell or own in (around, made_by) or (not change.is_free and own[1] in done):
            return order.may_follow(change)
        return True

    changes = [use for use in uses if use.changes and is_later(use)]
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
    kept = [*constants.values(), *(value for own in spaces.enclosed.values() for value in own.values())]
    objects = [value for value in globals_ if is_users_object(value)]
    objects += [value for value in kept if not isinstance(value, FIXED)]
    deep = _objects_in(objects)
    own_parameters = set() if plain is None else _kept_parameters(plain)
    everything = [*objects, *deep]
    given = HandedOn(_handed_on(files), spaces)
    written = {place: use for use in changes for place in _places(use, spaces, everything)}
    written |= {place: use for use in changes for place in _kept_elsewhere(use, given, everything)}
    for use in sorted(reads, key=lambda use: (use.scope.path, use.line)):
        # A local is seldom what an object has deep inside, such as a logger: `state.step` is of another one.
        may_be = [*objects, *(deep if use.is_own else (each for each in deep if _may_be(each, use)))]
        if plain is not None and use.root in own_parameters and use.scope.is_of(plain):
            may_be = [constants[use.root]] if use.root in constants else []
        for place in _places(use, spaces, may_be):
            if (change := written.get(place) or written.get((ANY_MODULE, place[1]))) is not None:
                if use.is_free and _is_made_by_call(use, watch):
                    break
                what = ".".join((use.root.rpartition(LOCALS)[2], *use.attributes))
                by = Site(change.scope.path, change.line, what)
                return Later(Site(use.scope.path, use.line, what), by)
    return None


def _is_made_by_call(use: Use, watch: Watch) -> bool:
    """Whether the call that was watched made the function that a variable is read in, and left none of it.

    What a function around such a one has is of that call too, and any other call has its own.
    """
    scope = use.scope
    read_in = {
        code
        for code, taken in watch.taken.items()
        if (code.co_filename, code.co_name) == (scope.path, scope.within)
        and use.line in {line_at(code, at) for at in taken}
    }
    gc.collect()  # Functions that know themselves, as recursive ones do, are there until then.
    kept = (each for each in gc.get_objects() if isinstance(each, types.FunctionType))
    return bool(read_in) and not any(each.__code__ in read_in for each in kept)


def _names_read(uses: Iterable[Use]) -> set[str]:
    return {part for use in uses if not use.changes for part in (use.root, *use.attributes)}


def _leading_to(name: str, mentions: Collection[Mention]) -> set[str]:
    """A name, the functions and variables that mention it, those that mention them, and so on."""
    found, more = {name}, {name}
    while more:
        more = {each.by for each in mentions if each.name in more} - found - {""}
        found |= more
    return found


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
        static = any(_last(each) == "staticmethod" for each in function.decorator_list)
        return positional(function)[id(function) in self._methods and not static :]


class Order:
    """Where functions come to the target, for what they change behind that."""

    def __init__(self, files: Iterable[File], mentions: Iterable[Mention], names: Collection[str]) -> None:
        """For the target and what leads to it, of these `names`."""
        self._files = {file.path: file for file in files}
        #: The lines on which a function or variable of a file mentions one of the names.
        self._lines: dict[tuple[str, str], list[int]] = {}
        for each in mentions:
            if each.name in names:
                self._lines.setdefault((each.path, each.by), []).append(each.line)
        #: By file, the lines on which its functions begin, and those of its loops.
        self._laid_out: dict[str, tuple[dict[str, int], list[range]]] = {}

    def may_follow(self, change: Use, *, itself: bool = True) -> bool:
        """Whether a change comes behind one of the names in its function, or is in a loop with one.

        One on the line of the change counts where it is not the change `itself` that is named there.
        """
        return self.comes_after(change.scope.path, change.scope.function, change.line, itself=itself)

    def comes_after(self, path: str, function: str, at: int, *, itself: bool) -> bool:
        """Whether line `at` of a function, of a module for ``""``, comes behind one of the names there."""
        lines = self._lines.get((path, function))
        if not lines:
            return False
        begins, loops = self._layout(path)
        around = [loop for loop in loops if at in loop]
        # Decorators, as `hydra.main` of a `main`, stand ahead of all that the function does.
        first = begins.get(function, 0)
        return any(
            line < at + itself or any(line in loop for loop in around) for line in lines if line >= first
        )

    def _layout(self, path: str) -> tuple[dict[str, int], list[range]]:
        if path not in self._laid_out:
            begins, loops = dict[str, int](), []
            for _, node in self._files[path].nodes:
                if isinstance(node, FUNCTIONS[:2]):
                    begins[node.name] = min(node.lineno, begins.get(node.name, node.lineno))
                elif isinstance(node, LOOPS):
                    loops.append(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            self._laid_out[path] = begins, loops
        return self._laid_out[path]


def _defined(space: dict[str, Any], name: str) -> tuple[str, str]:
    """File and outermost function that define what a dotted name stands for; empty for no function."""
    found: Any = None
    for part in name.split("."):
        found = space.get(part)
        space = getattr(found, "__dict__", {})
    if not isinstance(found, types.FunctionType):
        return "", ""
    return found.__code__.co_filename, found.__qualname__.partition(".")[0]


def _outermost(function: types.FunctionType) -> tuple[str, str]:
    """The file of a nested function, and the outermost function around it; ``""`` for none."""
    outer, inner, _ = function.__qualname__.partition(LOCALS)
    return function.__code__.co_filename, outer.rpartition(".")[2] if inner else ""


def _enclosed(function: types.FunctionType) -> dict[str, dict[str, Any]]:
    """What a function has from functions around, and what functions among that have: by file.

    The names are ``F.<locals>.name``.
    """
    found: dict[str, dict[str, Any]] = {}
    waiting, seen = [function], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        path, outer = _outermost(one)
        for name, value in enclosed(one).items():
            found.setdefault(path, {})[f"{outer}{LOCALS}{name}"] = value
            plain = unwrapped(value)[0]
            waiting += [plain] if plain is not None else []
    return found


def _changers(files: Iterable[File], maker: tuple[str, str]) -> dict[str, list[Parameter]]:
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
                called.setdefault(outermost, set()).add(_last(node.func))
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
        called = _last(node.func)
        return called in TAKERS | FILLERS | {"setattr"} or any(each.arg == "out" for each in node.keywords)
    counted = isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    return counted or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


def _changed_in(node: Any, around: Scope, given: Sequence[str], *, makes: bool) -> list[Parameter]:
    """The parameters, of those `given` by place, in whose values a function changes something.

    Of the function that `makes` the target, it may be done by then.
    """
    changed: dict[tuple[str, bool], tuple[bool, bool]] = {}
    for use in _of_function(node, around):
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


def _values(use: Use, spaces: Spaces) -> list[Any]:
    """What a global variable holds, and its attributes, as far as they are plain ones.

    So does a variable of a function around, where it is one of the target's.
    """
    path, values = use.scope.path, list[Any]()
    space = spaces.enclosed.get(path, {}) if use.is_free else spaces.modules[path]
    for name in (use.root, *use.attributes):
        if name not in space:
            break
        values.append(space[name])
        space = getattr(values[-1], "__dict__", {})
    return values


def _places(use: Use, spaces: Spaces, objects: Sequence[Any]) -> list[Place]:
    """What a read comes by, or what a change changes; `objects` are those that locals may stand for."""
    space = spaces.modules[use.scope.path]
    if use.changes and use.attributes[-1:] == (ALL,):
        return [(_holder(value), name) for value in _owners(use, spaces, objects) for name in (ALL, ONE)]
    if not use.is_global:
        if not use.attributes:
            return []
        name = use.attributes[0]
        found = [value for value in objects if not use.is_own or _is_of(value, space, use)]
        if use.in_doubt:
            found = [
                each for each in found if isinstance(getattr(each, "__dict__", {}).get(name), CONTAINERS)
            ]
        if use.inside:
            found = [each for each in found if not _is_fixed(_followed(each, use.attributes))]
        places = [place for value in found for place in _on_the_way(value, use)]
        # What a property returns is found by no name.
        followed = found and all(_leads_on(value, use) for value in found if _has(value, name))
        return places if followed else [*places, *_of_unknown(use, objects)]
    values, names = _values(use, spaces), (use.root, *use.attributes)
    holders = [id(space), *map(_holder, values)]
    named = [*zip(holders, names, strict=False)]
    content = [(id(values[-1]), "")] if values else []
    if not use.changes:
        below = (place for holder, name in named[1:] for place in _of_attribute(use, holder, name))
        return [*named[:1], *below, *content]
    if use.in_doubt and not (len(values) == len(names) and isinstance(values[-1], CONTAINERS)):
        return []
    if use.inside and use.is_free:
        return named
    if use.inside:
        return content if len(values) == len(names) and not _is_fixed(values[-1]) else []
    if len(named) < len(names):
        return _of_unknown(use, objects)
    return named if len(names) == 1 else _of_attribute(use, *named[-1])


def _kept_parameters(function: types.FunctionType) -> set[str]:
    """The parameters to which a function gives no other value."""
    code = function.__code__
    stored = [each.argval for each in dis.get_instructions(code) if each.opname.startswith("STORE_")]
    names = {name for each in stored for name in (each if isinstance(each, tuple) else (each,))}
    return {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - names


def _may_be(value: Any, use: Use) -> bool:
    """Whether an object has what a function asks of a local of its own."""
    for name, is_method in use.scope.asked.get(use.root, ()):
        own = getattr(value, "__dict__", {}).get(name, _NOTHING)
        if not (_has(value, name) if own is _NOTHING else callable(own) or not is_method):
            return False
    return True


def _of_unknown(use: Use, objects: Sequence[Any]) -> list[Place]:
    """What a change ``a.b.rate = …`` changes where nothing that is known has a `b`: it may be any object."""
    if not use.changes or use.inside or len(use.attributes) < 2:
        return []
    name = use.attributes[-1]
    return [place for each in objects if _has(each, name) for place in _of_attribute(use, id(each), name)]


def _on_the_way(value: Any, use: Use) -> Iterator[Place]:
    """The places of the attributes of a use, the first of which is that of a value."""
    for name in use.attributes:
        if not _has(value, name):
            return
        if use.changes and not use.inside and name == use.attributes[-1] and _is_computed(value, name):
            return
        for holder in _lookup(value, name, use):
            yield from _of_attribute(use, id(holder), name)
        value = getattr(value, "__dict__", {}).get(name)


def _followed(value: Any, attributes: Iterable[str]) -> Any:
    """What plain attributes of a value lead to, or the property that one of them is."""
    for name in attributes:
        value = inspect.getattr_static(value, name, _NOTHING)
    return value


def _is_fixed(value: Any) -> bool:
    """Whether nothing can be changed in a value: ``x /= 2`` of a function that is given it makes another."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_fixed, value))
    return isinstance(value, (*FIXED, jax.Array))


def _leads_on(value: Any, use: Use) -> bool:
    """Whether the attributes of a use, but for the last, are plain ones of a value and of what they hold."""
    for name in use.attributes[:-1]:
        if name not in getattr(value, "__dict__", {}):
            return False
        value = vars(value)[name]
    return True


def _objects_in(objects: Iterable[Any]) -> list[Any]:
    """The user's objects that some objects hold in attributes and containers, and what those hold."""
    found: list[Any] = []
    seen = {id(value) for value in objects}
    waiting = [*objects]
    while waiting:
        value = waiting.pop()
        parts = [*getattr(value, "__dict__", {}).values()]
        if isinstance(value, dict):
            parts += itertools.islice(value.values(), MANY_PARTS)
        elif isinstance(value, COLLECTIONS):
            parts += itertools.islice(value, MANY_PARTS)
        for each in parts:
            own = is_users_object(each)
            if id(each) not in seen and (own or isinstance(each, (dict, *COLLECTIONS))):
                seen.add(id(each))
                waiting.append(each)
                found += [each] if own else []
    return found


def _lookup(value: Any, name: str, use: Use) -> list[Any]:
    """What may hold an attribute of a value: itself, and where it is read, the classes that it has it of."""
    if use.changes or name in getattr(value, "__dict__", {}):
        return [value]
    classes = (value if isinstance(value, type) else type(value)).__mro__
    return [value, *(each for each in classes if name in vars(each))]


def _is_computed(value: Any, name: str) -> bool:
    """Whether an attribute cannot be set: a property without a setter, as the `value` of an enum's member."""
    found = inspect.getattr_static(type(value), name, None)
    return isinstance(found, (property, types.DynamicClassAttribute)) and found.fset is None


def _of_attribute(use: Use, holder: int, name: str) -> list[Place]:
    """The places of an attribute, those among them by which it is met where all attributes are meant."""
    if use.changes:
        return [(holder, name), (holder, ONE)]
    return [(holder, name), (holder, ONE if name == ALL else ALL)]


def _holder(value: Any) -> int:
    """The id of what has the attributes of a value: of a module, its namespace."""
    return id(vars(value) if isinstance(value, types.ModuleType) else value)


def _owners(use: Use, spaces: Spaces, objects: Sequence[Any]) -> list[Any]:
    """The objects of which a change of any attribute is one."""
    owner = replace(use, attributes=use.attributes[:-1])
    if owner.is_own:
        found = [value for value in objects if _is_of(value, spaces.modules[use.scope.path], use)]
        for name in owner.attributes:
            found = [vars(each)[name] for each in found if name in getattr(each, "__dict__", {})]
        return found
    if not (owner.is_global or owner.is_free):
        return []  # Where it is a parameter, what is given for it changes.
    values = _values(owner, spaces)
    return values[-1:] if len(values) == 1 + len(owner.attributes) else []


class HandedOn:
    """What is given to functions and classes, by the name that it has there and by what it is."""

    def __init__(self, given: Iterable[Given], spaces: Spaces) -> None:
        self._spaces = spaces
        self._by_name: dict[tuple[str, str, str], list[Given]] = {}
        self._by_value: dict[int, list[Given]] = {}
        for each in given:
            self._by_name.setdefault((each.path, each.function, each.variable), []).append(each)
            value = spaces.modules[each.path].get(each.variable)
            if value is not None:
                self._by_value.setdefault(id(value), []).append(each)

    def of(self, change: Use) -> Iterable[Given]:
        """Where the value in which something changes is given to another function or class."""
        if not (change.inside or change.attributes):
            return ()  # They keep what the variable had.
        if not change.is_global or change.is_free:
            name = change.root.rpartition(LOCALS)[2]
            return self._by_name.get((change.scope.path, change.scope.function, name), ())
        # A global may have another name where it is given.
        values = _values(change, self._spaces)[-1:] if change.inside else []
        changed = [value for value in values if not _is_fixed(value)]
        return [each for value in changed for each in self._by_value.get(id(value), ())]


def _kept_elsewhere(change: Use, given: HandedOn, objects: Sequence[Any]) -> Iterator[Place]:
    """Where functions and objects keep what changes by a name that their makers were given."""
    for each in given.of(change):
        yield ANY_MODULE, f"{each.maker}{LOCALS}{each.parameter}"
        made = [value for value in objects if type(value).__name__ == each.maker]
        yield from ((id(value), name) for value in made for name in getattr(value, "__dict__", ()))


def _handed_on(files: Collection[File]) -> Iterator[Given]:
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
            maker = original.get(called := _last(call.func), called)
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


def _mentions(file: File, target: str) -> Iterator[Mention]:
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
        elif isinstance(node, ast.Assign) and not by and _last(getattr(node.value, "func", node)) != target:
            made = list(_names(ast.walk(node.value)))
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


def _is_of(value: Any, space: dict[str, Any], use: Use) -> bool:
    own = space.get(use.scope.owner)
    of = value if isinstance(value, type) else type(value)
    if isinstance(own, type):
        return issubclass(of, own)
    # A function makes that class, or the program has not come to it yet.
    return any(each.__name__ == use.scope.owner for each in of.__mro__)


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
        name, given = _last(node.func), node.args
        if isinstance(node.func, ast.Attribute) and name in ("__setattr__", "__delattr__"):
            # Of a class it takes the object, too.
            own = [] if _last(node.func.value) == "object" else [node.func.value]
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


def _at_import(tree: ast.Module) -> tuple[dict[str, list[int]], set[str]]:
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
            called.setdefault(_last(each), []).append(each.lineno)
        body = node.body if isinstance(node, FUNCTIONS) else []
        inside = body if isinstance(body, list) else [body]
        children = [each for each in ast.iter_child_nodes(node) if each not in inside]
        read |= {_last(each) for each in children if each not in callees}
        waiting += children
    return called, read


def _calls(file: File) -> tuple[set[str], set[str]]:
    """The names of what a file calls to decorate, ``@name(…)``, and of all that it calls in other ways."""
    nodes = [node for _, node in file.nodes]
    above = {id(each): each for node in nodes for each in getattr(node, "decorator_list", [])}
    made = [each.func for each in above.values() if isinstance(each, ast.Call)]
    plain = [each for each in above.values() if not isinstance(each, ast.Call)]
    plain += [node.func for node in nodes if isinstance(node, ast.Call) and id(node) not in above]
    return {*map(_last, made)}, {*map(_last, plain)}


def _names_module(file: File, stem: str) -> bool:
    """Whether a file may import a module of that name, by a statement or by a string."""
    nodes = [node for _, node in file.nodes]
    named = [node.name for node in nodes if isinstance(node, ast.alias)]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    named += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any(stem in name.split(".") for name in named)


def _last(node: ast.AST) -> str:
    """``"b"`` of ``b`` and ``a.b``; ``""`` of anything but a name that is read."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _of_module(body: Iterable[ast.AST], scope: Scope) -> Iterator[Use]:
    """The changes in the statements of a module, which are those of the program where it is run as one."""
    own = [node for node in _own(body) if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    stored = [each.id for each in _names(own) if not isinstance(each.ctx, ast.Load)]
    again = {name for name in stored if stored.count(name) > 1}
    again |= {name for node in own if isinstance(node, LOOPS) for name in _stored(_own([node]))}
    yield from (use for use in _of_code(own, scope, frozenset(again)) if use.changes)


def _of_statements(body: Iterable[ast.AST], scope: Scope) -> Iterator[Use]:
    """Those in the functions of a module or a class."""
    pending = [*body][::-1]
    while pending:
        node = pending.pop()
        if isinstance(node, FUNCTIONS):
            yield from _of_function(node, scope, is_method=bool(scope.owner))
        elif isinstance(node, ast.ClassDef):
            within = Scope(scope.path, owner=node.name, changers=scope.changers)
            yield from _of_statements(ast.iter_child_nodes(node), within)
        else:
            pending += [*ast.iter_child_nodes(node)][::-1]


def _of_function(node: Any, around: Scope, *, is_method: bool = False) -> Iterator[Use]:
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


#: The names that a function takes from around it.
_free_in = functools.cache(free_names)


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
    stored = [each.id for each in _names(own) if not isinstance(each.ctx, ast.Load)]
    return {name for name in made if made.count(name) == stored.count(name)}


def _is_new(value: ast.expr) -> bool:
    """Whether nothing else holds a value, or what is in it: ``{"rate": 0.1}``, ``copy.deepcopy(options)``."""
    if isinstance(value, ast.Call):
        return _last(value.func) == "deepcopy"
    return all(isinstance(each, PLAIN) for each in ast.walk(value))


def _is_copy(value: ast.expr) -> bool:
    """Whether nothing else holds a value itself: ``list(shape)``, ``{**defaults}``."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in COPIES
    return isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp))


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
            yield from _of_function(node, scope)
        elif isinstance(node, ast.ClassDef):
            within_class = replace(scope, owner=node.name, receiver="", making=False)
            yield from _of_statements(ast.iter_child_nodes(node), within_class)
        elif isinstance(node, ast.Call):
            called, given = _last(node.func), node.args
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
    if isinstance(of, ast.Call) and _last(of.func) == "globals" and isinstance(key, ast.Constant):
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
