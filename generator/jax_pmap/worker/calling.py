"""How a parallel function takes the reference's arguments: by which parameters, and which it has already."""

import functools
import inspect
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from . import arguments
from .arguments import Values, invoke

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _names(function: Any) -> list[str]:
    """Parameters that a function takes by position; none where it does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind in POSITIONAL]


@dataclass(frozen=True)
class Calling:
    """A parallel function, and what its parameters have to do with those of the reference."""

    function: Callable[..., Any]
    #: Of the reference.
    signature: inspect.Signature
    #: Parameters of the reference that its inputs name, and that are passed by name here.
    named: Collection[str] = ()
    #: Parameters that the reference changes in place.
    mutated: Collection[str] = ()

    @functools.cached_property
    def own(self) -> "dict[str, inspect.Parameter] | None":
        """The function's own parameters; None where it takes any, or does not tell."""
        try:
            found = dict(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):
            return None
        return None if any(p.kind in ANY for p in found.values()) else found

    @functools.cached_property
    def bound(self) -> Values:
        """What `functools.partial` has given the function, by name, under the transformations of jax too."""
        found: Values = {}
        inner: Any = self.function
        for _ in range(16):
            if isinstance(inner, functools.partial):
                found = {**dict(zip(_names(inner.func), inner.args, strict=False)), **inner.keywords, **found}
                inner = inner.func
            elif hasattr(inner, "__wrapped__"):
                inner = inner.__wrapped__
            else:
                break
        return found

    @functools.cached_property
    def taken_as(self) -> "dict[str, inspect.Parameter]":
        """The parameter that takes each of the reference's: that of its name, or else of its place.

        Of those that the function has; what it has bound already is none.
        """
        assert self.own is not None
        own = [p for p in self.own.values() if p.name not in self.bound]
        found = {p.name: p for p in own if p.name in self.signature.parameters}
        for place, name in enumerate(self.signature.parameters):
            if name in self.bound or name in found or place >= len(own):
                continue
            there = own[place]
            if there.kind in POSITIONAL and there.name not in self.signature.parameters:
                found[name] = there
        return found

    @property
    def left_out(self) -> list[str]:
        """Parameters of the reference that the function does not have, or has bound."""
        any_name = [p.name for p in self.signature.parameters.values() if p.kind in ANY]
        names = [name for name in self.signature.parameters if name not in any_name]
        if self.own is None or any_name:
            return [name for name in names if name in self.bound]
        return [name for name in names if name not in self.taken_as]

    @property
    def settled(self) -> list[str]:
        """Parameters of the reference whose numbers stay: the function has some of its own for them."""
        any_name = [p.name for p in self.signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        return [*self.left_out, *(any_name if self.bound else ())]

    def takes(self, name: str) -> bool:
        """Whether an argument of the reference is passed at all."""
        return name not in self.left_out

    @property
    def other_defaults(self) -> Values:
        """Defaults of the function that are not the reference's, by the reference's names."""
        if self.own is None:
            return {}
        found = {}
        for name, own in self.taken_as.items():
            parameter = self.signature.parameters[name]
            none = own.empty in (parameter.default, own.default)
            if not none and not is_default(own, parameter.default):
                found[name] = own.default
        return found

    def __call__(self, values: Values) -> Any:
        """Call with `values` as the reference's signature binds them.

        Parameters that the function does not have, or has bound, are left out. So are those for which it has
        another default, and what follows them: it is called as the reference is. What the reference changes
        in place comes behind the result, as a call leaves it: ``(result, (model, optimizer))``.
        """
        defaults = {
            name: own
            for name, own in self.other_defaults.items()
            if is_default(self.signature.parameters[name], values[name])
        }
        known = [parameter for name, parameter in self.signature.parameters.items() if self.takes(name)]
        if defaults:
            while known and is_default(known[-1], values[known[-1].name]):
                known.pop()
        given = {**arguments.own(values, self.mutated), **defaults}
        for name in [p.name for p in known if p.kind is p.VAR_KEYWORD]:
            given[name] = {key: value for key, value in given[name].items() if key not in self.bound}
        result = invoke(self.function, self._as_passed(known), given)
        return (result, tuple(given[name] for name in self.mutated)) if self.mutated else result

    def _as_passed(self, known: "list[inspect.Parameter]") -> inspect.Signature:
        """The reference's parameters with the names and kinds by which the function is given them."""
        keyword: list[inspect.Parameter] = []
        passed: list[inspect.Parameter] = []
        for parameter in known:
            own = self.taken_as.get(parameter.name) if self.own is not None else None
            alike = own is None or own.name == parameter.name
            by_name = parameter.kind in POSITIONAL and (
                (alike and parameter.name in self.named) or (own is not None and own.kind is own.KEYWORD_ONLY)
            )
            if by_name or parameter.kind is parameter.KEYWORD_ONLY:
                keyword.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            else:
                passed.append(parameter)
        # What takes any names stays behind all others.
        rest = [p for p in passed if p.kind is p.VAR_KEYWORD]
        first = [p for p in passed if p.kind is not p.VAR_KEYWORD]
        by_place = self._next(len(first), keyword)
        if by_place:
            keyword = [p for p in keyword if p.name not in by_place]
            first = [
                p.replace(kind=p.POSITIONAL_ONLY, default=p.empty)
                for p in (*first, *(self.signature.parameters[name] for name in by_place))
            ]
        return self.signature.replace(parameters=[*first, *keyword, *rest])

    def _next(self, place: int, keyword: "list[inspect.Parameter]") -> list[str]:
        """Those of some `keyword` parameters that the function takes by position, from `place` on.

        What is passed by name first is left; what maps a function over devices may take no names at all.
        """
        by_name = {p.name for p in keyword if p.name not in self.named}
        own = [p for p in (self.own or {}).values() if p.name not in self.bound]
        places = itertools.takewhile(lambda p: p.kind in POSITIONAL and p.name in by_name, own[place:])
        return [p.name for p in places]

    def defaults_apart(self, values: Values) -> str:
        """What to say of parameters left to defaults that differ, or bound to something else; or ``""``."""
        said = []
        for name, own in self.other_defaults.items():
            reference = self.signature.parameters[name]
            if is_default(reference, values[name]):
                said.append(f"`{name}` is {own!r} by default, and {reference.default!r} in the reference")
        for name, own in self.bound.items():
            if name in values and differ(own, values[name]):
                said.append(f"`{name}` is bound to {short(own)}, and {short(values[name])} in the inputs")
        return "; ".join(said)


def short(value: Any) -> str:
    """A value in few characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def differ(one: Any, other: Any) -> bool:
    """Whether two values are known to be different."""
    try:
        return bool(one != other)
    except Exception:
        return False


def is_default(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether a value is its parameter's default, as far as that can be told."""
    if parameter.default is parameter.empty:
        return False
    if value is parameter.default:
        return True
    try:
        return type(value) is type(parameter.default) and bool(value == parameter.default)
    except Exception:
        return False
