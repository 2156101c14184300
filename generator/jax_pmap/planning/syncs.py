"""Where collectives may go: what stands where, and what tracing showed of the parts of a statement."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from jax_pmap.emit.callees import CallGraph, UserFunction
from jax_pmap.emit.places import Body, Expression, Statement, inside, place
from jax_pmap.emit.sizes import is_part, is_size, names_in
from jax_pmap.model import Span, Sync
from jax_pmap.planning.bodies import Bodies
from jax_pmap.planning.events import Event, State
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.worker.protocol import Row


class Placer(Bodies):
    """The tables of a target and what it calls, with the collectives that statements may need."""

    def __init__(
        self,
        body: Body,
        facts: FunctionFacts,
        axis_name: str,
        itemsize: Callable[[str], int],
        call_graph: CallGraph,
        mutated: Sequence[str] = (),
        settled: Sequence[str] = (),
    ) -> None:
        """The tables of `body`.

        `itemsize` gives the bytes of one element of a dtype, `mutated` are arguments that are changed in
        place, `settled` those that have no other values than those that are tried.
        """
        self.facts, self.itemsize, self.mutated = facts, itemsize, tuple(mutated)
        #: Points behind statements that show what they left of an object that is changed in place. In what
        #: the target calls these are calls for no result, and show what they left of any parameter.
        self.touched: dict[int, Statement] = {}
        super().__init__(body, call_graph, axis_name, settled)
        self.results = [
            s.value
            for s in body.statements.values()
            if s.kind == "return" and s.value is not None and s.scope == body.scope.index
        ]
        self.next_mention = self._next_mentions()
        # Nearly always there is something to do in what is differentiated.
        for call in list(self.gradients.values()):
            if call.function not in {scope.name for scope in body.scopes.values()}:
                self.open(call.function, body)

    def _know(self, body: Body, home: UserFunction) -> None:
        """Take the places of one more body into the tables."""
        super()._know(body, home)
        for statement in body.statements.values() if self.mutated else ():
            for name, point in statement.touches:
                if name in self.mutated if body is self.body else statement.kind == "other":
                    self.touched[point] = statement

    def changes(self, event: Event) -> bool:
        """Whether an event shows an object that is changed in place: in a callee, if something was added."""
        statement = self.touched.get(event.point)
        own = statement is not None and self.body_of[statement.index] is self.body
        added = any(leaf.get("incremented") or leaf.get("updated") for leaf in event.leaves)
        return event.point < 0 or own or added

    def _next_mentions(self) -> dict[tuple[int, str], Statement]:
        """For each name that a statement of the target binds, the next one that reads or binds it."""
        following: dict[tuple[int, str], Statement] = {}
        last: dict[str, Statement] = {}
        for statement in sorted(self.body.statements.values(), key=lambda s: place(s.span)):
            names = {name for name, _ in statement.names}
            for name in {*statement.reads, *names} & last.keys():
                following[last.pop(name).index, name] = statement
            if statement.scope == self.body.scope.index:
                last |= dict.fromkeys(names, statement)
        return following

    def wrap_all(
        self, state: State, expressions: Sequence[Expression], events: Mapping[int, Event], numbers: bool
    ) -> bool:
        """Put collectives around the partial ones of `expressions`; whether there were new ones."""
        added = False
        for expression in expressions:
            event = events.get(expression.point)
            if event is None or event.unaligned:
                continue
            op = event.whole_op(numbers)
            if op is None and expression.point in self.gradients:
                # By parameters that the loss does not depend on they are zeros, on every device.
                op = event.op_for_copies(event.partial(numbers))
            if op is not None and event.partial(numbers):
                added |= state.add(
                    self.sync(op, expression.text, "wrap", expression.span, event), expression.point
                )
        return added

    def sync(
        self,
        op: str,
        value: str,
        where: str,
        span: Span,
        event: Event,
        leaves: Sequence[Row] | None = None,
    ) -> Sync:
        """A collective for what `event` showed of `value`, or for some leaves of it."""
        return Sync(op, value, where, span, bytes=self.bytes_of(event.leaves if leaves is None else leaves))

    def gathered(self, expression: Expression, event: Event, axis: int, events: Sequence[Event]) -> Sync:
        """All of what `event` showed to be a share along `axis`, from every device."""
        sync = self.sync("all_gather", expression.text, "wrap", expression.span, event)
        return dataclasses.replace(sync, axis=axis, joined=self._joined(expression, event, axis, events))

    def _joined(
        self, expression: Expression, event: Event, axis: int, events: Sequence[Event]
    ) -> tuple[int, str] | None:
        """How many batches are joined in a share, and source of the rows of one of them; None if not known.

        That is the size of an array, or a number made of one, that can be read where the expression stands
        and is the same there as before: a parameter, or what is bound once.
        """
        joined = {leaf.get("joined") for leaf in event.leaves}
        count = joined.pop() if len(joined) == 1 else None
        if not count:
            return None
        rows = event.leaves[0]["shape"][axis] // count
        around = self._scopes_around(self.statements[expression.statement])
        for seen in events:
            other = self.by_point.get(seen.point)
            if other is None or len(seen.leaves) != 1 or self.statements[other.statement].scope not in around:
                continue
            size = _size_of(other.text, seen, rows)
            scopes = self._scopes_around(self.statements[other.statement])
            if size is not None and all(self._lasts(name, scopes, seen) for name in names_in(size)):
                return count, size
        return None

    def _scopes_around(self, statement: Statement) -> list[int]:
        """The functions that a statement stands in, the innermost first."""
        where = place(statement.span)
        around = [
            scope
            for scope in self.scopes.values()
            if scope.span.file == statement.span.file and inside(where, place(scope.span))
        ]
        return [scope.index for scope in sorted(around, key=lambda scope: place(scope.span), reverse=True)]

    def _lasts(self, name: str, scopes: Sequence[int], seen: Event) -> bool:
        """Whether a name that is read in these functions has one meaning: a parameter, or bound once."""
        for scope in scopes:
            bound = [s for s in self.statements.values() if s.scope == scope and name in dict(s.names)]
            if name in self.scopes[scope].parameters:
                return not bound
            if bound:
                return len(bound) == 1 and bool(seen.arrays)
        return False

    def sizes_in(
        self, expression: Expression, events: Mapping[int, Event]
    ) -> tuple[list[Expression], set[int]]:
        """The smallest sizes of a share in an expression, and points of what is only asked for a number."""
        below = [each for each in self.descendants(expression.point) if each.point in events]
        numbers = [e for e in below if not events[e.point].arrays and len(events[e.point].leaves) == 1]
        measured = {part.point for each in numbers for part in self.descendants(each.point)}
        sizes = [each for each in numbers if events[each.point].partial(numbers=True)]
        points = {each.point for each in sizes}
        return [e for e in sizes if points.isdisjoint(d.point for d in self.descendants(e.point))], measured

    def sizes_within(self, expression: Expression, events: Sequence[Event]) -> list[Expression]:
        """The sizes of a share that an expression is made of, also by names; none where rows go into it."""
        first = self.first_of(self.statements[expression.statement], events)
        found, measured = self.sizes_in(expression, first)
        for name in (e for e in self.descendants(expression.point) if e.point in first.keys() - measured):
            if name.text.isidentifier() and first[name.point].is_share:
                made = self.bound(name)
                behind = self.sizes_within(made, events) if made is not None else []
                if not behind:
                    return []
                found += [each for each in behind if each not in found]
        return found

    def bound(self, name: Expression) -> Expression | None:
        """The value that a name is bound to where it is read, if it is bound by a statement of its own.

        That may stand in a function around, which then binds the name once.
        """
        reader = self.statements[name.statement]
        for scope in self._scopes_around(reader):
            bound = [s for s in self.statements.values() if s.scope == scope and name.text in dict(s.names)]
            if scope == reader.scope:
                # Always further ahead: who asks again comes to an end.
                where = place(reader.span)
                ahead = [s for s in bound if s.block in reader.blocks and place(s.span) < where]
                bound = sorted(ahead, key=lambda s: place(s.span))[-1:]
            if bound or name.text in self.scopes[scope].parameters:
                made = bound[0] if len(bound) == 1 and len(bound[0].names) == 1 else None
                return self.by_point.get(made.value or 0) if made is not None else None
        return None

    def bytes_of(self, leaves: Sequence[Row]) -> int:
        """Bytes of one device's copy, in the user's own dtypes."""
        arrays = [leaf for leaf in leaves if not leaf.get("number")]
        return sum(math.prod(leaf["shape"]) * self.itemsize(leaf["dtype"]) for leaf in arrays)

    def culprits(self, first: Mapping[int, Event]) -> list[Expression]:
        """The smallest varying expressions of a statement: what goes into them is not.

        Of what is known again further out, as the product of a table of sizes is, nothing has to be done.
        """
        return [
            self.by_point[point]
            for point, event in first.items()
            if point in self.by_point
            and any(leaf["kind"] == "varying" for leaf in event.leaves)
            and not self._varies_below(point, first)
            and not self._known_around(point, first)
        ]

    def _varies_below(self, point: int, first: Mapping[int, Event]) -> bool:
        """Whether a varying expression goes into one, and not by way of what is known."""
        for child in self.children.get(point, ()):
            event = first.get(child.point)
            if event is not None and event.varying:
                return True
            if (event is None or not event.is_known_or_size) and self._varies_below(child.point, first):
                return True
        return False

    def _known_around(self, point: int, first: Mapping[int, Event]) -> bool:
        """Whether an expression goes into one of which is known what it is on every device."""
        parent = self.by_point[point].parent
        event = None if parent is None else first.get(parent)
        known = event is not None and event.is_known_or_size
        return known or (parent is not None and self._known_around(parent, first))

    def partial_below(self, expression: Expression, events: Mapping[int, Event]) -> list[Expression]:
        """The largest partial subexpressions below `expression`, and the smallest that are numbers.

        ``n // 4`` is a sum over shards on some sizes only; ``n`` is on all.
        """
        out = []
        for child in self.children.get(expression.point, []):
            event = events.get(child.point)
            if event is not None and event.arrays and event.alike:
                continue  # Made whole already, of what is not.
            if event is not None and event.is_share:
                continue  # The sizes in it are those of a share, as they have to be.
            if event is None or event.unaligned or event.whole_op(numbers=True) is None:
                # What is partly whole has a name of its own to be made whole under, or is all gradients.
                named = child.text.isidentifier() or child.point in self.gradients
                parts = event is not None and named and event.partly_whole
                out += [child] if parts else self.partial_below(child, events)
                continue
            inner = [] if event.arrays else self.partial_below(child, events)
            # A shape is no size.
            out += [each for each in inner if events[each.point].leaves[0]["path"] == ""] or [child]
        return out

    def sizes_behind(
        self,
        expression: Expression,
        statement: Statement,
        first: Mapping[int, Event],
        events: Sequence[Event],
    ) -> tuple[list[Expression], Mapping[int, Event]]:
        """Sizes of a share of which numbers are made that an expression reads by a name.

        Of ``n`` after ``n = len(x) // 4`` that is ``len(x)``; with what was seen where they stand.
        """
        out: list[Expression] = []
        seen: dict[int, Event] = {}
        for each in (expression, *self.descendants(expression.point)):
            event = first.get(each.point)
            if not each.text.isidentifier() or event is None or event.arrays:
                continue
            if not any(leaf["kind"] == "varying" or leaf["category"] == "opaque" for leaf in event.leaves):
                continue  # A slice of numbers says nothing of those.
            for made in self.statements.values():
                binds = any(name == each.text for name, _ in made.names)
                if binds and made.scope == statement.scope and made.value in self.by_point:
                    there = self.first_of(made, events)
                    out += self.partial_below(self.by_point[made.value], there)
                    seen |= there
        return out, seen

    def headers(self, name: Expression, statement: Statement, events: Sequence[Event]) -> list[Statement]:
        """Heads of loops ahead of a statement that give a name its value, where what they run over varies.

        Of ``xb`` in ``for xb in jnp.split(x, 4):`` that is ``jnp.split(x, 4)``.
        """
        ahead = [
            other
            for other in self.statements.values()
            if other.scope == statement.scope and place(other.span) < place(statement.span)
        ]
        if not name.text.isidentifier() or any(name.text in dict(other.names) for other in ahead):
            return []
        heads = [other for other in ahead if other.kind == "other" and other.index != statement.index]
        return [head for head in heads if self.culprits(self.first_of(head, events))]

    def earliest(self, expression: Expression, events: Mapping[int, Event]) -> Expression:
        """The name, or the array of a call, that a partial one depends on linearly, if it costs no more.

        Of ``w - 0.1 * grads`` that is ``grads``: what is synchronised is a gradient, and not the weights. Of
        ``0.9 * mean + 0.1 * jnp.mean(x, axis=0)`` it is the mean of the batch.
        """
        partial = [
            child
            for child in self.children.get(expression.point, [])
            if child.point in events and (events[child.point].partial() or events[child.point].varying)
        ]
        linear = expression.is_product or expression.is_linear
        if not linear or len(partial) != 1 or expression.point not in events:
            return expression
        below, whole = events[partial[0].point], events[expression.point]
        alike = below.whole_op(False) == whole.whole_op(False) and not below.unaligned
        cheap = self.bytes_of(below.leaves) <= self.bytes_of(whole.leaves)
        found = self.earliest(partial[0], events) if alike and cheap else expression
        is_array = all(leaf["shape"] and not leaf["path"] for leaf in events[found.point].leaves)
        return found if found.text.isidentifier() or (found.is_call and is_array) else expression

    def origins(self, expression: Expression, events: Mapping[int, Event]) -> list[Expression]:
        """Where a partial value is made: below it, past everything that might not be linear.

        ``jnp.maximum(jnp.mean(x), 0)`` may look like a mean over shards on data where the
        maximum does nothing; the mean inside it is one on all data.
        """
        partial = [
            child
            for child in self.children.get(expression.point, [])
            if child.point in events and events[child.point].partial() and not events[child.point].unaligned
        ]
        # A ratio of two sums is the mean of the shares' ratios only while every share divides by the same.
        linear = expression.is_linear or (expression.is_product and len(partial) == 1)
        # Of a tuple with what is whole already, no one collective is around all.
        event = events.get(expression.point)
        mixed = event is not None and event.partly_whole
        if not partial or (linear and not mixed):
            return [self.earliest(expression, events)]
        return [origin for child in partial for origin in self.origins(child, events)]


def _size_of(text: str, seen: Event, rows: int) -> str | None:
    """Source of a share of so many rows, where `text` is an array of these rows, or their number."""
    (leaf,) = seen.leaves
    if leaf.get("number"):
        fits = leaf["kind"] == "psum" and leaf.get("value") == rows and is_size(text)
        return text if fits else None
    kind, _, axis = leaf["kind"].partition(" ")
    if kind != "sharded" or leaf.get("joined") or not is_part(text):
        return None
    return f"{text}.shape[{axis}]" if leaf["shape"][int(axis)] == rows else None
