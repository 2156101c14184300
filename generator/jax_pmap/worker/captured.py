"""What a function may depend on besides its arguments' leaves, and could find changed at a later call.

A method reads it of its object, a nested function of the functions around it; and arguments are objects whose
methods are called.

Another object, or another call of the function around, may hold other ones: the name of a reduction, or a
function, or an array with another number of axes. Numbers that only scale, and what arrays hold, change
nothing of the collectives.
"""

import ast
import contextlib
import copy
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from . import load, protocol
from .arguments import parts
from .examples import imported_as
from .functions import enclosed, of_member
from .leaves import has_shape
from .load import text_of
from .origins import is_users, is_users_object, users_modules
from .target import current
from .telling import names_in

#: Of a whole object, how deep it is looked into, and how many constants of it are held one by one.
DEEP, MANY = 4, 24
#: Calls that only say what they are given.
SAYING = frozenset(
    {"print", "warn", "named_scope", "debug", "info", "warning", "error", "log", "TraceAnnotation"}
)
#: Attributes of modules of Flax that say where they stand.
PLACES = frozenset({"parent", "name"})

#: Functions, and methods of arrays, that compute numbers of numbers.
COMPUTING = frozenset({"int", "bool", "round", "abs", "min", "max", "len", "tuple", "str", "float"})
READING = frozenset({"item", "tolist", "sum", "max", "min", "argmax", "argmin", "any", "all"})

Definition = ast.FunctionDef | ast.Lambda


def captured(request: protocol.FindCaptured) -> tuple[protocol.CapturedConstant, ...]:
    """The constants, in the order in which they are read; see `protocol.FindCaptured`."""
    target = current()
    space = {**target.namespace(), **(target.data[0] if target.data else {})}
    given = {name: space[name] for name in request.objects if name in space and name != request.receiver}
    classes = [_type_of(path, value) for path, value in _with_methods(given, target.fn)]
    return (*_read_besides(request, space), *classes)


def _read_besides(
    request: protocol.FindCaptured, space: Mapping[str, Any]
) -> Iterator[protocol.CapturedConstant]:
    """What the target reads of its object, and of the functions around it."""
    around = {name: name for name in request.around if name in space and name not in request.hidden}
    roots = {request.receiver: request.receiver} if request.receiver in space else {}
    if not roots and not around:
        return
    nodes = ast.walk(_Plain().visit(ast.parse(request.text)))
    node = next((n for n in nodes if isinstance(n, Definition) and n.lineno == request.line), None)
    if node is None:
        return
    contents = load.define(request.code, "<jax-pmap>", request.name, {})
    tops = vars(current().module)
    reader = _Reader(request, space, tops, lambda value, scales: contents(value, scales=scales)[0])
    reader.follow(node, roots | around, space, own=True)
    yield from reader.found.values()


def _type_of(path: str, value: Any) -> protocol.CapturedConstant:
    """The class of an object, by its name."""
    name = type(value).__qualname__
    return protocol.CapturedConstant(f"type({path}).__qualname__", repr(name), "", "str")


def _with_methods(given: Mapping[str, Any], function: Any) -> list[tuple[str, Any]]:
    """Objects in the arguments a method of which, or a property, the user's code uses, with their paths.

    Another class, derived from theirs perhaps, may have another one of the name. What is called as it is
    (`model(x)`) and what libraries call is left out: a model may be another one. The first `MANY` are taken.
    """
    objects = [each for name, value in given.items() for each in _objects(name, value)]
    names = names_in([function])
    while True:
        used = [(path, value, {*_methods(type(value))} & names) for path, value in objects]
        more = names_in(_methods(type(value))[name] for _, value, own in used for name in own)
        if more <= names:
            return [(path, value) for path, value, own in used if own][:MANY]
        names |= more


