"""Give expressions that couple the examples all of them, and let devices go on with their own rows.

An operand that is a share is gathered from every device. What is made whole so has the size of the whole
batch; where devices are to go on with their own shares, it is cut to this device's again (`OWN_SHARE`), and
of several operands one alone is gathered if the result is then a share itself.
"""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Callable, Container, Mapping, Sequence

from jax_pmap.emit.decomposed import BY_ROW, DIAGONALS, TOGETHER, UPDATES, reduction
from jax_pmap.emit.places import Expression, Statement, inside, place
from jax_pmap.model import EXCHANGE, FOLD, OWN_SHARE, Sync
from jax_pmap.planning.events import Event, Rescue, State, in_groups
from jax_pmap.planning.roles import LARGEST_COUNT
from jax_pmap.planning.syncs import Placer
from jax_pmap.syntax.lines import parsed_expression

#: An expression that ends in a transposition or in new axes.
LAYOUT = re.compile(r"(\.m?T|\[(None|[\s:,.])*\])$")


class Onward(enum.Enum):
    """What devices go on with where something is gathered."""

    ALL = "all of it"
    OWN_SHARES = "their part of it"
    #: What does not fit beside it is gathered too.
    ALL_AND_NEIGHBOURS = "all of it, and of what is beside it"
    #: Nothing may be gathered.
    NOTHING = "nothing of it"


class GathersError(Exception):
    """Something has to be gathered, and nothing may be."""


