"""The target as the user's program called it: the function object, what it closes over, the arguments."""

import ast
import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import load
from .functions import enclosed, unwrapped
from .origins import is_users

#: Leaves that a kept call must have in another form.
OURS = (jax.core.Tracer, np.ndarray)
#: Values that are looked through for functions before giving up.
MOST_VALUES = 64


class Traced(Exception):
    """An argument is a tracer that stands for no one value."""


class Call:
    """The target as the program called it: the function object, what it closes over, the arguments."""

    def __init__(
        self,
        raw: types.FunctionType,
        called: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        owner: str | None,
        caller: str,
    ) -> None:
        #: The function as written, less its decorators.
        self.raw = raw
        #: What the program called: `raw` in its decorators.
        self.called = called
        self.args, self.kwargs = concrete(tuple(args)), concrete(dict(kwargs))
        #: Name of the class whose body the function is defined in.
        self.owner = owner
        #: ``FILE:LINE`` of the call.
        self.caller = caller
        self.closure = {name: concrete(value) for name, value in closure_of(raw).items()}
        self.x64 = bool(jax.config.jax_enable_x64)

    @property
    def module(self) -> types.ModuleType:
        """The module the function was defined in."""
        name = self.raw.__globals__.get("__name__", "")
        module = sys.modules.get(name)
        if module is None or vars(module) is not self.raw.__globals__:
            module = types.ModuleType(name)
            vars(module).update(self.raw.__globals__)
        return module

    def namespace(self) -> dict[str, Any]:
        """Globals of the function, with the variables of the functions around it."""
        return {**self.raw.__globals__, **self.closure}

    def define(self, source: str, filename: str, name: str, namespace: dict[str, Any]) -> Any:
        """Run `source`, which defines another version of the function, where that was defined.

        Defaults are those of the function, annotations are left out: both may use names that nothing but
        the place of the definition has.
        """
        load.show_lines(source, filename)
        tree = ast.parse(source)
        (index,) = (i for i, node in enumerate(tree.body) if getattr(node, "name", "") == name)
        node = tree.body[index]
        assert isinstance(node, ast.FunctionDef)
        strip(node)
        holder = self.owner or name
        if self.owner:  # Python mangles `__names` by the class they stand in.
            tree.body[index] = ast.copy_location(class_around(self.owner, node), node)
        hidden = {holder: namespace[holder]} if holder in namespace else {}
        exec(compile(tree, filename, "exec", dont_inherit=True), namespace)
        made = namespace.pop(holder)
        namespace.update(hidden)
        if self.owner:
            (made,) = (each for each in vars(made).values() if isinstance(each, types.FunctionType))
        made.__defaults__, made.__kwdefaults__ = self.raw.__defaults__, self.raw.__kwdefaults__
        self.close_over(made)
        return made

    def define_edited(self, source: str, filename: str, name: str, owner: str) -> Callable[..., Any]:
        """Run what an edit adds to the file, where the function was defined; the drop-in `name`.

        What is new beside a method is put into the class of the running program.
        """
        load.show_lines(source, filename)
        namespace, tree = self.namespace(), ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                strip(node, defaults=node.name == name)
        real = namespace.get(owner) if owner else None
        exec(compile(tree, filename, "exec", dont_inherit=True), namespace)
        found = namespace
        if owner:
            found = dict(vars(namespace[owner]))
            if real is None:
                real = self.class_called(owner)
            namespace[owner] = real
            for each, value in found.items():
                if each != name and not (each.startswith("__") and each.endswith("__")):
                    type.__setattr__(real, each, value)
        made = getattr(found[name], "__func__", found[name])
        for value in found.values():
            function = function_under(value)
            if function is not None and function.__globals__ is namespace:
                self.close_over(function)
        drop_in = function_under(made)
        assert drop_in is not None
        drop_in.__defaults__, drop_in.__kwdefaults__ = self.raw.__defaults__, self.raw.__kwdefaults__
        return made  # type: ignore[no-any-return]

    def close_over(self, function: types.FunctionType) -> None:
        """Give another version of the function what the original closes over: `__class__`, for `super()`."""
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable in self.closure:
                cell.cell_contents = self.closure[variable]
            elif variable == "__class__" and self.owner:
                # What the file has in its place calls `super()` one function further in.
                cell.cell_contents = self.class_called(self.owner)

    def class_called(self, name: str) -> type:
        """The class `name` of the object that the method was called on."""
        receiver = self.args[0] if self.args else None
        own = receiver if isinstance(receiver, type) else type(receiver)
        return next((each for each in own.__mro__ if each.__name__ == name), own)


def strip(node: ast.FunctionDef, *, defaults: bool = True) -> None:
    """Take annotations off a definition, and put None for its `defaults`."""
    node.returns = None
    rest = [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *rest):
        argument.annotation = None
    if not defaults:
        return
    none = functools.partial(ast.Constant, value=None, lineno=node.lineno, col_offset=node.col_offset)
    node.args.defaults = [none() for _ in node.args.defaults]
    node.args.kw_defaults = [None if each is None else none() for each in node.args.kw_defaults]


def class_around(name: str, node: ast.stmt) -> ast.ClassDef:
    """``class name:`` with `node` as its body."""
    (made,) = ast.parse(f"class {name}: pass").body
    assert isinstance(made, ast.ClassDef)
    made.body = [node]
    return made


def closure_of(fn: types.FunctionType) -> dict[str, Any]:
    """Variables of the functions around `fn`: its own, then those of the functions among them."""
    found: dict[str, Any] = {}
    pending, seen = [fn], set()
    while pending:
        function = pending.pop(0)
        seen.add(id(function))
        for name, value in enclosed(function).items():
            found.setdefault(name, value)
            inside = [each for each in functions_in(value) if each.__globals__ is fn.__globals__]
            pending += [each for each in inside if id(each) not in seen]
    return found


def functions_in(value: Any) -> list[types.FunctionType]:
    """Plain functions that a value stands for, or holds where installed code put them (`hk.transform`)."""
    found, pending = list[types.FunctionType](), [value]
    for _ in range(MOST_VALUES):
        if not pending:
            break
        each = pending.pop(0)
        function = function_under(each)
        if function is not None:
            found.append(function)
            if not is_users(function.__code__.co_filename):
                pending += enclosed(function).values()
        elif isinstance(each, tuple):
            pending += each
    return found


def function_under(value: Any) -> types.FunctionType | None:
    """The plain function that bound methods, partials and wrappers stand for, or None."""
    return unwrapped(value, all_the_way=True)[0]


def concrete(value: Any) -> Any:
    """`value` with numbers in place of the tracers of a gradient, and with arrays of its own.

    Raises:
        Traced: a tracer that stands for no one value.
    """

    def leaf(each: Any) -> Any:
        while isinstance(each, jax.core.Tracer) and hasattr(each, "primal"):
            each = each.primal
        if isinstance(each, jax.core.Tracer):
            raise Traced(type(each).__name__)
        # Loaders fill the same buffer again.
        return each.copy() if isinstance(each, np.ndarray) else each

    try:
        leaves = jax.tree.leaves(value)
    except (TypeError, ValueError):  # A dict whose keys cannot be sorted; whoever takes it apart says so.
        return value
    # What holds neither stays the same object.
    return jax.tree.map(leaf, value) if any(isinstance(each, OURS) for each in leaves) else value
