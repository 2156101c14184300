"""Following facts, or values, through a traced program from what it is given to what it makes."""

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar

from .versions import bind, inner_jaxpr, opened, primitive_name, scan_parts, while_parts
from .walk import CONTROL, control

Fact = TypeVar("Fact")


class Forward(Generic[Fact]):
    """Goes through a program in order, with a fact for every value of it.

    A subclass says what is known of a constant, of the results of an operation, and of a value that is one of
    two. Calls, branches and loops are gone into here: of a branch the facts of all ways are joined, and a
    loop goes round until its carry teaches nothing more.

        class Depth(Forward[int]):
            '''How many operations there are from the inputs to a result, at least.'''

            def constant(self, value): return 0
            def operation(self, equation, facts): return [1 + min(facts)] * len(equation.outvars)
            def join(self, one, other): return min(one, other)

        >>> Depth().run(jax.make_jaxpr(lambda x: jnp.sin(jnp.exp(x)))(1.0), [0])
        [2]

    Facts are compared by ``==``. From any fact, `join` may lead to finitely many others one after another.

    Attributes:
        path: where the present equation stands: its index, behind those of the equations around it, each
            with the number of the jaxpr in it, ``(4, 0, 2)``.
        loops: lengths of the loops around it, the outermost first; -1 where it is not known.
        settled: whether the facts are those of all rounds of the loops around it. Before, each equation of
            a loop is met with those of its first rounds.
    """

    #: What is gone into, of `CONTROL`; any other equation is an operation.
    enters: frozenset[str] = CONTROL

    def __init__(self) -> None:
        self.path: tuple[int, ...] = ()
        self.loops: tuple[int, ...] = ()
        self.settled = True

    def constant(self, value: Any) -> Fact:
        """What is known of a number or an array in the program; itself, where values go through."""
        fact: Fact = value
        return fact

    def operation(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """What is known of each result of an equation that is not gone into."""
        raise NotImplementedError

    def join(self, one: Fact, other: Fact) -> Fact:
        """What is known of a value that is one of two."""
        raise NotImplementedError

    def under(self, fact: Fact, choice: Fact) -> Fact:
        """What is known of a value that was chosen, by a branch or the test of a loop."""
        return fact

    def share(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """What each device knows of the operands of a function mapped over devices."""
        return facts

    def run(self, jaxpr: Any, facts: Sequence[Fact], constants: Sequence[Fact] | None = None) -> list[Fact]:
        """The facts of the results of a jaxpr, closed or without constants, of those of its inputs.

        Those of its `constants` are as given, or are asked for.
        """
        body, own = opened(jaxpr)
        given = (*(map(self.constant, own) if constants is None else constants), *facts)
        known: dict[Any, Fact] = dict(zip((*body.constvars, *body.invars), given, strict=True))

        def read(atom: Any) -> Fact:
            return self.constant(atom.val) if hasattr(atom, "val") else known[atom]

        around = self.path
        for index, equation in enumerate(body.eqns):
            self.path = (*around, index)
            made = self.equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, made, strict=True))
        self.path = around
        return [read(atom) for atom in body.outvars]

    def equation(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """What is known of the results of any equation."""
        kind = control(equation)
        if kind not in self.enters:
            return self.operation(equation, facts)
        if kind == "jit":
            return self.inside(0, inner_jaxpr(equation.params), facts)
        ways = {"scan": self.scan, "while": self.while_loop, "cond": self.cond}
        return ways.get(kind, self.mapped)(equation, facts)

    def inside(self, number: int, jaxpr: Any, facts: Sequence[Fact]) -> list[Fact]:
        """The facts of the results of a jaxpr in the present equation."""
        here = self.path
        self.path = (*here, number)
        made = self.run(jaxpr, facts)
        self.path = here
        return made

    def scan(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """A loop of known length."""
        params = equation.params
        constants, first, slices = scan_parts(params, facts)

        def round_of(carry: list[Fact]) -> list[Fact]:
            return self.inside(0, params["jaxpr"], [*constants, *carry, *slices])

        return self._last_round(round_of, first, params["length"])

    def while_loop(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """A loop of unknown length, perhaps without a round; its test goes into what it leaves."""
        params = equation.params
        tests, constants, first = while_parts(params, facts)

        def round_of(carry: list[Fact]) -> list[Fact]:
            (goes_on,) = self.inside(0, params["cond_jaxpr"], [*tests, *carry])
            made = self.inside(1, params["body_jaxpr"], [*constants, *carry])
            return [self.join(old, self.under(new, goes_on)) for old, new in zip(carry, made, strict=True)]

        return self._last_round(round_of, first, -1)

    def _last_round(
        self, round_of: Callable[[list[Fact]], list[Fact]], carry: list[Fact], length: int
    ) -> list[Fact]:
        """What a round makes of a carry that teaches nothing more; the carry is the head of its results."""
        settled, self.settled = self.settled, False
        self.loops = (*self.loops, length)
        while True:
            made = round_of(carry)
            after = [self.join(old, new) for old, new in zip(carry, made, strict=False)]
            if after == carry:
                break
            carry = after
        self.settled = settled
        made = round_of(carry)
        self.loops = self.loops[:-1]
        return made

    def cond(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """A branch; what it chooses by goes into its results."""
        choice, *operands = facts
        branches = enumerate(equation.params["branches"])
        first, *others = (self.inside(number, branch, operands) for number, branch in branches)
        for other in others:
            first = [self.join(a, b) for a, b in zip(first, other, strict=True)]
        return [self.under(fact, choice) for fact in first]

    def mapped(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """A function mapped over devices."""
        return self.inside(0, inner_jaxpr(equation.params), self.share(equation, facts))


class Computing(Forward[Any]):
    """Computes the values of a program."""

    enters = frozenset()

    def operation(self, equation: Any, facts: list[Any]) -> list[Any]:
        """What it computes of its operands."""
        return bind(equation, facts)


class Sources(Forward[int]):
    """What goes into each value, as bits; of a result, that of all operands."""

    def constant(self, value: Any) -> int:
        """Nothing."""
        return 0

    def operation(self, equation: Any, facts: list[int]) -> list[int]:
        """The same of all results."""
        return [union(facts)] * len(equation.outvars)

    def join(self, one: int, other: int) -> int:
        """What goes into either."""
        return one | other


def union(facts: Iterable[int]) -> int:
    """All bits of some."""
    return functools.reduce(operator.or_, facts, 0)


class _GoesInto(Sources):
    """Whether an operation of one of some names goes into a value."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names

    def operation(self, equation: Any, facts: list[int]) -> list[int]:
        return super().operation(equation, [*facts, primitive_name(equation) in self.names])

    def under(self, fact: int, choice: int) -> int:
        return fact | choice


def goes_into(jaxpr: Any, names: Collection[str]) -> list[bool]:
    """For each result of a program, whether an operation of one of these `names` goes into it."""
    return [*map(bool, _GoesInto(names).run(jaxpr, [0] * len(jaxpr.in_avals)))]