class Gathering:
    """What is done about expressions that couple the examples."""

    def __init__(self, table: Placer, onward: Onward) -> None:
        self.table = table
        self.own_shares = onward is Onward.OWN_SHARES
        #: Whether a share that does not fit beside what is gathered may be gathered.
        self.neighbours = onward in (Onward.OWN_SHARES, Onward.ALL_AND_NEIGHBOURS)
        self.gathers_nothing = onward is Onward.NOTHING

    def gather(
        self,
        state: State,
        culprits: Sequence[Expression],
        first: Mapping[int, Event],
        events: Sequence[Event],
    ) -> bool:
        """Give expressions that couple the examples all of them, from every device.

        `first` is what was seen of their statement, `events` all that was seen.

        Raises:
            GathersError: one of them has to be, and nothing may be gathered.
        """
        added = False
        for culprit in culprits:
            below = [
                first[each.point] for each in self.table.descendants(culprit.point) if each.point in first
            ]
            if self.own_shares and any(leaf["category"] == "key" for event in below for leaf in event.leaves):
                continue  # Every device would draw the same numbers for its own rows.
            sizes, measured = self.table.sizes_in(culprit, first)
            shares = self._shares_below(culprit, first, sharded)
            operands = [(*each, first) for each in shares if each[0].point not in measured]
            tried = state.attempts.tried.setdefault(culprit.point, 0)
            alone = self.own_shares and tried < len(operands) > 1
            if alone:
                if state.attempts.trial is not None:
                    continue
                operands = [operands[tried], *self._matching(culprit, len(operands), tried, events)]
                state.attempts.tried[culprit.point] += 1
            if operands and self.gathers_nothing:
                raise GathersError
            gathered = []
            for operand, axis, seen in operands:
                taken = next((s for s in state.syncs if s.op == OWN_SHARE and s.span == operand.span), None)
                if taken is not None:
                    state.take_back(taken)
                    added = True
                    continue
                sync = self.table.gathered(operand, seen[operand.point], axis, events)
                gathered.append(sync)
                state.attempts.coupling[place(sync.span)] = self._to_blame(operand, culprit, first)
                added |= state.add(sync, operand.point)
                if self.own_shares and some_rows(first[culprit.point], seen[operand.point], axis):
                    rows = first[culprit.point].leaves[0]["shape"][axis]
                    state.attempts.awaited[culprit.point] = culprit, axis, rows
            if gathered and len(operands) < len(shares):
                # Alone, that was of no help.
                state.allow(self.table.sync("psum", e.text, "wrap", e.span, first[e.point]) for e in sizes)
                self.table.wrap_all(state, sizes, first, numbers=True)
            if alone and gathered:
                state.attempts.trial = tuple(gathered), culprit.point
                self._rows_of_pairs(state, operands[0], events)
        return added

    def _to_blame(self, operand: Expression, culprit: Expression, first: Mapping[int, Event]) -> Expression:
        """The innermost expression around what is gathered for a culprit that is no share of its own.

        Of ``jnp.mean(x.reshape(12, 2, -1), axis=1)`` the rows that are written down, and of
        ``step(init(particles))``, where `init` does something to each particle, `step`.
        """
        each = operand
        while each.parent is not None and each.point != culprit.point:
            each = self.table.by_point[each.parent]
            event = first.get(each.point)
            if event is not None and (event.varying or any(map(in_groups, event.leaves))):
                return each
        return culprit

    def _matching(
        self, culprit: Expression, count: int, which: int, events: Sequence[Event]
    ) -> list[tuple[Expression, int, Mapping[int, Event]]]:
        """The operands of other statements that go with one of `count` of an expression, each with its axis.

        Distances along one coordinate are added to those along another, and multiplied with whether labels
        agree: of all of these the same operand is gathered, or one would have rows where another has columns.
        """
        out: list[tuple[Expression, int, Mapping[int, Event]]] = []
        home = self.table.statements[culprit.statement]
        for statement in {self.table.owner[event.point].index: 0 for event in events}:
            other = self.table.statements[statement]
            if other.scope != home.scope or other.index == home.index:
                continue
            first = self.table.first_of(other, events)
            for each in self.table.culprits(first):
                operands = self._shares_below(each, first, sharded)
                # What is made of sums or means is whole once these are.
                if len(operands) == count and not self.table.partial_below(each, first):
                    out.append((*operands[which], first))
        return out

    def _rows_of_pairs(
        self, state: State, gathered: tuple[Expression, int, Mapping[int, Event]], events: Sequence[Event]
    ) -> None:
        """Take this device's rows of what has a number for each pair and is made of the size of the batch.

        ``jnp.eye(n)`` beside what is computed for each pair of examples.
        """
        operand, axis, seen = gathered
        size = seen[operand.point].leaves[0]["shape"][axis]
        for index in dict.fromkeys(self.table.owner[event.point].index for event in events):
            statement = self.table.statements[index]
            first = self.table.first_of(statement, events)
            for each in self.table.culprits(first):
                leaves, sizes = first[each.point].leaves, self.table.partial_below(each, first)
                pairs = len(leaves) == 1 and leaves[0]["shape"].count(size) == 2
                # Of `x.shape[0]` nothing but the size is read.
                measured = {inner.point for s in sizes for inner in self.table.descendants(s.point)}
                shares = {share.point for share, _ in self._shares_below(each, first, sharded)}
                if pairs and sizes and shares <= measured:
                    self.table.wrap_all(state, sizes, first, numbers=True)
                    at = leaves[0]["shape"].index(size)
                    state.add(Sync(OWN_SHARE, each.text, "wrap", each.span, axis=at), each.point)

    def joined(self, state: State, culprits: Sequence[Expression], events: Sequence[Event]) -> bool:
        """Take this device's rows of what is joined of parts whose lengths are made of the size of the batch.

        ``jnp.concatenate([jnp.zeros(n // 2), jnp.ones(n // 2)])`` of a share's size has the wrong halves.
        """
        added = False
        for culprit in culprits if self.own_shares else ():
            for operand in self.table.descendants(culprit.point):
                made = self.table.bound(operand) if operand.text.isidentifier() else None
                if made is None:
                    continue
                event = self.table.first_of(self.table.statements[made.statement], events).get(made.point)
                axis = sharded(event) if event is not None and any(map(in_groups, event.leaves)) else None
                sizes = self.table.sizes_within(made, events) if axis is not None else []
                for size in sizes:
                    seen = self.table.first_of(self.table.statements[size.statement], events)
                    added |= self.table.wrap_all(state, [size], seen, numbers=True)
                    self._draw_for_all(state, self._call_around(size))
                if sizes and axis is not None:
                    added |= state.add(Sync(OWN_SHARE, made.text, "wrap", made.span, axis=axis), made.point)
        return added

    def together(self, state: State, culprits: Sequence[Expression], events: Mapping[int, Event]) -> bool:
        """Have devices compute a variance, a norm or their like together, by its sums or means."""
        added = False
        for culprit in culprits:
            found = reduction(culprit.text, culprit.called) if culprit.is_call else None
            if found is None:
                continue
            # Narrow floats would be rounded between the means; what is added to a table is rounded as it is.
            arrays, sent = events[culprit.point].arrays, TOGETHER[found.name]
            kept = ("int", "uint", "float", "bfloat") if found.name in UPDATES.values() else ()
            if sent and any(not leaf["dtype"].startswith(("float32", "float64", *kept)) for leaf in arrays):
                continue
            (axis, shape), *others = self._shares_in(culprit, events) or [(0, ())]
            if found.name in DIAGONALS and (others or not has_pairs(state, shape)):
                continue
            size = sent * self.table.bytes_of(arrays)
            if found.name in BY_ROW and shape:
                size //= max(shape[axis], 1)  # One row for all of them.
            along = axis if found.name in DIAGONALS else None
            sync = Sync(found.name, culprit.text, "wrap", culprit.span, axis=along, bytes=size)
            added |= state.add(sync, culprit.point)
        return added

    def exchanged(
        self,
        state: State,
        culprits: Sequence[Expression],
        events: Mapping[int, Event],
        axis_of: Callable[[Event], int | None],
    ) -> bool:
        """Have devices exchange columns of a matrix of pairs for rows: of ``scores.T``, beside labels.

        Each sends what it has of the rows of others, which is less than all that the pairs were made of.
        """
        added = False
        for culprit in culprits if self.own_shares else ():
            for operand in self.table.children.get(culprit.point, ()):
                event = events.get(operand.point)
                leaves = event.leaves if event is not None and axis_of(event) == 1 else ()
                if len(leaves) != 1 or not has_pairs(state, leaves[0]["shape"]):
                    continue
                size = self.table.bytes_of(leaves) // LARGEST_COUNT
                sync = Sync(EXCHANGE, operand.text, "wrap", operand.span, axis=0, bytes=size)
                if state.add(sync, operand.point):
                    added = True
                    # What went beside all rows of the columns goes beside own rows.
                    around = place(culprit.span)
                    for other in [s for s in state.syncs if s.op == "all_gather" and s.where == "wrap"]:
                        if inside(place(other.span), around):
                            state.forget(other)
        return added

    def _shares_in(self, call: Expression, events: Mapping[int, Event]) -> list[tuple[int, Sequence[int]]]:
        """The axis along which each operand of a call is a share, and its shape."""
        seen = [
            events[each.point] for each in self.table.children.get(call.point, ()) if each.point in events
        ]
        axes = [(sharded(event), event) for event in seen if len(event.leaves) == 1]
        return [(axis, event.leaves[0]["shape"]) for axis, event in axes if axis is not None]

    def end_trial(self, state: State, events: Sequence[Event] | None) -> bool:
        """Take back the one operand that was gathered if that does not leave the result a share."""
        if state.attempts.trial is None:
            return False
        (syncs, point), state.attempts.trial = state.attempts.trial, None
        first = next((event for event in events or () if event.point == point), None)
        kinds = {leaf["kind"] for leaf in first.leaves} if first is not None else set()
        left = [sync for sync in syncs if sync in state.syncs]
        if kinds == {f"sharded {syncs[0].axis}"} or not left:
            return False
        # What was added for its sake goes with it.
        for other, _ in list(state.fresh):
            state.forget(other)
        state.attempts.resized.clear()
        return True

    def go_on(self, state: State, events: Sequence[Event], all_seen: Sequence[Event]) -> bool:
        """Change something where the function fails beside gathered values; False when that is no help.

        `all_seen` is what was seen in functions that are not looked into, too.
        """
        if self._mend_sizes(state, events, "all_gather"):
            return True
        sizes = self._sizes_of_shares(all_seen) if self.own_shares else set()
        fitting = [point for point, (_, _, rows) in state.attempts.awaited.items() if rows in sizes]
        if sizes and state.fresh and not fitting and self._take_neighbour(state, all_seen, sizes):
            return True
        if self.take_shares(state, list(state.attempts.awaited)) or self._mend_sizes(state, events, "psum"):
            return True
        failing, first = self._failing(events) if events else (None, {})
        if failing is not None and self.exchanged(state, [failing], first, share_shaped):
            return True
        if self.neighbours and state.fresh and events and self._gather_too(state, events):
            return True
        return self.end_trial(state, None)

    def _failing(self, events: Sequence[Event]) -> tuple[Expression | None, Mapping[int, Event]]:
        """The expression that failed behind the last event, and what was seen of its statement."""
        statement = self.table.owner[events[-1].point]
        first = self.table.first_of(statement, events)
        for expression in self.table.by_point.values():
            below = self.table.children.get(expression.point)
            if expression.statement != statement.index or expression.point in first or not below:
                continue
            if all(child.point in first or not self.table.children.get(child.point) for child in below):
                return expression, first
        return None, first

    def _sizes_of_shares(self, events: Sequence[Event]) -> set[int]:
        """How many rows the whole has, of shares that go into the expression that failed."""
        failing, first = self._failing(events) if events else (None, {})
        shares = self._shares_below(failing, first, share_shaped) if failing is not None else []
        return {first[share.point].leaves[0]["shape"][axis] for share, axis in shares}

    def _take_neighbour(self, state: State, events: Sequence[Event], sizes: Container[int]) -> bool:
        """Take this device's rows of what has those of the whole batch, where it meets a share and fails.

        ``t = jnp.mod(t0 + jnp.arange(0.0, 1.0, 1 / n), 1.0)`` has a value for each example, of the number of
        all of them; where it is bound, a device goes on with its own.
        """
        failing, first = self._failing(events)
        if failing is None:
            return False
        taken = self._made_nearby(failing, first) or self._beside_share(state, failing, first, sizes)
        found = self._of_all_rows(state, failing, first, sizes)
        while len(found) == 1:
            ((made, axis),) = found.items()
            first = self.table.first_of(self.table.statements[made.statement], events)
            found = self._of_all_rows(state, made, first, sizes)
            taken = made, axis
        if taken is None:
            return False
        state.attempts.awaited.clear()
        made, axis = taken
        return state.add(Sync(OWN_SHARE, made.text, "wrap", made.span, axis=axis), made.point)

    def _made_nearby(self, failing: Expression, events: Mapping[int, Event]) -> tuple[Expression, int] | None:
        """A call that makes all of what an operand of what failed is a share of, and the axis."""
        for share, axis in self._shares_below(failing, events, share_shaped):
            shape = events[share.point].leaves[0]["shape"]
            for other in self.table.descendants(failing.point) if share.parent == failing.point else ():
                event = events.get(other.point)
                whole = event is not None and len(event.leaves) == 1 and event.leaves[0].get("whole")
                if whole and other.is_call and event is not None and event.leaves[0].get("shape") == shape:
                    return other, axis
        return None

    def _beside_share(
        self, state: State, failing: Expression, events: Mapping[int, Event], sizes: Container[int]
    ) -> tuple[Expression, int] | None:
        """The one operand of what failed that is made for all rows of the batch, and the axis of these.

        Of ``jax.vmap(f)(keys[1:], x)`` that is ``keys[1:]``, of a key for each of them.
        """
        gathered = [sync.span for sync in state.syncs if sync.op == "all_gather"]

        def found_below(expression: Expression) -> list[tuple[Expression, int]]:
            out: list[tuple[Expression, int]] = []
            for child in self.table.children.get(expression.point, ()):
                axis = all_rows_along(events.get(child.point), sizes)
                if axis is None:
                    out += found_below(child)
                elif all(each.span not in gathered for each in (child, *self.table.descendants(child.point))):
                    out.append((child, axis))
            return out

        found = found_below(failing)
        return found[0] if len(found) == 1 else None

    def _of_all_rows(
        self, state: State, expression: Expression, events: Mapping[int, Event], sizes: Container[int]
    ) -> dict[Expression, int]:
        """What the names in an expression are bound to that has so many rows, and the axis of these."""
        found: dict[Expression, int] = {}
        gathered = [sync.span for sync in state.syncs if sync.op == "all_gather"]
        for name in (e for e in self.table.descendants(expression.point) if e.span not in gathered):
            made = self.table.bound(name) if name.text.isidentifier() else None
            axis = all_rows_along(events.get(name.point), sizes)
            if made is not None and axis is not None:
                found[made] = axis
        return found

    def _gather_too(self, state: State, events: Sequence[Event]) -> bool:
        """Gather operands of the expression that failed: one of them, the smallest first, then all.

        Of ``pairs * negative[None, :]``, with a row of `pairs` for each of a device's examples, the labels.
        Of two as large first the one that lies along another axis: of ``x[:, None] - x[None]`` rows are own.
        """
        failing, first = self._failing(events)
        if failing is None:
            return False
        if state.attempts.rescue is None or state.attempts.rescue.point != failing.point:
            if failing.point in state.attempts.failed:
                return False  # What helped there has another one fail.
            state.attempts.failed.add(failing.point)
            operands = self._shares_below(failing, first, share_shaped)
            operands.sort(
                key=lambda each: (
                    self.table.bytes_of(first[each[0].point].leaves),
                    not self._lies_apart(each[0], each[1], first),
                )
            )
            sets = [[each] for each in operands] + ([operands] if len(operands) > 1 else [])
            state.attempts.rescue = Rescue(failing.point, sets)
        for sync in state.attempts.rescue.added:
            if sync in state.syncs:
                state.forget(sync)
        state.attempts.rescue.added.clear()
        if not state.attempts.rescue.sets:
            return False
        for operand, axis in state.attempts.rescue.sets.pop(0):
            sync = self.table.gathered(operand, first[operand.point], axis, events)
            if state.add(sync, operand.point):
                state.attempts.rescue.added.append(sync)
        return True

    def _lies_apart(self, operand: Expression, axis: int, events: Mapping[int, Event]) -> bool:
        """Whether a share is laid out along another axis where it is used, as ``x[None]`` and ``x.T`` are."""
        around = self.table.by_point[operand.parent] if operand.parent is not None else operand
        event = events.get(around.point) if is_layout(around.text) else None
        return event is not None and share_shaped(event) not in (None, axis)

    def await_share(self, state: State, culprit: Expression, events: Mapping[int, Event]) -> None:
        """Note that an expression that is being made whole has the shape of a share without that.

        Of a number that is what is made with it: of ``1 / n`` ``jnp.arange(0.0, 1.0, 1 / n)``.
        """
        if not self.own_shares:
            return
        made = culprit if events[culprit.point].arrays else self._call_around(culprit)
        self._draw_for_all(state, made)
        axis = share_shaped(events[made.point]) if made.point in events else None
        if axis is not None:
            rows = events[made.point].leaves[0]["shape"][axis]
            state.attempts.awaited[made.point] = made, axis, rows

    def _draw_for_all(self, state: State, drawn: Expression) -> None:
        """Draw from one key what is drawn for the whole batch."""
        around = place(drawn.span)
        state.syncs = [s for s in state.syncs if s.op != FOLD or not inside(place(s.span), around)]

    def _call_around(self, number: Expression) -> Expression:
        """The innermost call that a number is given to."""
        call = number
        while call.parent is not None and (call is number or not call.is_call):
            call = self.table.by_point[call.parent]
        return call

    def _mend_sizes(self, state: State, events: Sequence[Event], op: str) -> bool:
        """Where a statement fails beside what an `op` made whole, make the sizes in it those of all rows.

        Or in the statements that made what it reads: ``jnp.diag(scores, n)`` takes any ``n``, and what it
        gives does not fit.
        """
        if not events or not any(sync.op == op for sync, _ in state.fresh):
            return False
        for statement in self.table.behind(self.table.owner[events[-1].point]):
            if statement.index in state.attempts.resized:
                continue
            state.attempts.resized.add(statement.index)
            first = self.table.first_of(statement, events)
            sizes = [self.table.by_point[point] for point in first if point in self.table.by_point]
            innermost = [
                e for e in sizes if not any(c.point in first for c in self.table.descendants(e.point))
            ]
            if op == "all_gather":
                # Beside shares these were of no help.
                state.allow(
                    self.table.sync("psum", e.text, "wrap", e.span, first[e.point]) for e in innermost
                )
            if self.table.wrap_all(state, innermost, first, numbers=True):
                return True
        return False

    def take_shares(self, state: State, points: Sequence[int]) -> bool:
        """Go on with this device's part of awaited expressions; whether there was one."""
        added = False
        for point in points:
            culprit, axis, _ = state.attempts.awaited.pop(point)
            sync = Sync(OWN_SHARE, culprit.text, "wrap", culprit.span, axis=axis)
            added |= state.add(sync, point)
        return added

    def gather_later(self, state: State, statement: Statement, events: Sequence[Event]) -> None:
        """Gather for the later statements of a scope that couple the examples on their own too.

        Such as distances and whether labels agree: one of the whole batch beside one of a share would
        not fit together.
        """
        tainted = {name for name, _ in statement.names}
        order = dict.fromkeys(self.table.owner[event.point].index for event in events)
        later = list(order)[list(order).index(statement.index) + 1 :]
        for other in (self.table.statements[index] for index in later):
            if other.scope != statement.scope:
                continue
            if other.reads & tainted:
                tainted |= {name for name, _ in other.names}
            elif other.kind == "assign":
                first = self.table.first_of(other, events)
                culprits = self.table.culprits(first)
                feeding = [each for culprit in culprits for each in self.table.partial_below(culprit, first)]
                if culprits and not self.table.wrap_all(state, feeding, first, numbers=True):
                    self.gather(state, culprits, first, events)
                if culprits:
                    tainted |= {name for name, _ in other.names}

    def _shares_below(
        self, expression: Expression, events: Mapping[int, Event], axis_of: Callable[[Event], int | None]
    ) -> list[tuple[Expression, int]]:
        """The largest subexpressions below `expression` that are shares, each with its axis.

        Of ``x.T`` and ``x[:, None]`` that is ``x``, which may be wanted in another layout beside it.
        """
        out: list[tuple[Expression, int]] = []
        for child in self.table.children.get(expression.point, []):
            event = events.get(child.point)
            if event is not None and event.arrays and event.alike:
                continue  # Made whole already, of a share.
            axis = axis_of(event) if event is not None else None
            inner = self._shares_below(child, events, axis_of)
            if axis is None or (inner and is_layout(child.text)):
                out += inner
            else:
                out.append((child, axis))
        return out


