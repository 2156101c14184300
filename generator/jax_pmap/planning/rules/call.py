"""One call as a rule sees it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from jax_pmap.planning.values import Value
from jax_pmap.reading.resolve import UNKNOWN, Resolver


class Walker(Protocol):
    """What a rule may ask of the walk through the body."""

    resolver: Resolver

    def whole(self, node: ast.expr, value: Value) -> Value:
        """The value after a collective around `node`, where it needs one."""

    def invoke(self, function: Value, arguments: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        """What a function of the file returns for arguments of these kinds."""

    def value(self, node: ast.expr) -> Value:
        """The value of an expression, evaluated now."""

    def note(self, node: ast.expr, text: str) -> None:
        """Tell the reader of an assumption."""

    def refuse(self, code: str, node: ast.expr, reason: str, hint: str) -> NoReturn:
        """Give up."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call with the values that go into it."""

    node: ast.Call
    #: Qualified name of what is called; a method of an array reads as its ``jax.numpy`` function.
    name: str
    function: Value
    #: Expressions and values of positional arguments, an array method's own array first.
    nodes: tuple[ast.expr, ...]
    args: tuple[Value, ...]
    keywords: Mapping[str, Value]
    walker: Walker

    @property
    def every(self) -> tuple[Value, ...]:
        """All values that go in."""
        return (*self.args, *self.keywords.values())

    @property
    def text(self) -> str:
        """The called function as written."""
        return ast.unparse(self.node.func)

    def option(self, name: str, position: int) -> object:
        """A literal argument by name or position: its value, None when left out, `UNKNOWN` when computed."""
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return self.walker.resolver.literal(keyword.value)
        if len(self.nodes) > position:
            return self.walker.resolver.literal(self.nodes[position])
        return None

    def axes(self, position: int = 1) -> tuple[int, ...] | object | None:
        """The literal `axis` argument as a tuple; None when left out, `UNKNOWN` when computed."""
        axis = self.option("axis", position)
        if axis is None or axis is UNKNOWN:
            return axis
        return axis if isinstance(axis, tuple) else (axis,)

    def whole_arguments(self) -> tuple[Value, ...]:
        """All values that go in, each after the collective it needs."""
        given = zip(self.nodes, self.args, strict=True)
        named = [(keyword.value, self.keywords[keyword.arg or ""]) for keyword in self.node.keywords]
        return tuple(self.walker.whole(node, value) for node, value in [*given, *named])

    def refuse_coupled(self, what: str) -> NoReturn:
        """Refuse an operation that mixes examples."""
        self.walker.refuse(
            "JP043",
            self.node,
            f"`{self.text}` {what}.",
            "If it was meant to run along another axis, say so (`axis=1`). With example inputs (`--inputs`, "
            "`--arg`, without `--no-proof`) it is tried whether gathering the batch is right.",
        )


def plain(name: str) -> str:
    """Name of a ``jax.numpy`` (or numpy) function without its module, or ``""``."""
    for module in ("jax.numpy.", "numpy."):
        if name.startswith(module):
            return name.removeprefix(module)
    return ""
