"""The functions beside the target that choose their way in Python, watched wherever they are called.

Which way a function goes may hang on sizes, on the structure of its arguments or on numbers. Of the
target and of the functions nested in it every branch is watched; of the user's other functions those that
may go another way on other inputs, with all that stand between them and the target.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from jax_pmap.emit.callees import CallGraph, UserFunction
from jax_pmap.emit.places import Body, Branch, Expression, inside, place
from jax_pmap.model import Refusal
from jax_pmap.planning.coupling import shortened
from jax_pmap.planning.events import Event
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.syntax.text import function_text
from jax_pmap.worker.scopes import bound_names, names_in, names_of_its_own

#: Statements and expressions that choose a way.
CHOICES = (
    ast.If,
    ast.While,
    ast.For,
    ast.Try,
    ast.Match,
    ast.IfExp,
    ast.BoolOp,
    ast.Assert,
    ast.comprehension,
)


class Watch:
    """Finds the functions to watch, and numbers the tests in them."""

    def __init__(
        self,
        call_graph: CallGraph,
        origin: Body,
        settled: Collection[str] = (),
    ) -> None:
        """Look for them from the target on, whose body is `origin`.

        `settled` are its arguments that have no other values.
        """
        self.call_graph = call_graph
        #: How many methods that running has shown there were to find.
        self.methods = len(call_graph.callees)
        #: Each function with those it names: (name it calls by, function).
        self._calls: list[tuple[UserFunction, list[tuple[str, UserFunction]]]] = []
        self._walk(call_graph.origin)
        self._settled = _settled(self._calls, {*settled, call_graph.origin.facts.receiver})
        chosen = [each for each, _ in self._calls[1:] if self._may_choose(each)]
        carriers = _above(self._calls, chosen)
        #: Those that nothing but a callback from the traced program runs, where nothing traced enters them.
        self._on_host = _below(self._calls)
        self.homes: dict[int, UserFunction] = {}
        self.bodies: dict[int, Body] = {}
        #: Of each watched test its number among what is recorded.
        self.tests: dict[int, Expression] = {}
        #: Those of them that can only end in an error, as an assert.
        self.checks: set[int] = set()
        self._numbers: dict[int, int] = {}
        for found in carriers:
            body = origin.callee(found.key, function_text(found.parsed))
            self.homes[body.scope.index], self.bodies[body.scope.index] = found, body
            for test in self._tests(body, found) if found in chosen else ():
                number = origin.recorded(test.point)
                self.tests[number], self._numbers[test.point] = test, number
                if test.statement in body.checks:
                    self.checks.add(number)
        self._watched = {scope for scope, home in self.homes.items() if home in chosen}

    def links(self, origin: int) -> Iterator[tuple[int, str, int]]:
        """(scope of the caller's body, name it calls by, scope of the function called)."""
        scopes = [(origin, self.call_graph.origin), *self.homes.items()]
        for scope, caller in scopes:
            for called, found in next(calls for each, calls in self._calls if each is caller):
                for other, home in self.homes.items():
                    if home is found:
                        yield scope, called, other

    def numbers_of(self, body: Body) -> Mapping[int, int]:
        """The numbers of a body's watched tests, by point."""
        return {e.point: self._numbers[e.point] for e in body.expressions if e.point in self._numbers}

    def is_watched(self, body: Body) -> bool:
        """Whether the ways that are taken in a body are recorded."""
        return body.scope.index in self._watched

    def unreached(self, reached: Collection[int]) -> Iterator[tuple[Body, Branch]]:
        """Branches that no input took and that other inputs might take."""
        for scope in sorted(self._watched):
            body, home = self.bodies[scope], self.homes[scope]
            for branch in body.branches:
                if branch.index in reached or branch.harmless or self._constant(branch.decided_by, home):
                    continue
                if branch.scope not in reached and home in self._on_host:
                    continue
                yield body, branch

    def unseen(self, reached: Collection[int]) -> Iterator[Expression]:
        """Sides of conditional expressions that no input took and that other inputs might take."""
        branches = [(body, place(branch.span)) for body, branch in self.unreached(reached)]
        for scope in sorted(self._watched):
            body, home = self.bodies[scope], self.homes[scope]
            for side in body.expressions:
                if side.side_of is None or side.point in reached:
                    continue
                if body.statements[side.statement].scope not in reached and home in self._on_host:
                    continue
                if any(body is other and inside(place(side.span), where) for other, where in branches):
                    continue
                if not self._constant(_names(side.side_of), home):
                    yield side

    def guards(self, function: ast.FunctionDef, path: Path) -> bool:
        """Whether what no input reached in a function of a file raises: it is looked into, and watched."""
        return any(
            home.source.path == path and home.parsed.definition.lineno == function.lineno
            for home in (self.homes[scope] for scope in self._watched)
        )

    def at_odds(self, events: Sequence[Event]) -> Refusal | None:
        """A test that asks for a size of the batch in one call of a function, and of the whole in another."""
        kinds: dict[int, set[str]] = {}
        for event in events:
            if event.point in self.tests and not event.unaligned:
                kinds.setdefault(event.point, set()).update(leaf["kind"] for leaf in event.leaves)
        innermost = self._innermost({point for point in kinds if len(kinds[point]) > 1})
        for number in innermost:
            if any(len(event.leaves) > 1 for event in events if event.point == number):
                continue  # A shape, of which only one size is that of a share.
            test = self.tests[number]
            return Refusal(
                "JP069",
                f"`{shortened(test.text)}` decides which way to go, and is a size of the batch in one call "
                "and none in another: no one collective makes it that of the whole batch in both",
                "Decide it outside and pass it (a bool), or call two functions",
                test.span,
            )
        return None

    def partial(self, events: Sequence[Event]) -> list[tuple[Expression, Event]]:
        """Tests, or what they are made of, that are those of a share: with what was seen first of each."""
        first: dict[int, Event] = {}
        for event in events:
            if event.point in self.tests:
                first.setdefault(event.point, event)
        partial = {number for number, event in first.items() if event.whole_op(True) and event.partial(True)}
        return [(self.tests[number], first[number]) for number in self._innermost(partial)]

    def _innermost(self, numbers: Collection[int]) -> list[int]:
        def below(inner: int, outer: int) -> bool:
            one, other = self.tests[inner].span, self.tests[outer].span
            return inner != outer and one.file == other.file and inside(place(one), place(other))

        return [number for number in sorted(numbers) if not any(below(other, number) for other in numbers)]

    def _walk(self, caller: UserFunction) -> None:
        calls: list[tuple[str, UserFunction]] = []
        self._calls.append((caller, calls))
        for called in self.call_graph.calls(caller):
            found = self.call_graph.find(called, caller)
            if found is None:
                continue
            known = next((each for each, _ in self._calls if each.is_same(found)), None)
            calls.append((called, known or found))
            if known is None:
                self._walk(found)

    def _may_choose(self, found: UserFunction) -> bool:
        """Whether a function may go another way on other inputs of the target."""
        for node in ast.walk(found.parsed.definition):
            if isinstance(node, CHOICES) and not self._constant(_deciding(node), found):
                return True
        return False

    def _tests(self, body: Body, found: UserFunction) -> list[Expression]:
        return [e for e in body.expressions if e.in_test and not self._constant(_names(e.text), found)]

    def _constant(self, names: Collection[str], found: UserFunction) -> bool:
        """Whether values under these names are always the same in a function."""
        return not set(names) & (_local(found) - self._settled[id(found)])


def _names(source: str) -> set[str]:
    return names_in(parsed_expression(source))


def _deciding(node: ast.AST) -> set[str]:
    """Names that decide which way one of the `CHOICES` goes."""
    if isinstance(node, ast.Try):
        parts: list[ast.AST] = [node]
    elif isinstance(node, ast.comprehension):
        parts = [*node.ifs]  # Over nothing, there is nothing that was not compared.
    elif isinstance(node, ast.BoolOp):
        parts = [*node.values]
    else:
        parts = [getattr(node, part) for part in ("test", "iter", "subject") if hasattr(node, part)]
    return names_in(*parts)


def _local(found: UserFunction) -> set[str]:
    """Names that a function and those nested in it bind, or take from the functions around it."""
    return {*found.facts.closure_names, *names_of_its_own(found.parsed.definition)}


def _above(
    calls: Sequence[tuple[UserFunction, list[tuple[str, UserFunction]]]], chosen: Sequence[UserFunction]
) -> list[UserFunction]:
    """The chosen functions and all that lead to them, without the target."""
    out = list(chosen)
    while True:
        more = [
            caller
            for caller, called in calls[1:]
            if caller not in out and any(found in out for _, found in called)
        ]
        if not more:
            return [each for each, _ in calls[1:] if each in out]
        out += more


def _below(calls: Sequence[tuple[UserFunction, list[tuple[str, UserFunction]]]]) -> list[UserFunction]:
    """The functions that callbacks are given, and all that these lead to."""
    out = [found for caller, called in calls for text, found in called if text in caller.facts.host_functions]
    while True:
        more = [found for caller, called in calls if caller in out for _, found in called if found not in out]
        if not more:
            return out
        out += more


def _settled(
    calls: Sequence[tuple[UserFunction, list[tuple[str, UserFunction]]]], own: Collection[str]
) -> dict[int, frozenset[str]]:
    """Of every function the parameters that are the same whatever the target is called with.

    That is those that every call gives nothing, or what reads no other names than such and those of the
    module; and the object of a method.
    """
    table: dict[int, frozenset[str]] = {}
    for caller, _ in calls:
        names = {parameter.name for parameter in caller.facts.parameters}
        body = caller.parsed.definition.body
        table[id(caller)] = frozenset(names - bound_names(body) - names_of_its_own(*body))
    origin = calls[0][0]
    table[id(origin)] &= frozenset(own)
    changed = True
    while changed:
        changed = False
        for caller, called in calls:
            free = _local(caller) - table[id(caller)]
            for text, found in called:
                if found is origin:
                    continue
                kept = table[id(found)] & _given_constants(caller, text, found, free)
                changed |= kept != table[id(found)]
                table[id(found)] = kept
    return table


def _given_constants(
    caller: UserFunction, called: str, found: UserFunction, free: Collection[str]
) -> set[str]:
    """Parameters that `caller` gives a function constants for, or nothing, wherever it names it."""
    if found.library:
        return set()  # Whoever calls the library.
    order = [parameter.name for parameter in found.facts.parameters]
    receiver = {found.facts.receiver} & set(order)
    order = [name for name in order if name not in receiver]
    if found.owner and _names(called) & set(free):
        receiver = set()  # Another object of that class may go another way.
    constant = {*order, *receiver}
    known: set[int] = set()
    written: set[str] = set()
    called = ast.unparse(parsed_expression(called))
    for call in ast.walk(caller.parsed.definition):
        if not isinstance(call, ast.Call):
            continue
        direct = ast.unparse(call.func) == called
        through = isinstance(call.func, ast.Call) and bool(call.func.args)
        if through and ast.unparse(call.func.args[0]) == called:  # type: ignore[attr-defined]
            known.add(id(call.func.args[0]))  # type: ignore[attr-defined]
        elif direct:
            known.add(id(call.func))
        else:
            continue
        if any(isinstance(each, ast.Starred) for each in call.args) or any(
            each.arg is None for each in call.keywords
        ):
            return receiver
        given = [*zip(order, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        if len(call.args) > len(order):
            return receiver
        written |= {name for name, _ in given if name is not None}
        constant -= {name for name, value in given if names_in(value) & set(free) and name is not None}
    named = (n for n in ast.walk(caller.parsed.definition) if isinstance(n, ast.Name | ast.Attribute))
    # Handed on, it may be called with anything.
    if any(id(n) not in known and isinstance(n.ctx, ast.Load) and ast.unparse(n) == called for n in named):
        return receiver
    # The value that holds a function may hold another one the next time, with other arguments bound to it.
    return constant & (written | receiver) if found.by_value else constant