def _objects(path: str, value: Any, depth: int = DEEP) -> Iterator[tuple[str, Any]]:
    """The objects of the user's that a value is, or holds."""
    own = is_users_object(value) and not isinstance(value, type)
    if own:
        yield path, value
    if depth and (own or isinstance(value, dict | list | tuple)):
        for inner, part in parts(value, path):
            yield from _objects(inner, part, depth - 1)


def _methods(kind: type) -> dict[str, types.FunctionType]:
    """The functions of a class that are the user's, behind what wraps them; not those that Python calls."""
    found = {}
    for name in dir(kind):
        function = of_member(inspect.getattr_static(kind, name, None))
        if function is not None and not name.startswith("__") and is_users(function.__code__.co_filename):
            found[name] = function
    return found


@dataclass(frozen=True, slots=True)
class _Followed:
    """A function that is gone through."""

    #: The expressions of the target that some of its names stand for, and what all of them are.
    bound: Mapping[str, str]
    names: Mapping[str, Any]
    #: The node around each.
    parents: Mapping[ast.AST, ast.AST]
    #: Whether it is the target.
    own: bool


class _Reader:
    """Follows what is read from the target on, through the user's functions that are given it."""

    def __init__(
        self,
        request: protocol.FindCaptured,
        space: Mapping[str, Any],
        tops: Mapping[str, Any],
        digest: Callable[[Any, bool], str],
    ) -> None:
        self.request, self.space, self.tops, self.digest = request, space, tops, digest
        self.found: dict[str, protocol.CapturedConstant] = {}
        self.followed: set[tuple[int, str]] = set()

    def follow(
        self, node: ast.AST, bound: Mapping[str, str], names: Mapping[str, Any], *, own: bool = False
    ) -> None:
        """Take what a function reads of the names in `bound`, which stand for expressions of the target."""
        bound = {**bound}
        parents = {child: each for each in ast.walk(node) for child in ast.iter_child_nodes(each)}
        here = _Followed(bound, names, parents, own)
        stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in stored:
            if name in bound:
                del bound[name]  # It is another value from there on; what it was is read where it is bound.
        named = set[ast.AST]()
        for statement in ast.walk(node):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                at = statement.targets[0]
                path = self._path(statement.value, here)
                if isinstance(at, ast.Name) and stored.count(at.id) == 1 and path:
                    bound[at.id] = path
                    named.add(statement.value)
                elif isinstance(at, ast.Tuple | ast.List) and path and self._is_row(path, at):
                    once = [each if stored.count(each.id) == 1 else None for each in at.elts]  # type: ignore[attr-defined]
                    bound |= {each.id: f"{path}[{i}]" for i, each in enumerate(once) if each is not None}  # type: ignore[attr-defined]
        for each in ast.walk(node):
            if (
                isinstance(each, ast.Name)
                and isinstance(each.ctx, ast.Load)
                and each.id in bound
                and not _leads_to(each, parents, named)
            ):
                self._read(each, here)
            if isinstance(each, ast.Name) and each.id == "super" and self.request.receiver in bound.values():
                self._of_base(each, here)

    def _of_base(self, name: ast.Name, here: _Followed) -> None:
        """Go on in the method that ``super().step`` is, or take all of the object where it is no user's."""
        receiver = self.request.receiver
        own = self.space[receiver]
        classes = (own if isinstance(own, type) else type(own)).__mro__
        defining = here.names.get("__class__") or self._owner(classes)
        call = here.parents.get(name)
        at = here.parents.get(call) if isinstance(call, ast.Call) and not call.args else None
        if defining in classes and isinstance(at, ast.Attribute):
            after = classes[classes.index(defining) + 1 :]
            method = next((vars(each)[at.attr] for each in after if at.attr in vars(each)), None)
            function = inspect.unwrap(method) if callable(method) else None
            if isinstance(function, types.FunctionType) and _tree_of(function) is not None:
                given = "" if isinstance(method, staticmethod) else receiver
                self._called(function, at, here, given)
                return
        self._whole(receiver, own)

    def _path(self, node: ast.AST, here: _Followed) -> str:
        """The expression of the target that a chain stands for, or ``""``."""
        chain = node
        while isinstance(chain, ast.Attribute) or _is_entry(chain):
            chain = chain.value  # type: ignore[attr-defined]
        if not isinstance(chain, ast.Name) or chain.id not in here.bound:
            return ""
        text = ast.unparse(node)
        return here.bound[chain.id] + text[len(chain.id) :]

    def _value(self, path: str) -> Any:
        try:
            return eval(path, dict(self.space))
        except Exception:
            return NotImplemented

    def _read(self, name: ast.Name, here: _Followed) -> None:
        """Take what is read at a name: the longest chain from it on that leads to a constant."""
        read: ast.AST = name
        path = here.bound[name.id]
        value = self._value(path)
        while self._is_open(value):
            around = here.parents.get(read)
            if not (isinstance(around, ast.Attribute) or (_is_entry(around) and around.value is read)):  # type: ignore[union-attr]
                break
            after = path + ast.unparse(around)[len(ast.unparse(read)) :]  # type: ignore[arg-type]
            if isinstance(around, ast.Attribute) and around.attr.startswith("__"):
                owners = type(value).__mro__
                private = [f"_{o.__name__.lstrip('_')}{around.attr}" for o in owners]
                after = next((f"{path}.{p}" for p in private if hasattr(value, p)), after)
            found = self._value(after)
            if isinstance(found, types.MethodType) and found.__self__ is not None:
                if not self._said(around, here):  # type: ignore[arg-type]
                    self._method(path, value, found, around, here)
                return
            if isinstance(found, types.FunctionType) and _is_static(value, found.__name__):
                self._override(path, value, found)
                self._called(found, around, here)  # type: ignore[arg-type]
                return
            read, path, value = around, after, found  # type: ignore[assignment]
        if self._said(read, here) or value is NotImplemented:
            return
        scales = isinstance(value, int) and not isinstance(value, bool) and not _chooses(read, here.parents)
        counted = isinstance(around := here.parents.get(read), ast.Call) and ast.unparse(around.func) == "len"
        if has_shape(value) or isinstance(value, float) or scales or (counted and self._is_open(value)):
            self._computed(read, path, value, here)
            return
        around = here.parents.get(read)
        if isinstance(value, int) and not isinstance(value, bool):
            self._constant(path, int(value))
            return
        if _is_whole(value):
            if _chooses(read, here.parents):
                self._constant(path, value)
            return
        if isinstance(value, types.FunctionType) and self._is_around(path, value):
            self._called(value, read, here, defaults=path)
        elif isinstance(around, ast.keyword) and around.arg is None and isinstance(value, dict):
            for key, each in value.items():
                self._constant(f"{path}[{key!r}]", each)
        elif self._is_open(value):
            handed = self._given(around, read, here)
            if handed is not None:
                self._function(handed[0], {handed[1]: path})
            else:
                self._whole(path, value)
        else:
            self._constant(path, value)

    def _computed(self, read: ast.AST, path: str, value: Any, here: _Followed) -> None:
        """Hold what is computed of numbers, or of an array, where that is an axis, a size or a test.

        ``int(self.share)`` and ``self.basis.shape[0] // 2`` may choose, where the numbers themselves only
        scale. The leaves of an object that is a tree are arguments of the mapped function, and held as such.
        """
        if self._is_leaf(path, value):
            return
        whole, text = read, path
        found = value
        while isinstance(around := here.parents.get(whole), ast.expr):
            if isinstance(call := here.parents.get(around), ast.Call) and call.func is around:
                around = call
            if not (made := self._known(around, here)):
                break
            after = self._value(made)
            if not (has_shape(after) or isinstance(after, (int, float, str, tuple, list))):
                break
            whole, text, found = around, made, after
        if isinstance(found, np.generic):
            found = found.item()
        around = here.parents.get(whole)
        if isinstance(around, ast.If | ast.IfExp | ast.While) and around.test is whole:
            with contextlib.suppress(Exception):  # The program may have called the target while jax traced.
                found = bool(found)
        if isinstance(found, (bool, str)):
            self._constant(f"{type(found).__name__}({text})", found)
        elif _is_whole(found):
            if _chooses(whole, here.parents):
                self._constant(text, found)
        elif has_shape(value):
            self._rank(path, value)
        elif whole is read and (handed := self._given(around, read, here)):
            self._function(handed[0], {handed[1]: path})

    def _known(self, node: ast.AST, here: _Followed) -> str:
        """The expression of the target that computes a node of what is read alone; ``""`` for others."""
        if path := self._path(node, here):
            return path
        if isinstance(node, ast.Constant):
            return ast.unparse(node)
        made = copy.copy(node)
        if isinstance(node, ast.Call):
            function = node.func
            name, _, method = ast.unparse(function).rpartition(".")
            if isinstance(function, ast.Attribute) and method in READING and not (node.args or node.keywords):
                holder = self._known(function.value, here)
                return f"{holder}.{method}()" if holder and has_shape(self._value(holder)) else ""
            home = getattr(self.space.get(name), "__name__", "")
            builtin = not name and method in COMPUTING - self.space.keys()
            if not (builtin or home in ("numpy", "math")) or node.keywords:
                return ""
        elif not isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.Subscript):
            return ""
        for name, inside in ast.iter_fields(node):
            if name == "func" or not isinstance(inside, ast.expr | list):
                continue
            parts = [
                each
                for each in (inside if isinstance(inside, list) else [inside])
                if isinstance(each, ast.expr)
            ]
            texts = [self._known(each, here) for each in parts]
            if not all(texts):
                return ""
            known = [ast.parse(each, mode="eval").body for each in texts]
            if parts:
                setattr(made, name, known if isinstance(inside, list) else known[0])
        return ast.unparse(made)

    def _is_row(self, path: str, names: ast.Tuple | ast.List) -> bool:
        """Whether names are given the items of a tuple or a list, one for each."""
        value = self._value(path)
        plain = all(isinstance(each, ast.Name) for each in names.elts)
        return plain and isinstance(value, (tuple, list)) and len(value) == len(names.elts)

    def _given(self, around: ast.AST | None, read: ast.AST, here: _Followed) -> tuple[Any, str] | None:
        """The user's function that is called with what is read, and its parameter, where that is known."""
        keyword = around.arg if isinstance(around, ast.keyword) else None
        call = here.parents.get(around) if isinstance(around, ast.keyword) else around
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
            return None
        try:
            called = eval(ast.unparse(call.func), dict(here.names))
        except Exception:
            return None
        function = inspect.unwrap(called) if callable(called) else None
        if not isinstance(function, types.FunctionType) or _tree_of(function) is None:
            return None
        if any(isinstance(each, ast.Starred) for each in call.args):
            return None
        if keyword is None:
            index = next((at for at, each in enumerate(call.args) if each is read), None)
            parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
            if index is None or index >= len(parameters):
                return None
            keyword = parameters[index]
        return function, keyword

    def _function(self, function: types.FunctionType, bound: Mapping[str, str]) -> None:
        """Go on in a function of the user's, once for what its names stand for."""
        node = _tree_of(function)
        key = id(function.__code__), repr(sorted(bound.items()))
        if node is not None and key not in self.followed:
            self.followed.add(key)
            self.follow(node, bound, {**function.__globals__, **enclosed(function)})

    def _method(self, path: str, value: Any, method: types.MethodType, node: Any, here: _Followed) -> None:
        """Go on in a method of an object that is read."""
        function = inspect.unwrap(method.__func__)
        if not isinstance(function, types.FunctionType) or not is_users(function.__code__.co_filename):
            if path != self.request.receiver and is_users_object(value):
                self._whole(path, value)
            return
        if path == self.request.receiver:
            self._override(path, value, method)
        else:
            self._type(path, value)
        if _tree_of(function) is None or not function.__code__.co_argcount:
            self._whole(path, value)
            return
        self._called(function, node, here, path)

    def _called(
        self,
        function: types.FunctionType,
        node: ast.AST,
        here: _Followed,
        receiver: str = "",
        defaults: str = "",
    ) -> None:
        """Go on in a function at `node`, with what it is given there, and else by what it was made with."""
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        given = {name: name for name in enclosed(function) if self._visible(function, name)}
        made = function.__defaults__ if defaults else None
        for at, parameter in enumerate(parameters[len(parameters) - len(made or ()) :]):
            given[parameter] = f"{defaults}.__defaults__[{at}]"
        if receiver:
            given[parameters[0]] = receiver
        call = here.parents.get(node)
        if isinstance(call, ast.Call) and call.func is node:
            rest = parameters[bool(receiver) :]
            pairs = [*zip(rest, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
            for name, argument in pairs:
                if name is not None:
                    given.pop(name, None)
                    given |= {name: path} if (path := self._path(argument, here)) else {}
        self._function(function, given)

    def _is_around(self, path: str, value: types.FunctionType) -> bool:
        """Whether a name stands for the one function that a function around the target defines by it."""
        within = value.__qualname__.rpartition(".")[0]
        return (
            path in self.request.defined
            and value.__name__ == path
            and within.endswith("<locals>")
            and _tree_of(value) is not None
        )

    def _visible(self, function: types.FunctionType, name: str) -> bool:
        """Whether the target sees the variable of that name that a function beside it closes over."""
        return name in self.request.visible and name in self.space and name not in self.request.hidden

    def _is_open(self, value: Any) -> bool:
        """Whether a value is looked into for what it holds."""
        if isinstance(value, (type, types.FunctionType, types.ModuleType)) or has_shape(value):
            return isinstance(value, type) and value is self.space.get(self.request.receiver)
        plain = isinstance(value, (dict, list, types.SimpleNamespace)) or (
            isinstance(value, tuple) and not _is_whole(value)
        )
        return plain or (is_users_object(value) and not isinstance(value, types.MethodType))

    def _said(self, node: ast.AST, here: _Followed) -> bool:
        """Whether what is read at a node is only told to a reader, or decides a branch that is watched."""
        inner: ast.AST = node
        for around in _outward(node, here.parents):
            if isinstance(around, ast.Raise | ast.Assert):
                return True
            if isinstance(around, ast.Call) and inner is not around.func and _says(around):
                return True
            if isinstance(around, ast.If | ast.IfExp | ast.While) and around.test is inner:
                return (here.own and _is_watched(around, self.request.unreached)) or _only_says(around)
            if isinstance(around, ast.Match) and around.subject is inner:
                return here.own and _is_watched(around, self.request.unreached)
            if here.own and _is_unreached(around, self.request.unreached):
                return True
            inner = around
        return False

    def _whole(self, path: str, value: Any) -> None:
        """Take all that may decide of an object that is used as it is."""
        found = list(_constants(path, value, DEEP, {id(value)}))
        if path != self.request.receiver and is_users_object(value):
            self._type(path, value)
        if len(found) > MANY:
            with contextlib.suppress(Exception):
                self.found[path] = protocol.CapturedConstant(
                    path, "", self.digest(value, False), type(value).__name__
                )
                return
        for each, constant in found:
            if not self._counts_leaves(each):
                self._constant(each, constant)

    def _is_leaf(self, path: str, value: Any) -> bool:
        """Whether a value is a leaf of the object of the method, where that is a tree."""
        root = re.split(r"\W", path, maxsplit=1)[0]
        inside = [] if root != self.request.receiver else jax.tree_util.tree_leaves(self.space[root])
        return any(each is value for each in inside)

    def _counts_leaves(self, path: str) -> bool:
        """Whether it counts the parts of what holds leaves of that object alone, such as its parameters.

        They are arguments of the mapped function, and may be as many as in those of any other.
        """
        match = re.fullmatch(r"len\((.+)\)", path)
        inside = jax.tree_util.tree_leaves(self._value(match[1])) if match else [None]
        leaves = (has_shape(each) and self._is_leaf(match[1], each) for each in inside)  # type: ignore[index]
        return bool(inside) and all(leaves)

    def _rank(self, path: str, value: Any) -> None:
        """Hold an array to its number of axes.

        Where a vector is in the place of a matrix, the last axis of a product is that of the batch.
        """
        own = f"getattr({path}, 'ndim', 0)"
        self.found[own] = protocol.CapturedConstant(own, repr(len(value.shape)), "", "int")

    def _type(self, path: str, value: Any) -> None:
        own = _type_of(path, value)
        self.found[own.path] = own

    def _override(self, path: str, value: Any, method: Any) -> None:
        """Hold a method that another class or object of the user's may have anew to be that of the proof."""
        name = method.__name__
        own = value if isinstance(value, type) else type(value)
        base = self._owner(own.__mro__) or own
        method = inspect.getattr_static(own, name, None)
        anew = any(inspect.getattr_static(each, name, None) is not method for each in _derived(base))
        if anew or _is_assigned(name):
            # Bound methods of some libraries have no name of their own.
            named = getattr(getattr(value, name), "__qualname__", "") == method.__qualname__
            at = f"{path if named else f'type({path})'}.{name}.__qualname__"
            self.found[at] = protocol.CapturedConstant(at, repr(method.__qualname__), "", "str")

    def _owner(self, classes: Sequence[type]) -> type | None:
        """The class in whose body the target stands, where it is among these."""
        return next((each for each in classes if each.__qualname__ == self.request.owner), None)

    def _constant(self, path: str, value: Any) -> None:
        if path in self.found or (has_shape(value) and not isinstance(value, type)):
            return
        if value is None or isinstance(value, (bool, int, str, bytes, list, tuple)):
            self.found[path] = protocol.CapturedConstant(path, repr(value), "", type(value).__name__)
        elif callable(value):
            self._callable(path, value)

    def _callable(self, path: str, value: Any) -> None:
        """Take a function, or what stands for one, by its name, its contents or its object."""
        if named := self._named(value):
            self.found[path] = protocol.CapturedConstant(path, named, "", "function")
            return
        at, function = _innermost(path, value)
        if not isinstance(function, types.MethodType):
            if _is_users_function(function) or imported_as(function):
                self._digest(path, value)
            return
        holder, method = function.__self__, inspect.unwrap(function.__func__)
        if not is_users_object(holder) or not isinstance(method, types.FunctionType):
            return
        own = holder is self.space.get(self.request.receiver)
        at = self.request.receiver if own else f"{at}.__self__"
        if own:
            self._override(at, holder, function)
        else:
            self._type(at, holder)
        if _tree_of(method) is None or not method.__code__.co_argcount:
            self._whole(at, holder)
        else:
            self._function(method, {method.__code__.co_varnames[0]: at})

    def _digest(self, path: str, value: Any) -> None:
        """Take what is told by its contents; where these cannot be read, by nothing."""
        try:
            digest = self.digest(value, True)
        except Exception:
            digest = ""
        kind = "function" if callable(value) else type(value).__name__
        self.found[path] = protocol.CapturedConstant(path, "", digest, kind)

    def _named(self, value: Any) -> str:
        """What the file calls a function or a class at its top: ``"jnp.mean"``; else ``""``."""
        own = getattr(value, "__name__", "")
        if not isinstance(own, str) or not own.isidentifier():
            return ""
        hidden = {*self.request.hidden, *self.request.visible}
        tops = {name: each for name, each in self.tops.items() if name not in hidden}
        if tops.get(own, NotImplemented) is value:
            return own
        for name, each in tops.items():
            if isinstance(each, types.ModuleType) and vars(each).get(own) is value:
                return f"{name}.{own}"
        home, _, known = imported_as(value).partition(":")
        top = home.partition(".")[0]
        return f"{home}.{known}" if top and getattr(tops.get(top), "__name__", "") == top else ""


class _Plain(ast.NodeTransformer):
    """Writes ``getattr(self, "axis")`` as ``self.axis``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != "getattr" or len(node.args) != 2:
            return node
        of, name = node.args
        if not isinstance(name, ast.Constant) or not str(name.value).isidentifier():
            return node
        return ast.copy_location(ast.Attribute(of, str(name.value), ast.Load()), node)


def _is_entry(node: ast.AST | None) -> bool:
    """Whether an expression is ``read["name"]``."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.slice, ast.Constant)
    )


def _leads_to(node: ast.AST, parents: Mapping[ast.AST, ast.AST], named: set[ast.AST]) -> bool:
    """Whether a name begins a chain that is given another name."""
    while node not in named:
        around = parents.get(node)
        if not isinstance(around, ast.Attribute) and not _is_entry(around):
            return False
        node = around  # type: ignore[assignment]
    return True


def _is_whole(value: Any) -> bool:
    """Whether a value is an integer, as of an axis, or a tuple of such."""
    if type(value) is tuple:
        return bool(value) and all(type(each) is int for each in value)
    return type(value) is int


def _is_static(value: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(type(value), name, None), staticmethod)


def _chooses(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a number may be an axis, a size or an index: it is no operand, and counts no rounds."""
    around = parents.get(node)
    if isinstance(around, ast.Call):
        # ``range(n)`` counts, and ``range(first, n)`` may go over axes.
        return node is not around.func and (ast.unparse(around.func) != "range" or len(around.args) > 1)
    if isinstance(around, ast.keyword) and isinstance(call := parents.get(around), ast.Call):
        # A counter that goes on in the next object.
        return not ast.unparse(call.func).endswith("replace")
    return not isinstance(around, ast.BinOp | ast.UnaryOp | ast.AugAssign)


def _outward(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while (around := parents.get(node)) is not None:
        yield around
        node = around


def _says(call: ast.Call) -> bool:
    """Whether a call only tells a reader what it is given."""
    return ast.unparse(call.func).rpartition(".")[2] in SAYING


def _only_says(node: ast.AST) -> bool:
    """Whether the branches of a statement do nothing but tell a reader, or raise."""
    if not isinstance(node, ast.If):
        return False
    return all(
        isinstance(each, ast.Raise | ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and _says(each.value))
        for each in (*node.body, *node.orelse)
    )


def _is_unreached(node: ast.AST, unreached: Sequence[tuple[int, int, int, int]]) -> bool:
    if not isinstance(node, ast.stmt | ast.expr):
        return False
    own = node.lineno, node.col_offset
    end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return any((a, b) <= own and end <= (c, d) for a, b, c, d in unreached)


def _is_watched(node: ast.stmt | ast.expr, unreached: Sequence[tuple[int, int, int, int]]) -> bool:
    """Whether the emitted code raises where a test has another outcome than in the proof."""
    end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return any((node.lineno, node.col_offset) <= (line, column) < end for line, column, *_ in unreached)


def _tree_of(function: types.FunctionType) -> Definition | None:
    """The definition of a function of the user's, as its file has it."""
    code = function.__code__
    return (
        _tree_at(code.co_filename, code.co_name, code.co_firstlineno) if is_users(code.co_filename) else None
    )


@functools.lru_cache(maxsize=512)
def _tree_at(path: str, name: str, line: int) -> Definition | None:
    try:
        tree = _Plain().visit(ast.parse(text_of(path)))
    except (OSError, SyntaxError, ValueError):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.FunctionDef) and node.name == name)
        and min([node.lineno, *(each.lineno for each in node.decorator_list)]) == line
    ]
    return found[0] if len(found) == 1 else None


