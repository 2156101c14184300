"""`--inputs` for a method: a program that calls it with what they return, its object first."""

from __future__ import annotations

import ast
import dataclasses
import os
import shlex
from pathlib import Path

from jax_pmap.locate import as_others_import, locate
from jax_pmap.locating.paths import import_name
from jax_pmap.model import Request, Source
from jax_pmap.reading.decorators import receiver_of
from jax_pmap.reading.target import takes_object, with_its_class
from jax_pmap.syntax.parse import parse
from jax_pmap.worker import protocol

#: How the message begins where the inputs are not what the method takes.
MISFIT = "what it returns does not fit: "
#: What calls a method with the inputs. A seed is 0, as for the first inputs of a function.
CALL = """\
import importlib, inspect, sys
for root in {roots!r}:
    if root not in sys.path: sys.path.append(root)
target, {maker} = importlib.import_module({module!r}), importlib.import_module({inputs_module!r})
for name in {qualname!r}.split("."): target = getattr(target, name)
for name in {callable!r}.split("."): {maker} = getattr({maker}, name)
made = {maker}(seed=0) if "seed" in inspect.signature({maker}).parameters else {maker}()
pair = type(made) is tuple and len(made) == 2
pair = pair and isinstance(made[0], (tuple, list)) and isinstance(made[1], dict)
args, kwargs = made if pair else (made if type(made) is tuple else (made,), {{}})
try: inspect.signature(target).bind(*args, **kwargs)
except TypeError as error: raise TypeError({misfit!r} + str(error)) from None
target(*args, **kwargs)
"""


def with_call(request: Request) -> Request:
    """`request`, with the inputs of a method as the program that calls it.

    A method needs its object, which a function that returns arguments can return as well; a class method
    needs its class, which importing the module makes.
    """
    name = request.target.rpartition(":")[2]
    if request.inputs is None or request.run is not None or "." not in name:
        return request
    source = locate(request.target, request.directory, request.instead)
    parsed = parse(source)
    in_classes = all(isinstance(each, ast.ClassDef) for each in parsed.enclosing)
    called = in_classes and receiver_of(parsed) and not takes_object(parsed, request)
    if source.binding is not None or not called or with_its_class(source, request).binding is not None:
        return request
    source = as_others_import(source, request)
    return dataclasses.replace(request, run=shlex.join(["python", "-c", _call(source, request)]))


def _call(source: Source, request: Request) -> str:
    """The text of the program."""
    where, double, name = (request.inputs or "").partition("::")
    if double:
        path = Path(os.path.normpath(request.directory.absolute() / Path(where).expanduser()))
        module, root = import_name(path)
    else:
        module, _, name = (request.inputs or "").partition(":")
        root = request.directory.absolute()
    return CALL.format(
        roots=[str(root), str(source.root)],
        module=source.module,
        qualname=source.qualname,
        inputs_module=module,
        callable=name,
        misfit=MISFIT,
        maker=protocol.MAKER,
    )


def said(request: Request) -> str:
    """What runs the target, as the user typed it."""
    return f"--inputs {request.inputs}" if request.inputs is not None else str(request.run)
