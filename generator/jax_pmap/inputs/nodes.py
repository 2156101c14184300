"""What the values of a function are known to be while its body is walked."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(slots=True, eq=False)
class Node:
    """What is known of one value."""

    #: Name the reader knows it by: the parameter, the key, the attribute, the loop variable.
    word: str
    #: Python source that reaches it from the arguments; empty for any element of a loop.
    path: str = ""
    #: Entries by dict key, sequence position or attribute.
    keys: dict[str | int, Node] = field(default_factory=dict)
    positions: dict[int, Node] = field(default_factory=dict)
    attributes: dict[str, Node] = field(default_factory=dict)
    #: What every element is, where the body loops over them.
    each: Node | None = None
    #: Number of elements, where the body unpacks them.
    count: int = 0
    #: True when `count` came from unpacking, which no array of another length survives.
    unpacked: bool = False
    #: What a use says: ``"index"``, ``"key"``, ``"size"``, ``"callable"``, ``"flag"`` …
    uses: set[str] = field(default_factory=set)
    #: Literals it is compared with, as Python source.
    values: list[str] = field(default_factory=list)
    #: The object whose ``update(grads, THIS, params)`` it goes through, and the params if given.
    optimiser: tuple[str, Node | None] | None = None
    #: The object whose ``apply(THIS, x)`` it goes through, the input, and whether it is wrapped
    #: as ``{"params": THIS}``.
    module: tuple[str, Node, bool] | None = None
    #: Number of dims, where `einsum` or unpacking the shape says it.
    rank: int | None = None
    #: The node it goes hand in hand with in ``jax.tree.map``.
    alike: Node | None = None
    #: What it has the form of, where it is no argument: as a gradient of one.
    form_of: Node | None = None
    #: True when a gradient is taken with respect to it.
    differentiated: bool = False
    #: True when a function takes it where it takes what a gradient is taken of, in another call.
    parameter: bool = False
    #: True when the body handles it as an array (``x.shape``, arithmetic, ``x[:, 0]``).
    arraylike: bool = False

    def key(self, name: str | int) -> Node:
        """The entry of a dict."""
        return self.keys.setdefault(name, Node(str(name), self.path and f"{self.path}[{name!r}]"))

    def position(self, index: int) -> Node:
        """The element at a position, counted from the end when negative."""
        return self.positions.setdefault(index, Node(self.word, self.path and f"{self.path}[{index}]"))

    def element(self) -> Node:
        """Any element."""
        if self.each is None:
            self.each = Node(self.word)
        return self.each


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function value: its definition and the names around it."""

    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Mapping[str, Value]
    #: Arguments `functools.partial` has filled in.
    filled: tuple[Value, ...] = ()
    named: Mapping[str, Value] = field(default_factory=dict)
    #: Positions a gradient is taken of.
    argnums: tuple[int, ...] = ()
    #: Whether a call gives the function's value, too, ahead of the gradient.
    valued: bool = False

    def gradient(self, positional: Sequence[Value]) -> Value:
        """What a call that takes a gradient gives for these arguments."""
        of = [positional[index] if 0 <= index < len(positional) else None for index in self.argnums]
        each = [Node(node.word, form_of=node) if isinstance(node, Node) else None for node in of]
        made = each[0] if len(each) == 1 else Items(tuple(each))
        return Items((None, made)) if self.valued else made


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """A tuple or list displayed in the body."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleExpression:
    """What a call of names of the module alone makes: ``optax.adam(1e-3)``."""

    #: Python source.
    text: str


Value: TypeAlias = "Node | Function | Items | ModuleExpression | None"
