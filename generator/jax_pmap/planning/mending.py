"""Make whole what is partial: where a collective goes for an assignment, a result, a test, a kept value.

`decide` finds the statement at which something has to be done; what is done there is decided here. A
collective stands where the partial value is made, before anything that might not be linear.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from jax_pmap.emit.places import Expression, Statement, place
from jax_pmap.leaf_paths import STEP
from jax_pmap.model import ADDED, DIVIDE, Refusal, Span, Sync
from jax_pmap.planning.events import Event, State, containers_above, is_part, largest_parts
from jax_pmap.planning.syncs import Placer
from jax_pmap.worker.protocol import Row

#: A method call that puts its argument into a local container.
KEEPS = re.compile(r"(\w+)\.(append|extend|insert|add|setdefault|update)\(")


class Mending:
    """What is done about partial values, statement by statement."""

    def __init__(self, table: Placer) -> None:
        self.table = table

    def tests(self, state: State, events: Sequence[Event], watched: Sequence[Event]) -> bool:
        """What decides which way Python goes, or whether a loop goes on, must be that of the whole batch.

        A test of a shape may agree on the example's sizes and differ on others, so it is mended
        whether or not it does any harm here.
        """
        added = False
        for test, event in self.table.watch.partial(watched):
            op = event.whole_op(numbers=True)
            assert op is not None
            added |= state.add(self.table.sync(op, test.text, "wrap", test.span, event), event.point)
        statements = self.table.statements
        deciding = {
            e.point: e
            for e in self.table.by_point.values()
            if statements[e.statement].scope in state.deciding
        }
        tests = {e.point: e for e in self.table.by_point.values() if e.in_test} | deciding
        first: dict[int, Event] = {}
        for event in events:
            # What a comparison gives may look like an extreme: what it compares is made whole.
            truth = event.point in deciding and all(leaf["dtype"] == "bool" for leaf in event.leaves)
            if event.point in tests and not (truth and not tests[event.point].is_call):
                first.setdefault(event.point, event)
        partial = {p for p, event in first.items() if event.whole_op(True) and event.partial(True)}
        innermost = [
            tests[point]
            for point in partial
            if not any(c.point in partial for c in self.table.descendants(point))
        ]
        return self.table.wrap_all(state, innermost, first, numbers=True) or added

    def assignment(self, state: State, statement: Statement, events: Sequence[Event]) -> bool:
        """Make the partial names of an assignment whole, where they are made."""
        first = self.table.first_of(statement, events)
        body = self.table.body_of[statement.index]
        read = {name for each in body.statements.values() for name in each.reads}
        if read.isdisjoint(name for name, _ in statement.names):
            return False
        display = (
            statement.value is not None and self.table.by_point[statement.value].is_display
            if statement.value in self.table.by_point
            else False
        )
        inner = self.gradients_in(statement)
        if self.table.wrap_all(state, inner, first, numbers=False):
            return True
        if statement.accumulates and statement.value is not None and self._repeats(statement, events):
            # Each time round a loop something is added to what is whole already.
            origins = [o for term in self._terms(statement) for o in self.table.origins(term, first)]
            if self.table.wrap_all(state, origins, first, numbers=False):
                return True
        if display and statement.value is not None:
            elements = self.table.elements(self.table.by_point[statement.value])
            origins = [o for e in elements for o in self.table.origins(e, first)]
            if self.table.wrap_all(state, origins, first, numbers=True):
                return True
        if statement.value is not None and not display:
            value = self.table.by_point[statement.value]
            origins = self.table.origins(value, first)
            # `model.count.value = …` changes an object the caller holds: its name must not be bound anew.
            in_place = any(name in self.table.mutated for name, _ in statement.names)
            # Of `found[f"top_{k}"] = …` in a loop, `found` has other parts each time; what goes in is one.
            in_place |= statement.keeps
            if (origins != [value] or in_place) and self.table.wrap_all(state, origins, first, numbers=False):
                return True
        added = False
        for name, point in statement.names:
            event_ = first.get(point)
            if name not in read:
                continue  # `(_, aux), grads = …`: what nothing reads needs no collective.
            if event_ is None or event_.unaligned or not event_.partial() or name in self.table.mutated:
                continue
            for sync in self._syncs_for(name, event_, statement.span, numbers=False):
                added |= state.add(sync, point)
        return added

    def where_made(
        self, state: State, value: Expression, statement: Statement, events: Sequence[Event]
    ) -> bool:
        """Make a name whole where it is bound, and not where it is read, if it is read several times.

        So is one of several arrays of which some are whole already, which no one collective is around: the
        gradients by parameters that the loss does not depend on are zeros.
        """
        statements = [s for s in self.table.statements.values() if s.scope == statement.scope]
        # What stands in a branch that was not taken binds nothing.
        passed = {self.table.owner[event.point].index for event in events}
        bound = [s for s in statements if any(name == value.text for name, _ in s.names)]
        binding = [s for s in bound if s.index in passed]
        times = Counter(event.point for event in events)
        if all(times[point] == 1 for s in binding for name, point in s.names if name == value.text):
            # No loop goes back: what is read is what was bound last.
            binding = [s for s in binding if place(s.span) < place(statement.span)][-1:]
        if (
            len(binding) != 1
            or binding[0].kind != "assign"
            or binding[0].accumulates
            or self.table.where_read
        ):
            return False
        made = binding[0]
        point = next(point for name, point in made.names if name == value.text)
        event = self.table.first_of(made, events).get(point)
        if event is None or event.unaligned or not event.partial() or value.text in self.table.mutated:
            return False
        inside = {s.index for s in statements}
        found = (e for e in self.table.by_point.values() if e.text == value.text and e.statement in inside)
        once = max(sum(value.text in s.reads for s in statements), sum(1 for _ in found)) < 2
        # A collective over the axis of a map inside goes over the devices with it.
        reduced = self.table.by_point.get(made.value or 0)
        joined = reduced is not None and reduced.called == f"jax.lax.{event.whole_op(numbers=False)}"
        if made.block not in statement.blocks or (once and not event.partly_whole and not joined):
            return False
        if event.whole_op(numbers=False) is None and not event.partly_whole:
            return False
        added = False
        for sync in self._syncs_for(value.text, event, made.span, numbers=False):
            added |= state.add(sync, point)
        return added

    def deferred(
        self, state: State, culprit: Expression, feeding: Sequence[Expression], events: Mapping[int, Event]
    ) -> list[Expression]:
        """What of `feeding` may stay partial: what is divided by a sum, in a quotient that is differentiated.

        ``total / psum(count)`` is a part of the loss, and its gradient one of the gradient; with both the
        loss is summed, in one collective. A ``psum(total)`` inside would be differentiated, to another one.
        """
        parts = self.table.children.get(culprit.point, [])
        if not culprit.is_quotient or len(parts) != 2:
            return []
        dividend = parts[0]
        event = events.get(dividend.point)
        if not state.defers or event is None or event.whole_op(numbers=False) not in ("psum", "pmean"):
            return []
        below = {dividend.point, *(each.point for each in self.table.descendants(dividend.point))}
        left = [each for each in feeding if each.point in below]
        if len(left) == len(feeding):
            return []
        state.deferred += left
        state.has_deferred = True
        return left

    def reduce_deferred(self, state: State, events: Sequence[Event]) -> bool:
        """Make whole at once what was deferred, where what it goes into is no sum; whether there was any."""
        left, state.deferred = state.deferred, []
        added = False
        for value in left:
            state.defers = False
            statement = self.table.statements[value.statement]
            first = self.table.first_of(statement, events)
            added |= self.where_made(state, value, statement, events) or self.table.wrap_all(
                state, [value], first, numbers=True
            )
        return added

    def settle(self, state: State) -> None:
        """Leave for good what was deferred, once what comes of it has collectives of its own."""
        points = [point for _, point in state.fresh if point in self.table.owner]
        if not all(self.is_differentiated(state, self.table.owner[point]) for point in points):
            state.deferred = []

    def is_differentiated(self, state: State, statement: Statement) -> bool:
        """Whether a statement is of a function that the target differentiates, or that only these call.

        Where a function that it calls does, the loss would be summed in one and its gradients in the other.
        """
        calls: dict[int, list[int]] = {}
        for scope, point in state.opened:
            calls.setdefault(scope, []).append(point)
        found: set[int] = set()
        while more := {
            scope
            for scope, points in calls.items()
            if scope not in found | state.loops
            and all(self._differentiates(p) or self.table.owner[p].scope in found for p in points)
        }:
            found |= more
        return statement.scope in found

    def _differentiates(self, point: int) -> bool:
        """Whether a call of the target takes gradients."""
        owner = self.table.owner[point]
        mapped = any(run.differentiated for run in self.table.runs.get(point, ()))
        found = mapped or point in self.table.gradients
        return found and self.table.body_of[owner.index] is self.table.body

    def gradients_of_given(self, state: State, culprit: Expression, events: Sequence[Event]) -> bool:
        """Average the gradients that a library takes of a function which it is handed.

        Of ``w`` in ``minimize(lambda w: jnp.mean((x @ w - y) ** 2), w0)``, which is whole, the average is
        taken: of equal copies that is each of them, and its derivative is the average of the derivatives.
        `culprit` is the call that hands the function on, or what the function is called with.
        """
        added = False
        handed = {scope for scope, point in state.opened if point == culprit.point}
        own = self.table.statements[culprit.statement].scope
        handed |= {own} if culprit.text in self.table.scopes[own].parameters else set()
        for index in handed & state.loops:
            given = self.table.scopes[index].parameters
            inside_ = [event for event in events if self.table.owner[event.point].scope == index]
            for point, event in {event.point: event for event in reversed(inside_)}.items():
                name = self.table.by_point.get(point)
                if name is not None and name.text in given and event.alike and event.floats:
                    added |= state.add(self.table.sync("pmean", name.text, "wrap", name.span, event), point)
        return added

    def divided(
        self, state: State, statement: Statement, culprits: Sequence[Expression], first: Mapping[int, Event]
    ) -> bool:
        """Divide by the number of devices what is that many times too large on each, row by row.

        The derivative of the mean over a device's rows, by these rows, is that of the batch's mean by them
        times the number of devices. Where rows are gathered, what is taken of all of them by a share of them
        would be so too, and every device does all the work.
        """
        if any(sync.op == "all_gather" for sync in state.syncs):
            return False
        wraps = [(Sync(DIVIDE, each.text, "wrap", each.span), each.point) for each in culprits]
        names = [(Sync(DIVIDE, name, "after", statement.span), point) for name, point in statement.names]
        one = [each for each in wraps if each[1] in first and len(first[each[1]].leaves) == 1]
        for values in (one, names, wraps):
            divided = [(d, p) for sync, p in values if p in first for d in _divisions(sync, first[p])]
            added = [state.add(sync, point) for sync, point in divided]
            if any(added):
                return True
        return False

    def divided_behind(self, statement: Statement, event: Event, events: Sequence[Event]) -> bool:
        """Whether what varies in the value of a statement is divided by the names that it binds."""
        first = self.table.first_of(statement, events)
        names = [first.get(point) for _, point in statement.names]
        times = all("times" in leaf for leaf in event.arrays if leaf["kind"] == "varying")
        return times and names != [] and not any(each is None or each.varying for each in names)

    def result(self, state: State, statement: Statement, events: Sequence[Event]) -> bool:
        """Make the partial parts of the result whole where they are returned."""
        assert statement.value is not None
        first = self.table.first_of(statement, events)
        value = self.table.by_point[statement.value]
        whole = first[statement.value]
        inner = self.gradients_in(statement)
        if self.table.wrap_all(state, inner, first, numbers=False):
            return True
        if not value.is_display and not whole.varying:
            origins, op = self.table.origins(value, first), whole.whole_op(numbers=True)
            # Of `state.replace(mean=jnp.mean(x))` the mean is partial, and not all that the state holds.
            if op is not None or origins != [value]:
                added = self.table.wrap_all(state, origins, first, numbers=True)
                if added or op is not None:
                    return added
            return self._leaves(state, statement, whole)
        if value.is_display:
            parts = self._carried(value, first) if statement.scope in state.stacking else [value]
            elements = [each for part in parts for each in self._elements(part)]
            origins = [origin for each in elements for origin in self.table.origins(each, first)]
            if self.table.wrap_all(state, origins, first, numbers=True):
                return True
            mixed = [e for e in elements if e.point in first and first[e.point].partial(numbers=True)]
            return bool(mixed) and not whole.varying and self._leaves(state, statement, whole)
        return False

    @staticmethod
    def not_stacked(state: State, statement: Statement, returned: Event) -> list[Row]:
        """What a function returns and is partial, but for arrays that a loop stacks.

        Those are made whole outside the loop: by one collective for all rounds, and behind the derivative.
        """
        partial = returned.partial(numbers=True)
        if statement.scope not in state.stacking:
            return partial
        return [leaf for leaf in partial if leaf.get("number") or not leaf["path"].startswith("[1]")]

    def _carried(self, pair: Expression, first: Mapping[int, Event]) -> list[Expression]:
        """The parts of what a loop's function returns that go into the next round, or hold what does."""
        parts = self.table.children.get(pair.point, [])
        if len(parts) != 2:
            return [pair]
        carry, stacked = parts
        names = {each.text for each in (carry, *self.table.descendants(carry.point))}
        both = [each for each in self._elements(stacked) if each.text in names]
        return [carry, *(each for each in both if each.point in first)]

    def _elements(self, value: Expression) -> list[Expression]:
        return self.table.elements(value) if value.is_display else [value]

    def keeps_varying(self, statement: Statement, events: Sequence[Event]) -> bool:
        """Whether a statement like ``parts.append(x / n)`` keeps what is neither whole nor partial."""
        first = self.table.first_of(statement, events)
        return any(first[child.point].varying for child in self._kept(statement, first))

    def kept(self, state: State, statement: Statement, events: Sequence[Event]) -> bool:
        """Make whole what a statement like ``parts.append(jnp.mean(x))`` puts into a local container."""
        first = self.table.first_of(statement, events)
        kept = self._kept(statement, first)
        partial = [child for child in kept if first[child.point].partial()]
        return self.table.wrap_all(
            state, [o for c in partial for o in self.table.origins(c, first)], first, numbers=False
        )

    def _kept(self, statement: Statement, first: Mapping[int, Event]) -> list[Expression]:
        """What a call for no result puts into a container of the function or of a library."""
        if statement.value is None:
            return []
        call = self.table.by_point[statement.value]
        keeps = KEEPS.match(call.text)
        # `self.sow(…)`, `hk.set_state(…)`: what a module's method calls for no result, the library keeps.
        bodies, home = self.table.bodies, self.table.home
        methods = {body.scope.index for body in bodies if home(body.scope.index).library}
        if keeps is None and not (call.is_call and statement.scope in methods):
            return []
        parameters = {name for body in bodies for name in body.scope.parameters}
        if keeps and keeps[2] == "update" and keeps[1] in parameters:
            return []  # `optimizer.update(model, grads)` changes what is given, which is seen by itself.
        return [child for child in self.table.children.get(call.point, []) if child.point in first]

    def change(self, state: State, change: Event, events: Sequence[Event]) -> bool:
        """Give a statement that changes an argument in place all of what it is called with.

        ``metrics.update(logits=logits)`` counts the examples it is given; gathered, they are all of them.
        """
        statement = self.table.touched.get(change.point)
        if statement is None or statement.value is None or not self.table.by_point[statement.value].is_call:
            return False
        first = self.table.first_of(statement, events)
        given = [e for child in self.table.children.get(statement.value, []) for e in self._parts(child)]
        seen = [(part, first[part.point]) for part in given if part.point in first]
        partial = [part for part, event in seen if event.whole_op(True) and event.partial(True)]
        origins = [origin for part in partial for origin in self.table.origins(part, first)]
        if self.table.wrap_all(state, origins, first, numbers=True):
            return True  # The rest may be a sum of what is added then.
        added = False
        for part, event in seen:
            axes = {leaf["kind"] for leaf in event.arrays}
            if not event.unaligned and len(axes) == 1 and (kind := axes.pop()).startswith("sharded"):
                sync = self.table.gathered(part, event, int(kind.partition(" ")[2]), events)
                added |= state.add(sync, change.point)
        return added

    def increment(self, state: State, change: Event) -> bool:
        """Sum up what a statement adds to objects of Flax NNX, where it does nothing else to their variables.

        It is told from what they had before by beginning with zeros, which every variable of them can.
        """
        statement = self.table.touched.get(change.point)
        if statement is None or statement.value is None or not self.table.by_point[statement.value].is_call:
            return False
        # What is added to zeros is a part of a sum, as of all that `metrics.reset()` goes before.
        partial = [leaf for leaf in change.leaves if leaf["kind"] != "replicated"]
        sums = [leaf for leaf in change.leaves if leaf["kind"] == "psum" or leaf.get("incremented")]
        if not any(leaf in partial and leaf.get("incremented") for leaf in sums):
            return False
        found: dict[str, list[Row]] = {}
        for leaf in partial:
            # The last two steps lead from the object to its variable, and to what that has.
            ahead = [leaf["path"][: match.start()] for match in STEP.finditer(leaf["path"])][:-1]
            below = {path: [e for e in change.leaves if is_part(e["path"], path)] for path in ahead}
            largest = next((path for path in ahead if all(e in sums for e in below[path])), None)
            if largest is None:
                return False  # It is given all examples, and so is what only adds.
            found[largest] = below[largest]
        name = next(name for name, point in statement.touches if point == change.point)
        leaves = [leaf for parts in found.values() for leaf in parts]
        sync = self.table.sync("psum", name, ADDED, statement.span, change, leaves)
        return state.add(dataclasses.replace(sync, paths=tuple(found)), change.point)

    def left_apart(self, change: Event) -> Refusal:
        """What to say of an argument whose copies differ between devices after the call."""
        statement = self.table.touched.get(change.point)
        leaf = next((leaf for leaf in change.leaves if leaf["kind"] != "replicated"), None)
        names = {point: name for s in self.table.statements.values() for name, point in s.touches}
        name = names[change.point] if statement is not None else self.table.mutated[-1 - change.point]
        return Refusal(
            "JP066",
            f"`{name}{leaf['path'] if leaf else ''}` is changed by what only one share of the batch tells: "
            "its copies would differ between devices",
            "Change it by values of the whole batch (a BatchNorm: give it the axis name, axis_name="
            f'"{self.table.axis_name}"), or keep the change on one device',
            statement.span if statement is not None else self.table.facts.span,
        )

    def added_to(self, statement: Statement, event: Event, events: Sequence[Event]) -> bool:
        """Whether all that is done with a partial value is to add it up, with others that are partial so too.

        Then the sum is made whole once, where it is used, and not at every statement or in every round.
        """
        name = next(name for name, point in statement.names if point == event.point)
        following = self.table.next_mention.get((statement.index, name))
        if following is None:
            return False
        sums: int | None = None
        if self._sums_rounds(statement, name, following, events):
            sums = event.point
        elif following.accumulates == name and following.block == statement.block:
            # The sum itself may be whole by now; what is assigned to it is not.
            sums = following.value
        elif self._is_term_alone(statement, name, following):
            sums = dict(following.names).get(following.accumulates or "")
        op = event.whole_op(numbers=False)
        later = [other for other in events if other.point == sums]
        return bool(later) and op is not None and all(o.whole_op(numbers=False) == op for o in later)

    def _mentions(self, name: str) -> list[Statement]:
        """The statements of the target that read or bind a name, those left out where it is a parameter."""
        found = [s for s in self.table.body.statements.values() if name in s.reads or name in dict(s.names)]
        return [s for s in found if name not in self.table.scopes[s.scope].parameters]

    def _sums_rounds(
        self, statement: Statement, name: str, following: Statement, events: Sequence[Event]
    ) -> bool:
        """Whether a loop of Python only adds to a name, which is read once behind the loop."""
        if statement.accumulates != name or not self._repeats(statement, events):
            return False
        others = [s for s in self._mentions(name) if s != statement]
        behind = [s for s in others if place(s.span) > place(statement.span)]
        reads = [e for e in self.table.body.expressions if e.text == name and e.statement == following.index]
        once = len(reads) == 1 and (behind == [following] or name in dict(following.names))
        begun = all(name not in s.reads for s in others if s not in behind)
        return once and begun and statement.block not in following.blocks

    def _is_term_alone(self, statement: Statement, name: str, following: Statement) -> bool:
        """Whether a name is bound once, and read once: by a sum, in the same suite, in one of its terms."""
        if following.accumulates is None or following.value is None or following.block != statement.block:
            return False
        alone = {s.index for s in self._mentions(name)} == {statement.index, following.index}
        terms = self._terms(following)
        # In `loss / 4`, too: what is no multiple of it makes no sum of the same kind.
        inside = [part for term in terms for part in (term, *self.table.descendants(term.point))]
        return alone and [each.text for each in inside].count(name) == 1

    def _leaves(self, state: State, statement: Statement, whole: Event) -> bool:
        """Make whole the partial leaves of a result that has others too."""
        assert statement.value is not None
        value, added = self.table.by_point[statement.value], False
        for sync in self._syncs_for("result", whole, statement.span, numbers=True):
            if sync.paths == ("",):
                sync = dataclasses.replace(sync, value=value.text, where="wrap", span=value.span)
            added |= state.add(sync, statement.value)
        return added

    def _syncs_for(self, value: str, event: Event, span: Span, numbers: bool) -> list[Sync]:
        """One sync for the whole value, or one for each partial part, with the containers around it."""
        op = event.whole_op(numbers)
        if op is not None:
            return [self.table.sync(op, value, "after", span, event)]
        partial = event.partial(numbers or len(event.leaves) > 1)
        one = event.op_for_copies(partial)
        together = [] if one is None else [self.table.sync(one, value, "after", span, event)]
        if together and self.table.bytes_of(partial) * 2 > self.table.bytes_of(event.leaves):
            return together
        parts = largest_parts(event, partial)
        containers = containers_above([path for path, _ in parts], event.tree)
        if containers is not None:
            return [
                dataclasses.replace(
                    self.table.sync(leaves[0]["kind"], value, "after", span, event, leaves),
                    paths=(path,),
                    containers=containers,
                )
                for path, leaves in parts
            ]
        return together

    def gradients_in(self, statement: Statement) -> list[Expression]:
        """Gradient calls inside a statement, where they are not all of it."""
        found = [self.table.by_point[point] for point in self.table.gradients]
        return [e for e in found if e.statement == statement.index and e.point != statement.value]

    def _repeats(self, statement: Statement, events: Sequence[Event]) -> bool:
        """Whether a statement was passed more than once."""
        point = statement.names[0][1]
        return sum(event.point == point for event in events) > 1

    def _terms(self, statement: Statement) -> list[Expression]:
        """What a statement adds to the name it accumulates."""
        assert statement.value is not None
        name = statement.accumulates

        def terms(expression: Expression) -> list[Expression]:
            if expression.text == name or expression.in_test:
                return []
            below = self.table.descendants(expression.point)
            if not any(each.text == name for each in below):
                return [expression]
            found = [term for child in self.table.children[expression.point] for term in terms(child)]
            # What one side begins with the other adds.
            begins = {each.text for each in found if each.side_of is None}
            return [each for each in found if each.side_of is None or each.text not in begins]

        return terms(self.table.by_point[statement.value]) if statement.value in self.table.by_point else []

    def _parts(self, expression: Expression) -> list[Expression]:
        """An argument of a call, or the members of one that is a display."""
        return self.table.elements(expression) if expression.is_display else [expression]


def _divisions(sync: Sync, event: Event) -> list[Sync]:
    """`sync` for all of what `event` showed, or for each leaf that is too large; none where more is wrong.

    What has to be divided in parts needs a name: its expression would be run once for each.
    """
    apart = [leaf for leaf in event.leaves if leaf["kind"] == "varying"]
    if event.unaligned or not apart or any("times" not in leaf for leaf in apart):
        return []
    if len(apart) == len(event.leaves):
        is_array = event.leaves[0]["path"] == ""
        return [sync if is_array else dataclasses.replace(sync, containers=(("", "tree"),))]
    paths = [leaf["path"] for leaf in apart]
    containers = containers_above(paths, event.tree) if sync.where == "after" else None
    return [dataclasses.replace(sync, paths=(path,), containers=containers) for path in paths if containers]