def _innermost(path: str, value: Any) -> tuple[str, Any]:
    """The function behind `jax.jit` and `functools.partial`, and the expression that reads it."""
    while not isinstance(value, (type, types.FunctionType, types.MethodType)):
        if isinstance(value, functools.partial):
            path, value = f"{path}.func", value.func
        elif callable(getattr(value, "__wrapped__", None)) and not imported_as(value):
            path, value = f"{path}.__wrapped__", value.__wrapped__
        else:
            break
    return path, value


def _is_users_function(value: Any) -> bool:
    """Whether a function, or a class, is the user's."""
    if isinstance(value, types.FunctionType):
        return is_users(value.__code__.co_filename)
    return isinstance(value, type) and is_users_object(value)


def _derived(base: type) -> Iterator[type]:
    """A class and all that are derived from it."""
    yield base
    below: list[type] = type.__subclasses__(base)
    for each in below:
        yield from _derived(each)


def _is_assigned(name: str) -> bool:
    """Whether code of the user's gives some object an attribute of that name: ``self.loss = loss``."""
    return any(name in _assigned(path) for _, path in users_modules())


@functools.cache
def _assigned(path: str) -> frozenset[str]:
    """The names of attributes that a file assigns."""
    try:
        nodes = list(ast.walk(ast.parse(text_of(path))))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    stored = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    by_name = {
        str(n.args[1].value)
        for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "setattr"
        if len(n.args) == 3 and isinstance(n.args[1], ast.Constant)
    }
    return frozenset(stored | by_name)


