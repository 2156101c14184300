"""Decide what a trace calls for: collectives, a closer look, a refusal, or that all is well.

Nothing is asked and nothing is run here: a decision depends on the answers of the worker alone, which are
JSON. At the first value that is partial (a mean, sum, maximum or minimum over shards of the whole value) a
collective is added; at the first value that is none of these, its subexpressions are looked at, and the
partial ones that feed it are made whole. A collective that raises or does not help is taken back.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax_pmap.emit.decomposed import BY_ROW
from jax_pmap.emit.places import Expression, Statement, place
from jax_pmap.emit.weave import inside_of
from jax_pmap.model import DIVIDE, EXCHANGE, EXTREMES, OWN_SHARE, SUMS, Callee, Guard, Refusal, Sync
from jax_pmap.planning.coupling import coupled, fails_on_share, result_not_whole
from jax_pmap.planning.events import PARTIAL, Event, State, has_offset, in_groups, is_part, uneven
from jax_pmap.planning.gathering import Gathering, Onward, sharded
from jax_pmap.planning.mending import Mending
from jax_pmap.planning.opening import Find, Opening
from jax_pmap.planning.syncs import Placer
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import AXIS_ARGUMENTS, Row

#: A name, and a part of what has it: ``c``, ``carry[0]``, ``state.mean``.
PART = re.compile(r"(?P<of>\w+)(\[\w+\]|\.(?!shape\b)\w+)*")


@dataclass(frozen=True, slots=True)
class Observation:
    """What tracing a function showed."""

    syncs: tuple[Sync, ...]
    #: Kind, path, shape and dtype of every leaf of the result, and its containers.
    leaves: tuple[Row, ...]
    tree: Any
    #: Point of the returned expression, to know which return was taken.
    result: int
    reached: frozenset[int]
    #: Points that were passed: expressions and names that took part.
    seen: frozenset[int]
    #: Where values are gathered: the part of one device's work that each of `count` devices does.
    share: float | None = None
    #: Points that were passed with the same on every device each time, and with no key.
    whole: frozenset[int] = frozenset()
    #: Those of them that had nothing but arrays: no number that could choose an axis or a branch.
    arrays: frozenset[int] = frozenset()
    #: Whether collectives are taken of what is whole already, by point; of those that were passed.
    idle: Mapping[int, bool] = field(default_factory=dict)
    #: Static arguments of which any other would do: see `callables.only_given_whole`.
    free: frozenset[str] = frozenset()
    #: What is read of static objects, by argument, as (source, value): see `callables.told_apart`.
    told: Mapping[str, tuple[tuple[str, str], ...]] = dataclasses.field(default_factory=dict)
    #: Of constants that no source is equal to, by path, what they are told from others by.
    same: Mapping[str, protocol.Identity] = dataclasses.field(default_factory=dict)
    #: Branches of functions beside the target that no input took.
    guards: tuple[Guard, ...] = ()
    #: Methods beside the target that running it has shown.
    callees: tuple[Callee, ...] = ()
    #: What is called and was not found when it was to be looked into, and why where that is known.
    closed: Mapping[str, str] = field(default_factory=dict)
    #: The part of one device's work that each of `count` devices does, whatever is gathered.
    work: float = 0.0
    #: What every point showed, in the order of the trace.
    events: tuple[Row, ...] = ()
    #: Numbers of the leaves of arguments that were split and are gathered as they are.
    together: frozenset[int] = frozenset()
    #: The expressions that couple examples, by the place of what is gathered for them.
    coupling: Mapping[tuple[int, int, int, int], Expression] = field(default_factory=dict)


def points_of(events: Sequence[Event], holds: Callable[[Event], bool]) -> frozenset[int]:
    """Points at which something held each time they were passed."""
    failed = {event.point for event in events if not holds(event)}
    return frozenset(event.point for event in events) - failed


class Decider:
    """Decides, answer after answer, what to do about one function."""

    def __init__(self, table: Placer, find: Find, onward: Onward = Onward.ALL) -> None:
        """Decide by `table`, and by what `find` tells of calls that no name in the source leads to."""
        self.table = table
        self.gathering, self.mending = Gathering(table, onward), Mending(table)
        self.opening = Opening(table, find)

    def decide(self, state: State, answer: protocol.Observation) -> Observation | Refusal | None:
        """What an answer of the worker to `state` shows; None where `state` was changed: trace anew."""
        every = self._visible(state, answer.events)
        if answer.raised is not None:
            return self._failed(state, answer, every)
        state.others = dict(answer.others)
        watch = self.table.watch
        watched = [event for event in every if event.point in watch.tests]
        changes = [event for event in every if event.point < 0 or event.point in self.table.touched]
        set_apart = {*watch.tests, *(event.point for event in changes)}
        events = [event for event in every if event.point not in set_apart]
        if self.gathering.end_trial(state, every) or self._drop_useless(state, every):
            return None
        self.mending.settle(state)
        state.uneven = uneven(events)
        if self._take_awaited(state, events):
            return None
        final = self._result(events)
        if isinstance(final, Refusal):
            return final
        at_odds = watch.at_odds(watched)
        if at_odds is not None:
            return at_odds
        if self.mending.tests(state, events, watched):
            return None
        apart = next((event for event in changes if not event.whole and self.table.changes(event)), None)
        settled = not final.unaligned and not final.varying and not final.partial(numbers=True)
        if settled and apart is None:
            return self._settled(state, answer, events, final)
        if self._advance(state, events):
            return None
        if apart is not None and self._change_opened(state, apart, events):
            return None
        if apart is not None and self.mending.increment(state, apart):
            state.hopeless.clear()  # What could not be made whole may be read of it: `metrics.compute()`.
            return None
        if apart is not None and not state.hopeless:
            if self.mending.change(state, apart, events):
                return None
            if settled:
                return self.mending.left_apart(apart)
        return next(iter(state.hopeless.values()), None) or self._not_whole(final)

    def _failed(self, state: State, answer: protocol.Observation, every: Sequence[Event]) -> Refusal | None:
        """What becomes of a function that raised on a share, behind the point that it passed last."""
        watch, owner, raised, last = self.table.watch, self.table.owner, answer.raised, answer.last
        assert raised is not None
        watched = [event for event in every if event.point in watch.tests]
        passed = [event for event in every if event.point in owner and event.point not in watch.tests]
        points = owner.keys() - watch.tests.keys()
        all_seen = [Event(data) for data in answer.events if data["point"] in points]
        if self.gathering.go_on(state, passed, all_seen):
            return None
        if state.fresh:
            self._retreat(state, raised)
            return None
        if self.mending.tests(state, passed, watched):
            return None
        root = self.table.call_graph.target.source.root
        return fails_on_share(self.table.facts, raised, owner.get(last) if last is not None else None, root)

    def _take_awaited(self, state: State, events: Sequence[Event]) -> bool:
        """Whether a device goes on with its part of what was to become whole, and now is."""
        state.fresh.clear()
        state.attempts.rescue = None
        state.attempts.failed.clear()
        state.attempts.resized.clear()
        whole = [event.point for event in events if event.point in state.attempts.awaited and event.whole]
        taken = self.gathering.take_shares(state, list(dict.fromkeys(whole)))
        state.attempts.awaited.clear()
        return taken

    def _result(self, events: Sequence[Event]) -> Event | Refusal:
        """The value that the function returned."""
        result = [event for event in events if event.point in self.table.results]
        if result:
            return result[-1]
        if self.table.mutated:
            return Event({"point": 0, "leaves": [], "tree": {"kind": "none"}})
        return Refusal(
            "JP055",
            f"`{self.table.facts.name}` returned nothing on these inputs",
            "Return the values the caller needs; changes made in place are not seen across devices",
            self.table.facts.span,
        )

    def _settled(
        self, state: State, answer: protocol.Observation, events: Sequence[Event], final: Event
    ) -> Observation | Refusal | None:
        """What was shown where every result is whole or a share, unless something wants a closer look."""
        statements = (self.table.owner[event.point] for event in events)
        unsure = next((each for each in statements if self.opening.disagrees(state, each, events)), None)
        if unsure is not None:
            return None if self.look_closer(state, unsure, events) else state.hopeless[unsure.index]
        if len(self.table.call_graph.callees) > self.table.watch.methods:
            self.table.watch_again()
            return None
        another = self._now_another(state)
        if another is not None:
            return another
        return Observation(
            tuple(state.syncs),
            tuple(final.leaves),
            final.tree,
            final.point,
            frozenset(answer.reached),
            frozenset(data["point"] for data in answer.events),
            answer.share if any(s.op in ("all_gather", OWN_SHARE) for s in state.syncs) else None,
            points_of(events, lambda event: event.alike),
            points_of(
                events, lambda event: event.alike and not event.acts and event.arrays == event.leaves != []
            ),
            work=answer.share,
            idle=dict(answer.idle),
            closed=dict(state.closed),
            events=answer.events,
            together=self._put_together(state, events),
            coupling=dict(state.attempts.coupling),
        )

    def _put_together(self, state: State, events: Sequence[Event]) -> frozenset[int]:
        """Numbers of the split leaves of arguments that are gathered as they are, by whatever name."""
        gathered = {sync.span for sync in state.syncs if sync.op == "all_gather"}
        points = {each.point for each in self.table.by_point.values() if each.span in gathered}
        leaves = [leaf for event in events if event.point in points for leaf in event.leaves]
        return frozenset(leaf["together"] for leaf in leaves if "together" in leaf)

    def _now_another(self, state: State) -> Refusal | None:
        """The refusal of a method with collectives in it, where an object was seen to have another one."""
        for scope in sorted(state.others):
            carried = {scope}
            while more := {b for a, _, b in self.table.linked() if a in carried} - carried:
                carried |= more
            bodies = [body for body in self.table.bodies if body.scope.index in carried]
            if any(inside_of(body, state.syncs) for body in bodies):
                both = self.opening.both(state, scope)
                return Refusal(
                    "JP069",
                    f"a method needs collectives in it, and {both}: its copy could not be both",
                    "Give the methods different names, or call each class's in a statement of its own",
                    self.table.home(scope).facts.span,
                )
        return None

    def _visible(self, state: State, events: Sequence[Row]) -> list[Event]:
        """What the target showed, and what the functions showed that are looked into."""
        scopes = {self.table.body.scope.index, *(scope for scope, _ in state.opened)}

        def seen(point: int) -> bool:
            return point not in self.table.owner or self.table.owner[point].scope in scopes

        visible = [data for data in events if seen(data["point"])]
        state.grouped |= any(in_groups(leaf) for data in visible for leaf in data["leaves"])
        every = [Event(data, in_groups if state.gather_groups else None) for data in visible]
        if any(event.varying for event in every):
            # What is added to rows may be what has to be made whole before.
            every = [
                Event(data, lambda leaf: has_offset(leaf) or (state.gather_groups and in_groups(leaf)))
                for data in visible
            ]
        return every

    def _retreat(self, state: State, raised: protocol.Raised) -> None:
        """The last collectives raised: go on with half of them, or without the one that is left.

        An error of jax about a derivative names what has none. In functions that the target calls, of which
        some are differentiated, it becomes a constant: so is a maximum that is a metric beside the loss.
        """
        named = [
            (sync, point)
            for sync, point in state.fresh
            if raised.type == "NotImplementedError"
            and f"'{sync.op}'" in raised.message
            and sync.op in EXTREMES
            and not sync.constant
            and self.table.owner[point].scope != self.table.body.scope.index
        ]
        for sync, point in named:
            state.take_back(sync)
            state.add(dataclasses.replace(sync, constant=True), point)
        if named:
            return
        # A check that compares two sizes of a share holds as it is, and of none of many is each to be tried.
        checking = [sync for sync, point in state.fresh if self._is_check(point)]
        if checking:
            for sync in checking:
                state.take_back(sync)
            return
        kept = state.fresh[: len(state.fresh) // 2]
        if not kept:
            first = state.fresh[0]
            state.take_back(first[0])
            if raised.type == "NotImplementedError" and first[0].op in EXTREMES and not first[0].constant:
                state.without_derivative.append(first)
        else:
            for sync, _ in state.fresh[len(kept) :]:
                state.syncs.remove(sync)
            state.fresh = kept

    def _is_check(self, point: int) -> bool:
        """Whether a point is in a statement that can only end in an error, as an assert."""
        owner = self.table.owner.get(point)
        own = owner is not None and owner.index in self.table.body_of[owner.index].checks
        return own or point in self.table.watch.checks

    def _drop_useless(self, state: State, events: Sequence[Event]) -> bool:
        """Take back fresh collectives whose value is still not whole."""
        # The first time round a loop: later ones may vary for another reason.
        first: dict[int, Event] = {}
        for event in events:
            first.setdefault(event.point, event)
        dropped = False
        # What is gathered so that the function runs at all may be wrong for another reason still.
        rescued = state.attempts.rescue.added if state.attempts.rescue is not None else []
        for sync, point in state.fresh:
            if sync in rescued:
                continue
            paths = None if sync.paths == ("",) else sync.paths
            wanted = f"sharded {sync.axis}" if sync.op in (OWN_SHARE, EXCHANGE) else "replicated"
            by_row = sync.op in BY_ROW or sync.op == DIVIDE
            wanted = "sharded" if by_row else wanted
            helped = all(
                leaf["kind"] != "varying"
                if sync.op in AXIS_ARGUMENTS
                else leaf["kind"].startswith(wanted)
                if by_row
                # Of what is repeated for each row, a sum over the devices gives each row the whole.
                else leaf["kind"] == wanted or (sync.op in SUMS and leaf["kind"].startswith("sharded"))
                for leaf in (first[point].leaves if point in first else ())
                if paths is None or any(is_part(leaf["path"], path) for path in paths)
            )
            if not helped and sync in state.syncs:
                state.take_back(sync)
                dropped = True
        return dropped

    def _advance(self, state: State, events: Sequence[Event]) -> bool:
        """Change something for the better: add collectives, or look closer. False when stuck."""
        tainted: set[str] = set()
        advanced = False
        # What a loop carries is partial where it is taken apart because a round makes it so, further down.
        handled = {s.index for s in self.table.statements.values() if self._is_carry(state, s)}
        for event in events:
            statement = self.table.owner[event.point]
            if event.unaligned or statement.index in handled:
                continue
            if self.table.by_point.get(event.point) is not None and event.point != statement.value:
                continue  # Subexpressions speak when their statement asks.
            if statement.scope not in {self.table.body.scope.index, *state.loops}:
                # Inside a function that is looked into, partial values may stay partial: its caller
                # makes the result whole. Only what is already wrong there has to be mended there.
                keeps = statement.kind == "other" and self.mending.keeps_varying(statement, events)
                apart = event.varying and not self.mending.divided_behind(statement, event, events)
                if (apart or keeps) and statement.index not in state.hopeless:
                    return advanced or self.look_closer(state, statement, events, event.occurrence)
                continue
            depends = bool(statement.reads & tainted)
            if statement.kind == "other":
                if advanced or depends:
                    break
                if statement.index in state.hopeless:
                    continue
                if self.mending.keeps_varying(statement, events):
                    if self.look_closer(state, statement, events):
                        return True
                elif self.mending.kept(state, statement, events):
                    return True
                continue
            if statement.scope in state.deciding and statement.kind == "return":
                if statement.index in state.hopeless or not self.opening.disagrees(state, statement, events):
                    continue
                return advanced or self.look_closer(state, statement, events)
            if statement.kind == "return" and event.point == statement.value:
                if advanced:
                    break
                if not event.varying and not self.mending.not_stacked(state, statement, event):
                    continue
                if self._update_opened(state, statement, event, events):
                    return True
                return self.mending.result(state, statement, events) or self.look_closer(
                    state, statement, events, event.occurrence
                )
            if event.varying and not self.mending.divided_behind(statement, event, events):
                if advanced or depends:
                    break
                if statement.index in state.hopeless:
                    continue
                if self.look_closer(state, statement, events, event.occurrence):
                    return True
                continue
            names = [name for name, point in statement.names if point == event.point]
            if event.partial() and names and not (set(names) & tainted and not depends):
                if depends:
                    tainted |= {name for name, _ in statement.names}
                    continue
                if self.mending.added_to(statement, event, events):
                    continue
                if not advanced and self._update_opened(state, statement, event, events):
                    return True
                if self.mending.assignment(state, statement, events):
                    advanced = True
                    handled.add(statement.index)
                    tainted |= {name for name, _ in statement.names}
            elif depends:
                tainted |= {name for name, _ in statement.names}
        return advanced

    def _is_carry(self, state: State, statement: Statement) -> bool:
        """Whether an assignment in the function of a loop takes a parameter, or a part of one, as it is."""
        value = self.table.by_point.get(statement.value) if statement.value is not None else None
        if statement.scope not in state.loops or value is None:
            return False
        part = PART.fullmatch(value.text)
        return part is not None and part["of"] in self.table.scopes[statement.scope].parameters

    def look_closer(
        self, state: State, statement: Statement, events: Sequence[Event], occurrence: int = 0
    ) -> bool:
        """Find, inside a statement, the partial values that a varying one is made of."""
        if statement.index in state.hopeless:
            return False
        first = self.table.first_of(statement, events, occurrence)
        culprits = self.table.culprits(first)
        added = False
        inside = self.mending.is_differentiated(state, statement)
        for culprit in culprits:
            feeding = [self.table.earliest(each, first) for each in self.table.partial_below(culprit, first)]
            deferred = self.mending.deferred(state, culprit, feeding, first) if inside else []
            if feeding and not deferred and inside and self.mending.reduce_deferred(state, events):
                return True
            feeding = [each for each in feeding if each not in deferred]
            again = [each for each in feeding if self.mending.where_made(state, each, statement, events)]
            feeding = [each for each in feeding if each not in again]
            sizes, seen = self.table.sizes_behind(culprit, statement, first, events)
            mended = self.table.wrap_all(state, feeding, first, numbers=True) or bool(again)
            if self.table.wrap_all(state, sizes, seen, numbers=True) or mended:
                self.gathering.await_share(state, culprit, first)
                added = True
                # A sum with what was zero the first time round seemed partial as a whole.
                for sync in [s for s in state.syncs if s.op in PARTIAL and s.span == culprit.span]:
                    state.take_back(sync)
        if (
            added
            or self.mending.reduce_deferred(state, events)
            or self.mending.divided(state, statement, culprits, first)
        ):
            return True
        if self._superseded(state, culprits, first) or self._uneven_opened(state, statement):
            return True
        if any(self.opening.look_inside(state, culprit) for culprit in culprits):
            return True
        if self.opening.give_axis(state, culprits, first) or self.opening.look_at_makers(state, culprits):
            return True
        if any(self.mending.gradients_of_given(state, culprit, events) for culprit in culprits):
            return True
        value = self.table.by_point.get(statement.value) if statement.value is not None else None
        # `x -= x.mean()`: the name varies because what is added to it is partial.
        summed = (
            [] if culprits or value is None or value.point not in first else self.table.origins(value, first)
        )
        if self.table.wrap_all(state, summed, first, numbers=True):
            return True
        # No collective takes a `TrainState` apart: what a method made of gradients is made whole inside.
        if not culprits and self._whole_where_made(state, statement, events):
            return True
        constant = [
            state.add(dataclasses.replace(sync, constant=True), point)
            for sync, point in state.without_derivative
        ]
        state.without_derivative = []
        if any(constant):
            return True
        if self._extremes_gathered(state, culprits, events):
            return True
        if self.gathering.together(state, culprits, first):
            return True
        headers = {h.index: h for c in culprits for h in self.table.headers(c, statement, events)}
        looked = [self.look_closer(state, header, events) for header in headers.values()]
        if any(looked):
            for culprit in culprits:
                self.gathering.await_share(state, culprit, first)
            return True
        if self.gathering.exchanged(state, culprits, first, sharded):
            return True
        if self.gathering.joined(state, culprits, events):
            return True
        if self.gathering.gather(state, culprits, first, events):
            for culprit in culprits:
                self.gathering.await_share(state, culprit, first)
            if not self.gathering.own_shares:
                self.gathering.gather_later(state, statement, events)
            return True
        if self._changed_before(state, statement, culprits, first, events):
            return True
        worst = self._handing_on(state, culprits[0]) if culprits else None
        state.hopeless[statement.index] = coupled(self.table.facts, statement, worst, state.closed)
        return self._advance(state, events)

    def _handing_on(self, state: State, culprit: Expression) -> Expression:
        """The call that hands on a function, where `culprit` is what a library gives that; else `culprit`."""
        scope = self.table.statements[culprit.statement].scope
        if scope not in state.loops or culprit.text not in self.table.scopes[scope].parameters:
            return culprit
        points = sorted(point for each, point in state.opened if each == scope)
        return self.table.by_point[points[0]] if points else culprit

    def _extremes_gathered(
        self, state: State, culprits: Sequence[Expression], events: Sequence[Event]
    ) -> bool:
        """Give maxima and minima in what is differentiated all rows: jax has no derivative of theirs.

        ``jnp.max(all_gather(h))`` has one, which each device takes through its own rows.
        """
        if not any(culprit.point in self.table.gradients for culprit in culprits):
            return False
        opened, added = {scope for scope, _ in state.opened}, False
        constant = {place(sync.span): sync for sync in state.syncs if sync.constant}
        for statement in [each for each in self.table.statements.values() if each.scope in opened]:
            first = self.table.first_of(statement, events)
            known = [self.table.by_point[point] for point in first if point in self.table.by_point]
            extreme = [
                each
                for each in known
                if first[each.point].whole_op(numbers=False) in EXTREMES or place(each.span) in constant
            ]
            points = {each.point for each in extreme}
            made = [e for e in extreme if points.isdisjoint(b.point for b in self.table.descendants(e.point))]
            added |= self.gathering.gather(state, made, first, events)
        for sync in constant.values() if added else ():
            state.take_back(sync)
        return added

    def _whole_where_made(self, state: State, statement: Statement, events: Sequence[Event]) -> bool:
        """Look for what makes a partial value whole in the function that gives it, the nearest first."""
        for made in self.table.behind(statement):
            first = self.table.first_of(made, events)
            calls = [self.table.by_point[point] for point in first if point in self.table.by_point]
            for call in calls:
                event = first[call.point]
                if event.partial() and not event.varying and self.opening.whole_inside(state, call):
                    return True
        return False

    def _superseded(self, state: State, culprits: Sequence[Expression], first: Mapping[int, Event]) -> bool:
        """Take back collectives of what has become whole by others since; whether there were such."""
        whole = [
            culprit.span
            for culprit in culprits
            if (below := [e.point for e in self.table.descendants(culprit.point) if e.point in first])
            and all(first[point].alike for point in below)
        ]
        superseded = [sync for sync in state.syncs if sync.op in PARTIAL and sync.span in whole]
        for sync in superseded:
            state.take_back(sync)
        return bool(superseded)

    def _uneven_opened(self, state: State, statement: Statement) -> bool:
        """Open the calls behind a statement that give what is partial in another way each time.

        Of ``[norm(jax.grad(term)(w)) for term in (fit, size)]`` each term is made whole in its function.
        """
        for made in self.table.behind(statement):
            points = [point for point in state.uneven if self.table.owner[point] is made]
            known = [self.table.by_point[point] for point in points if point in self.table.by_point]
            calls = [part for each in known for part in (each, *self.table.descendants(each.point))]
            if any(self.opening.whole_inside(state, call, gradients=True) for call in calls):
                return True
        return False

    def _update_opened(
        self, state: State, statement: Statement, event: Event, events: Sequence[Event]
    ) -> bool:
        """Open the calls that give updated weights, for the gradients to be made whole in them.

        Weights that are averaged are rounded, also where there is nothing to update. Gradients that are taken
        in the statement itself are made whole there.
        """
        if not event.updated:
            return False
        first = self.table.first_of(statement, events)
        gradients = (each.point for each in self.mending.gradients_in(statement))
        if any(point in first and first[point].partial() for point in gradients):
            return False
        calls = [self.table.by_point[point] for point in first if point in self.table.by_point]
        return any(self.opening.whole_inside(state, call) for call in calls if first[call.point].updated)

    def _change_opened(self, state: State, change: Event, events: Sequence[Event]) -> bool:
        """Open calls that may have changed an argument: ``return update(model, optimizer, batch)``.

        Also those in what is open already. What nothing helped with may be computed from that argument.
        """
        own, touched = self.table.body.scope.index, self.table.touched.get(change.point)
        inside = {scope for scope, _ in state.opened}
        found = [
            each
            for each in self.table.statements.values()
            if (each.scope == own and touched in (None, each)) or each.scope in inside
        ]
        # What a statement left of an argument is seen behind it, but for one that returns: that comes first.
        return self._opened_to_change(state, sorted(found, key=lambda each: each.kind != "return"), events)

    def _changed_before(
        self,
        state: State,
        statement: Statement,
        culprits: Sequence[Expression],
        first: Mapping[int, Event],
        events: Sequence[Event],
    ) -> bool:
        """Open calls that may have changed an object that a name has: ``loss = trainer.step(batch)``."""
        objects = [each for each in culprits if each.text.isidentifier() and first[each.point].is_container]
        names = {each.text for each in objects}
        return self._opened_to_change(
            state,
            (
                each
                for each in self.table.statements.values()
                if each.scope == statement.scope and each is not statement and each.reads & names
            ),
            events,
        )

    def _opened_to_change(
        self, state: State, statements: Iterable[Statement], events: Sequence[Event]
    ) -> bool:
        """Open the next call in one of these for what it does with objects to be made whole in it.

        What is differentiated may give back what is partial, which its caller makes whole.
        """
        whole = {self.table.body.scope.index, *state.loops}
        for statement in statements if state.opens_changes else ():
            first = self.table.first_of(statement, events)
            calls = [self.table.by_point[point] for point in first if point in self.table.by_point]
            if any(
                self.opening.whole_inside(state, call)
                if statement.scope in whole and call.point not in self.table.gradients
                else self.opening.look_inside(state, call)
                for call in calls
            ):
                state.has_opened_changes = True
                state.hopeless.clear()
                return True
        return False

    def _not_whole(self, final: Event) -> Refusal:
        leaves = [leaf for leaf in final.leaves if leaf["kind"] == "varying" or leaf["kind"] in PARTIAL]
        all_partial = bool(leaves) and all(leaf["kind"] in PARTIAL for leaf in leaves)
        return result_not_whole(self.table.owner[final.point], leaves, all_partial)
