"""The example inputs of the target: made by the user's function or from specs, and described."""

import dataclasses
import enum
import functools
import inspect
import sys
import types
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import arguments, load, protocol, specs
from .arguments import Values
from .exceptions import raising
from .leaves import bytes_of, category, dtype_of, is_abstract, leaf_paths, shape_of, skeleton
from .origins import file_of, is_users
from .protocol import Problem, Row
from .target import become, current

#: Bytes of one set of inputs above which no second one is made.
MANY_BYTES = 1 << 28


def inputs_from_callable(request: protocol.InputsFromCallable) -> protocol.Inputs:
    """Call the user's input function, with fresh seeds where it takes one."""
    target = current()
    make = load.resolve(request.reference, request.directory, request.file)
    if not callable(make):
        raise Problem("inputs", f"`{request.reference}` is a {type(make).__name__}, not a callable")
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    needed = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if [name for name in needed if name != "seed"] and len(needed) > 1:
        raise Problem(
            "inputs", f"`{request.reference}` needs arguments {needed}; it may take `seed` and no other"
        )
    seeds = [0, 1] if "seed" in parameters or len(needed) == 1 else [None]
    data: list[Values] = []
    called: Values | None = None
    named: tuple[str, ...] = ()
    for seed in seeds:
        if data and (is_abstract(data[0]) or bytes_of(data[0]) > MANY_BYTES):
            break  # One set of shapes says all; of large arrays one set is enough to hold.
        call = functools.partial(make, **({"seed": seed} if "seed" in parameters else {}))
        if seed is not None and "seed" not in parameters:
            call = functools.partial(make, seed)
        with raising("inputs"):
            made = jax.eval_shape(call) if request.abstract else call()
        load.check_made(made)
        args, kwargs = split_call(made)
        named = tuple(kwargs)
        args, kwargs = (*target.bound_args, *args), {**target.bound_kwargs, **kwargs}
        data.append(arguments.bind(target.signature, args, kwargs))
        called = called or arguments.bind_as_given(target.signature, args, kwargs)
    # The file of the inputs may say in which mode the program runs.
    x64 = bool(jax.config.jax_enable_x64)
    become(dataclasses.replace(target, data=tuple(data), called=called, named=named, maker=make, x64=x64))
    return protocol.Inputs(describe(data[0]), len(data))


