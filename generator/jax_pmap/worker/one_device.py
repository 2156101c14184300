"""Code that synchronises over a mapped axis, run as on a map over one device."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from .arguments import partitioned
from .exceptions import describe_exception, text_of
from .protocol import Raised


class OneDevice:
    """Runs code with the axes bound that it turns out to need, each to one device."""

    def __init__(self, axes: Mapping[str, Raised] = MappingProxyType({})) -> None:
        #: The axes found so far: name, and the error of running without.
        self.axes: dict[str, Raised] = dict(axes)

    def run(self, body: Callable[[], Any]) -> Any:
        """What `body` returns.

        Which axes it needs is found by running it: a collective may stand in a library's code, under a
        name that an object was made with.
        """
        while True:
            try:
                return self._bound(body)
            except NameError as error:
                name = unbound_axis(error)
                if name is None or name in self.axes:
                    raise
                self.axes[name] = describe_exception(error)

    def _bound(self, body: Callable[[], Any]) -> Any:
        if not self.axes:
            return body()

        made: list[Callable[[Sequence[Any]], Any]] = []

        def run(_: Any) -> list[Any]:
            arrays, again = partitioned(body())
            made.append(again)
            return arrays

        fn: Callable[..., Any] = run
        for name in self.axes:
            fn = jax.vmap(fn, axis_name=name, axis_size=1, in_axes=None)
        out = fn(0)
        for _ in self.axes:
            out = jax.tree.map(lambda x: x[0], out)
        return made[-1](out)


def unbound_axis(error: NameError) -> str | None:
    """The name of the mapped axis that a collective did not find, where that is the error."""
    found = re.search(r"unbound axis name: (.+?)(?:\. To fix this|$)", text_of(error))
    return found[1] if found else None