def _is_scale(value: Any) -> bool:
    """Whether a value is an array or a number that is no bool."""
    return not isinstance(value, bool) and (isinstance(value, (int, float, complex)) or has_shape(value))


def _constants(path: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What an object holds that may decide, with the expressions that read it."""
    inside: list[tuple[str, Any]]
    if isinstance(value, dict):
        inside = [(f"{path}[{key!r}]", each) for key, each in value.items() if isinstance(key, (str, int))]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        inside = [(f"{path}.{name}", getattr(value, name)) for name in value._fields]
    elif (
        type(value) in (list, tuple)
        and value
        and (
            all(isinstance(each, (str, bytes)) for each in value) or all(type(each) is int for each in value)
        )
    ):
        yield path, value
        return
    elif isinstance(value, (list, tuple)):
        inside = [(f"{path}[{at}]", each) for at, each in enumerate(value)]
    elif isinstance(value, types.SimpleNamespace) or is_users_object(value):
        fields = getattr(value, "__dataclass_fields__", {})
        library = any(
            not is_users_object(each) and each.__module__ != "builtins" for each in type(value).__mro__
        )
        attributes: dict[str, None] = {name: None for name in fields if name not in PLACES}
        if not library and hasattr(value, "__dict__"):
            attributes |= dict.fromkeys(vars(value))
        inside = [(f"{path}.{name}", getattr(value, name)) for name in attributes if hasattr(value, name)]
    else:
        return
    if isinstance(value, (list, tuple, dict)) and not all(_is_scale(each) for _, each in inside):
        yield f"len({path})", len(value)
    for text, each in inside:
        if each is None or isinstance(each, (bool, str, bytes)):
            yield text, each
        elif isinstance(each, (int, float, complex)):
            continue
        elif isinstance(each, (type, types.FunctionType, functools.partial)) or hasattr(each, "__wrapped__"):
            yield text, each
        elif depth and id(each) not in seen:
            seen.add(id(each))
            yield from _constants(text, each, depth - 1, seen)