def split_call(made: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """The argument tuple, or ``(args, kwargs)``, or a dict of all arguments by name.

    A dict is an argument itself where the function can be called with it alone.
    """
    target = current()
    parameters = target.signature.parameters.values()
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if (
        type(made) is tuple
        and len(made) == 2
        and isinstance(made[0], (tuple, list))
        and isinstance(made[1], dict)
        and all(isinstance(key, str) for key in made[1])
        and (any_name or set(made[1]) <= set(target.signature.parameters))
    ):
        return made[0], made[1]
    if type(made) is tuple:
        return made, {}
    if isinstance(made, list) and len(made) == len(target.signature.parameters):
        return made, {}
    if type(made) is dict and not _binds(made) and _binds(**made):
        return (), made
    return (made,), {}


def _binds(*args: Any, **kwargs: Any) -> bool:
    """Whether the target can be called so, besides what it is given already."""
    target = current()
    try:
        target.signature.bind(*target.bound_args, *args, **{**target.bound_kwargs, **kwargs})
    except TypeError:
        return False
    return True


def inputs_from_specs(request: protocol.InputsFromSpecs) -> protocol.Inputs:
    """Make arguments from the specs of `--arg`, annotations and defaults."""
    target = current()
    data: list[Values] = []
    for seed in (0, 1):
        with raising("inputs"):
            values = specs.materialize_arguments(request.specs, specs.SEED + seed, target.namespace())
        bound = target.signature.bind_partial(*target.bound_args, **target.bound_kwargs).arguments
        every = {**bound, **values}
        order = [name for name in target.signature.parameters if name in every]
        call = inspect.BoundArguments(target.signature, OrderedDict((n, every[n]) for n in order))
        data.append(arguments.bind(target.signature, call.args, call.kwargs))
    become(dataclasses.replace(target, data=tuple(data), called=data[0], named=()))
    return protocol.Inputs(describe(data[0]), len(data))


def draw_inputs(request: protocol.DrawInputs) -> protocol.Inputs:
    """Have arrays in the place of shapes, where they take no more than `MANY_BYTES`."""
    target = current()
    if bytes_of(target.data[0]) <= MANY_BYTES:
        data = tuple(map(specs.drawn, target.data))
        called = None if target.called is None else specs.drawn(target.called)
        become(dataclasses.replace(target, data=data, called=called))
    return protocol.Inputs(describe(current().data[0]), len(target.data))


def switch(request: protocol.Switch) -> protocol.Inputs:
    """Have the modules among the example inputs in the mode that the function switches them to at first."""
    target = current()
    for values in (*target.data, *([target.called] if target.called is not None else [])):
        for call in request.calls:
            eval(call, target.namespace(), dict(values))
    # What was found out is of the other mode.
    become(dataclasses.replace(target))
    return protocol.Inputs(describe(target.data[0]), len(target.data))


def describe(values: Values) -> tuple[Row, ...]:
    """Leaves and containers of every argument."""
    target = current()
    table = []
    for name, value in values.items():
        paths = leaf_paths(value)
        leaves = jax.tree.leaves(value)
        constants = arguments.constants(value)
        table.append(
            {
                "name": name,
                "none": value is None,
                "abstract": is_abstract(value),
                "repr": repr(value)[:200] if all(category(x) != "array" for x in leaves) else "",
                "hashable": hashable(value),
                "callable": callable(value),
                "kept": may_change(value),
                "default": is_default(value, target.signature.parameters[name].default),
                "type": type(value).__name__,
                "tree": skeleton(value),
                "partition": arguments.partition_of(value),
                "modes": arguments.modes(value),
                "functions": arguments.functions(value, name),
                "leaves": [
                    {
                        "path": name + path,
                        "shape": list(shape_of(leaf)),
                        "dtype": given_dtype(leaf),
                        "category": category(leaf),
                        "constant": index in constants,
                        "repr": repr(leaf)[:80] if index in constants else "",
                    }
                    for index, (path, leaf) in enumerate(zip(paths, leaves, strict=False))
                ],
            }
        )
    return tuple(table)


def is_default(value: Any, default: Any) -> str:
    """How a value can be told from others by its parameter's default: ``"is"``, ``"=="`` or not at all.

    Functions and modules compare by identity, which only another name of the same object shares;
    objects of a class with an equality of its own also equal what their source makes anew.
    """
    if type(value) is not type(default) or isinstance(value, (jax.Array, np.ndarray)):
        return ""
    try:
        if "__eq__" in vars(type(value)) and bool(value == default):
            return "=="
    except Exception:
        return ""
    return "is" if value is default else ""


def given_dtype(leaf: Any) -> str:
    """The dtype a leaf has once jax takes it, in the user's own 64-bit mode."""
    if category(leaf) == "array":
        return str(jax.dtypes.canonicalize_dtype(leaf.dtype))
    return dtype_of(leaf)


def may_change(value: Any) -> bool:
    """Whether a value may be the same object and another configuration: what is in it can be assigned to."""
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    if callable(value) or frozen or isinstance(value, (enum.Enum, types.ModuleType)):
        return False
    return hasattr(value, "__dict__") or isinstance(value, (dict, list, set))


def hashable(value: Any) -> bool:
    """Whether a value can be a static argument."""
    try:
        hash(value)
    except Exception:
        return False
    return True


def constants(request: protocol.Constants) -> Mapping[str, str | None]:
    """``repr`` of what expressions read of an argument, by expression.

    None where there is no such thing, where it is not made of Python's own numbers, strings and containers,
    or is not the same for all inputs.
    """
    target = current()
    found: dict[str, str | None] = {}
    for expression in request.expressions:
        given = set()
        for values in target.data:
            try:
                value = eval(expression, {request.name: values[request.name]})
            except Exception:
                value = ...
            given.add(repr(value) if plain(value) else None)
        found[expression] = given.pop() if len(given) == 1 else None
    return found


def identities(request: protocol.Identities) -> Mapping[str, protocol.Identity | None]:
    """What each expression is told from others by; see `protocol.Identities`."""
    target = current()
    contents = load.define(request.code, "<jax-pmap>", request.name, {})
    found: dict[str, protocol.Identity | None] = {}
    for expression in request.expressions:
        given: set[protocol.Identity | None] = set()
        for values in target.data:
            try:
                value = eval(expression, dict(values))
                digest, arrays = contents(value)
                given.add(protocol.Identity(digest, imported_as(value), bool(arrays)))
            except Exception:
                given.add(None)
        found[expression] = given.pop() if len(given) == 1 else None
    return found


def imported_as(value: Any) -> str:
    """``"jax.nn:relu"`` of what an installed module has by its own name; else ``""``.

    By the module that users know, not ``"jax._src.nn.functions"``. What is the user's own is none: it may be
    edited, and is still what has that name.
    """
    name, home = getattr(value, "__qualname__", ""), getattr(value, "__module__", None)
    if not isinstance(home, str) or not isinstance(name, str) or not name.isidentifier():
        return ""
    top = home.partition(".")[0]
    if is_users(file_of(sys.modules.get(top))):
        return ""
    known = [
        each
        for each, module in list(sys.modules.items())
        if each.partition(".")[0] == top
        and not any(part.startswith("_") for part in each.split("."))
        and isinstance(module, types.ModuleType)
        and vars(module).get(name) is value
    ]
    return f"{min(known, key=lambda each: (each.count('.'), each))}:{name}" if known else ""


def plain(value: Any) -> bool:
    """Whether a value is a Python number, string, bool or None, or a container of such."""
    if isinstance(value, (tuple, list)):
        return type(value) in (tuple, list) and all(plain(each) for each in value)
    if isinstance(value, dict):
        return type(value) is dict and all(plain(each) for pair in value.items() for each in pair)
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def enclosed_arrays(request: protocol.EnclosedArrays) -> tuple[protocol.EnclosedArray, ...]:
    """The arrays that the target reads besides its arguments.

    Names are those of the namespace the target runs in; what stands for an argument, as ``self.x``, is
    looked up in the example. A function of the user's leads to what it reads in its turn, and is
    named with that.
    """
    target = current()
    given = target.data[0] if target.data else {}
    space = {**target.namespace(), **given}
    found: list[protocol.EnclosedArray] = []
    # An object that is a pytree is an argument with all of its arrays.
    known = {id(leaf) for leaf in jax.tree.leaves(list(given.values())) if category(leaf) == "array"}
    for expression in request.expressions:
        head, *rest = expression.split(".")
        value = space.get(head)
        try:
            for name in rest:
                value = inspect.getattr_static(value, name)
        except AttributeError:
            continue
        _arrays_of(expression, value, "", found, known)
    return tuple(found)


def _arrays_of(
    name: str, value: Any, through: str, found: list[protocol.EnclosedArray], known: set[int]
) -> None:
    """Add the arrays of `value`, or those around it where it is a function of the user's."""
    target = current()
    function = inspect.unwrap(value) if callable(value) else None
    if inspect.isfunction(function):
        files = (
            file_of(target.module),
            getattr(target.fn, "__code__", _arrays_of.__code__).co_filename,
        )
        if id(function) in known or function.__code__.co_filename not in files:
            return
        known.add(id(function))
        try:
            around = inspect.getclosurevars(function)
        except ValueError:  # A variable around it has no value yet.
            return
        for inner, inside in {**around.globals, **around.nonlocals}.items():
            _arrays_of(inner, inside, name, found, known)
        return
    try:
        leaves = jax.tree.leaves(value)
        paths = leaf_paths(value)
    except (AttributeError, TypeError, ValueError):
        return
    rows = [
        protocol.EnclosedArray(name + path, name, tuple(leaf.shape), through)
        for path, leaf in zip(paths, leaves, strict=False)
        if category(leaf) == "array" and id(leaf) not in known
    ]
    found += [row for row in rows if row.path not in {other.path for other in found}]
