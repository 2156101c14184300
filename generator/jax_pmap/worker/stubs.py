"""Modules that stand in for packages which the function does not need: `--stub tensorflow`.

A training script imports what loads its data, and what logs. Where that is not installed, or takes long, an
object that takes every use stands for all there is in the package.
"""

import builtins
import dis
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from .origins import is_users

#: The names of the packages, with commas between them.
VARIABLE = "JAX_PMAP_STUB"


class _Anything(type):
    """The type of what stands for a class, a function or an object: it has every attribute, itself such."""

    def __getattr__(cls, name: str) -> Any:
        # What Python and libraries ask objects for by such names is not there.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _stub(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("stands_in"):
            return super().__call__(*args, **kwargs)  # A class of the user's, derived from one.
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]  # As a decorator.
        return _stub(f"{cls.__qualname__}()")

    def __getitem__(cls, key: Any) -> Any:
        return _stub(f"{cls.__qualname__}[]")

    def __iter__(cls) -> Iterator[Any]:
        """As many as names are assigned, as of ``figure, axes = plt.subplots()``, and none in a loop."""
        asking = sys._getframe(1)
        operation, count = asking.f_code.co_code[asking.f_lasti : asking.f_lasti + 2]
        return iter([cls] * count if dis.opname[operation] == "UNPACK_SEQUENCE" else ())

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *error: object) -> None:
        return None

    def __repr__(cls) -> str:
        return f"<stand-in for {cls.__qualname__}>"


def _stub(name: str) -> Any:
    # Named in ``except`` and as the base of classes, too.
    return _Anything(name.rpartition(".")[2], (Exception,), {"stands_in": True, "__qualname__": name})


class _Module(types.ModuleType):
    """A module in which there is everything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _stub(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


def install() -> None:
    """Have the user's code import stand-ins for the packages that the environment names.

    A library that asks whether such a package is there is told the truth.
    """
    names = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    if not names:
        return
    of_python, made = builtins.__import__, dict[str, _Module]()
    tops = {name.partition(".")[0] for name in names}

    def imported(name: str, *rest: Any, **named: Any) -> Any:
        # Libraries import inside functions that they call at every value.
        if name.partition(".")[0] not in tops or not any(
            name == each or name.startswith(each + ".") for each in names
        ):
            return of_python(name, *rest, **named)
        if not is_users(sys._getframe(1).f_code.co_filename):
            return of_python(name, *rest, **named)
        given = dict(zip(("globals", "locals", "fromlist"), rest, strict=False)) | named
        shown = name if given.get("fromlist") else name.partition(".")[0]
        return made.setdefault(shown, _Module(shown, "Stands in for a package that is not needed."))

    builtins.__import__ = imported