def is_layout(text: str) -> bool:
    """Whether an expression is a layout of one array: ``x.T``, ``x[:, None]``, not ``y * x[:, None]``."""
    return bool(LAYOUT.search(text)) and isinstance(parsed_expression(text), ast.Attribute | ast.Subscript)


def sharded(event: Event) -> int | None:
    """The one axis along which everything in a value is a share, or None."""
    kinds = {leaf["kind"] for leaf in event.leaves}
    kind = kinds.pop() if len(kinds) == 1 else ""
    return int(kind.partition(" ")[2]) if kind.startswith("sharded") else None


def has_pairs(state: State, shape: Sequence[int]) -> bool:
    """Whether a share of this whole shape may have a number for each pair of examples.

    It is square, and there are others to go with a device's own. Else both sizes are the same by chance.
    """
    return len(shape) == 2 and shape[0] == shape[1] and any(s.op == "all_gather" for s in state.syncs)


def some_rows(part: Event, event: Event, axis: int) -> bool:
    """Whether an array has the form of a group of the rows of another one, as a minibatch has."""
    if len(part.leaves) != 1 or len(event.leaves) != 1:
        return False
    one, whole = part.leaves[0].get("shape") or [], event.leaves[0].get("shape") or []
    fewer = len(one) == len(whole) > axis and 1 < one[axis] < whole[axis]
    return fewer and all(a == b for i, (a, b) in enumerate(zip(one, whole, strict=True)) if i != axis)


def share_shaped(event: Event) -> int | None:
    """The axis along which an array has the shape of a share, or None: what is known where a run failed."""
    return event.leaves[0].get("split") if len(event.leaves) == 1 else None


def all_rows_along(event: Event | None, sizes: Container[int]) -> int | None:
    """The one axis of an array that has one of some sizes, where every device has all of it; else None."""
    leaf = event.leaves[0] if event is not None and len(event.leaves) == 1 else {}
    axes = [axis for axis, size in enumerate(leaf.get("shape") or ()) if size in sizes]
    return axes[0] if leaf.get("whole") and len(axes) == 1 else None
