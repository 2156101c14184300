"""Find the collectives a function needs by tracing it whole and on shares and comparing its values.

One observation weaves taps into the body, traces the original on the whole batch and the woven
body on shares, and gives every value its kind by its placement. At the first value that is partial (a
mean, sum, maximum or minimum over shards of the whole value) a collective is woven in and the trace repeated;
at the first value that is none of these, its subexpressions are looked at, and the partial ones
that feed it are made whole. A collective that raises or does not help is taken back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jax_pmap.emit.beside import Neighbourhood
from jax_pmap.emit.places import Body, Expression, Statement, place
from jax_pmap.emit.weave import OWN_SHARE, inside_of, weave
from jax_pmap.model import Callee, Guard, Refusal, Span, Sync
from jax_pmap.planning.bodies import JAX, OWN_DRAWS_NAME, OWN_SHARE_NAME, Bodies
from jax_pmap.planning.callees import Callees
from jax_pmap.planning.coupling import coupled, fails_on_share, result_not_whole
from jax_pmap.planning.events import PARTIAL, Event, State
from jax_pmap.planning.gathering import Gathering
from jax_pmap.planning.mending import Mending
from jax_pmap.planning.opening import Opening
from jax_pmap.planning.roles import Roles
from jax_pmap.planning.watching import Watch
from jax_pmap.problems import Answer
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.session import Session

if TYPE_CHECKING:
    from libcst import FunctionDef

#: Rounds of weaving before giving up; each adds, or takes back, at least one collective.
ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Observation:
    """What tracing a function showed."""

    syncs: tuple[Sync, ...]
    #: Kind, path, shape and dtype of every leaf of the result, and its containers.
    leaves: tuple[Answer, ...]
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
    #: Branches of functions beside the target that no input took.
    guards: tuple[Guard, ...] = ()
    #: Methods beside the target that running it has shown.
    callees: tuple[Callee, ...] = ()
    #: What is called and was not found when it was to be looked into, and why where that is known.
    closed: Mapping[str, str] = field(default_factory=dict)


def points_of(events: Sequence[Event], holds: Callable[[Event], bool]) -> frozenset[int]:
    """Points at which something held each time they were passed."""
    failed = {event.point for event in events if not holds(event)}
    return frozenset(event.point for event in events) - failed


class Observer(Bodies):
    """Observes one function body through one worker."""

    def __init__(
        self,
        session: Session,
        body: Body,
        facts: FunctionFacts,
        axis_name: str,
        itemsize: Callable[[str], int],
        say: Callable[[str], None],
        neighbourhood: Neighbourhood,
        mutated: Sequence[str] = (),
        own_shares: bool = False,
        settled: Sequence[str] = (),
    ) -> None:
        """An observer of `body`.

        `mutated` are arguments that are changed in place. With `own_shares`, a device goes on with its
        part of what was made whole by gathering, and not with all of it. `settled` are arguments that have
        no other values than those that are tried.
        """
        super().__init__(body, neighbourhood, axis_name, settled)
        self.session, self.facts, self.itemsize, self.say = session, facts, itemsize, say
        self.gathering, self.mending, self.opening = Gathering(self, own_shares), Mending(self), Opening(self)
        #: What is called where it was to be looked into, and was not found; and why, where that is known.
        self.closed: dict[str, str] = {}
        #: Of methods that have a copy, another one that objects were seen to have, by the scope.
        self.others: dict[int, str] = {}
        #: The last question that the worker was asked, and its answer.
        self._last: tuple[Answer, Answer] | None = None
        #: What running tells of calls, on the values that are observed.
        self.callees: Callees
        self.results = [
            s.value
            for s in body.statements.values()
            if s.kind == "return" and s.value is not None and s.scope == body.scope.index
        ]
        self.next_mention = self._next_mentions()
        #: Points behind statements that show what they left of an argument that is changed in place.
        self.touched = {
            point: statement
            for statement in body.statements.values()
            for name, point in statement.touches
            if name in mutated
        }
        # Nearly always there is something to do in what is differentiated.
        for call in list(self.gradients.values()):
            if call.function not in {scope.name for scope in body.scopes.values()}:
                self.open(call.function, body)
        self.mutated = tuple(mutated)
        self.read_names = frozenset(name for s in body.statements.values() for name in s.reads)

    def _next_mentions(self) -> dict[int, Statement]:
        """For each statement of the target that binds one name, the next one that reads or binds it."""
        following: dict[int, Statement] = {}
        last: dict[str, Statement] = {}
        for statement in sorted(self.body.statements.values(), key=lambda s: place(s.span)):
            for name in {*statement.reads, *(name for name, _ in statement.names)} & last.keys():
                following[last.pop(name).index] = statement
            if len(statement.names) == 1 and statement.scope == self.body.scope.index:
                last[statement.names[0][0]] = statement
        return following

    # -- running -----------------------------------------------------------------------------

    def _taps(self) -> frozenset[int]:
        taps = {point for s in self.statements.values() for _, point in s.names} | set(self.by_point)
        taps |= {s.value for s in self.statements.values() if s.kind == "return" and s.value is not None}
        return frozenset(taps | set(self.touched))

    def _code(self, syncs: Sequence[Sync]) -> tuple[str, Answer]:
        """The target and the functions of the user's that it calls, tapped, with collectives in them."""
        known = {body.scope.index for body in self.bodies}
        besides = [body for scope, body in self.watch.bodies.items() if scope not in known]
        taps = self._taps()

        def woven(body: Body) -> FunctionDef:
            made = weave(
                body,
                inside_of(body, syncs),
                axis=repr(self.axis_name),
                jax=JAX,
                own_share=OWN_SHARE_NAME,
                own_draws=OWN_DRAWS_NAME,
                taps=taps,
                reach=body is self.body or self.watch.is_watched(body),
                renames=self.renames(body, besides),
                tests=self.watch.numbers_of(body),
            )
            return self.named(body, made) if body is not self.body else made

        return self.body.definition(woven(self.body)), self.around(woven, besides)

    def _run(self, roles: Roles, overrides: Mapping[str, str], count: int, state: State) -> Answer:
        """What tracing shows; the same once more where nothing has changed but what is looked into."""
        plain, plain_around = self._code(())
        woven, woven_around = self._code(state.syncs) if state.syncs else (plain, plain_around)
        self.say(f"tracing on {count} devices ({len(state.syncs)} collectives)")
        request = {
            "reference_code": plain,
            "reference_around": plain_around,
            "code": woven,
            "around": woven_around,
            "name": self.facts.name,
            "results": self.results,
            "axis_name": self.axis_name,
            "count": count,
            "overrides": dict(overrides),
            "measure": any(sync.op == "all_gather" for sync in state.syncs),
            **roles.request(),
        }
        if self._last is None or self._last[0] != request:
            self._last = request, self.session.ask("observe", "tracing the function", **request)
        return self._last[1]

    def observe(
        self, roles: Roles, overrides: Mapping[str, str], count: int, start: Sequence[Sync] = ()
    ) -> Observation | Refusal:
        """Add collectives to `start` until every output is replicated or sharded.

        `overrides` are values (Python source) for static arguments, `count` the shards to use.
        """
        state = State(list(start))
        self.callees = Callees(self, roles, overrides)
        for _ in range(ROUNDS):
            answer = self._run(roles, overrides, count, state)
            if "raised" in answer:
                every = self._visible(state, answer["events"])
                watched = [event for event in every if event.point in self.watch.tests]
                failed = [e for e in every if e.point in self.owner and e.point not in self.watch.tests]
                if self.gathering.go_on(state, failed):
                    continue
                if not state.fresh:
                    if self.mending.tests(state, failed, watched):
                        continue
                    last = self.owner.get(answer["last"]) if answer["last"] is not None else None
                    return fails_on_share(self.facts, answer["raised"], last)
                self._retreat(state)
                continue
            self.others = dict(answer["others"])
            passed = frozenset(data["point"] for data in answer["events"])
            every = self._visible(state, answer["events"])
            watched = [event for event in every if event.point in self.watch.tests]
            changes = [event for event in every if event.point < 0 or event.point in self.touched]
            others = [event for event in every if event.point not in self.watch.tests]
            events = [event for event in others if event not in changes]
            if self.gathering.end_trial(state, every) or self._drop_useless(state, every):
                continue
            state.fresh.clear()
            state.attempts.rescue = None
            whole = [event.point for event in events if event.point in state.attempts.awaited and event.whole]
            taken = self.gathering.take_shares(state, whole)
            state.attempts.awaited.clear()
            if taken:
                continue
            result = [event for event in events if event.point in self.results]
            if self.mutated and not result:
                result = [Event({"point": 0, "leaves": [], "tree": {"kind": "none"}})]
            if not result:
                return Refusal(
                    "JP055",
                    f"`{self.facts.name}` returned nothing on these inputs",
                    "Return the values the caller needs; changes made in place are not seen across devices",
                    self.facts.span,
                )
            at_odds = self.watch.at_odds(watched)
            if at_odds is not None:
                return at_odds
            if self.mending.tests(state, events, watched):
                continue
            final = result[-1]
            apart = next((event for event in changes if not event.whole), None)
            settled = not final.unaligned and not final.varying and not final.partial(numbers=True)
            if settled and apart is None:
                unsure = (
                    self.owner[event.point]
                    for event in events
                    if self.opening.disagrees(state, self.owner[event.point], events)
                )
                statement = next(unsure, None)
                if statement is not None:
                    if self.look_closer(state, statement, events):
                        continue
                    return state.hopeless[statement.index]
                if len(self.neighbourhood.callees) > self.watch.methods:
                    self._watch_again()
                    continue
                apart_ = self._now_another(state)
                if apart_ is not None:
                    return apart_
                return Observation(
                    tuple(state.syncs),
                    tuple(final.leaves),
                    final.tree,
                    final.point,
                    frozenset(answer["reached"]),
                    passed,
                    answer.get("share"),
                    points_of(events, lambda event: event.alike),
                    points_of(events, lambda event: event.alike and event.arrays == event.leaves != []),
                    idle=dict(answer["idle"]),
                    closed=dict(self.closed),
                )
            if not self._advance(state, events):
                if apart is not None and not state.hopeless and self.mending.change(state, apart, events):
                    continue
                if settled and apart is not None and not state.hopeless:
                    return self.mending.left_apart(apart)
                return next(iter(state.hopeless.values()), None) or self._not_whole(final)
        return Refusal(
            "JP043",
            f"no set of collectives was found within {ROUNDS} rounds",
            "Split the function, or compute the reduced values in statements of their own",
            self.facts.span,
        )

    def both(self, scope: int) -> str:
        """What to say of a method that has a copy, where an object has another one."""
        method = self.home(scope).source.qualname
        return f"it is `{method}` in one call and `{self.others[scope]}` in another"

    def _now_another(self, state: State) -> Refusal | None:
        """The refusal of a method with collectives in it, where an object was seen to have another one."""
        for scope in sorted(self.others):
            carried = {scope}
            while more := {b for a, _, b in self.linked() if a in carried} - carried:
                carried |= more
            bodies = [body for body in self.bodies if body.scope.index in carried]
            if any(inside_of(body, state.syncs) for body in bodies):
                return Refusal(
                    "JP043",
                    f"a method needs collectives in it, and {self.both(scope)}: its copy could not be both",
                    "Give the methods different names, or call each class's in a statement of its own",
                    self.home(scope).facts.span,
                )
        return None

    def _watch_again(self) -> None:
        """Watch the methods, too, that running has shown since."""
        known = [*self.homes.items(), *self.watch.homes.items()]
        bodies = {body.scope.index: body for body in self.bodies} | self.watch.bodies
        self.watch = Watch(
            self.neighbourhood,
            self.body.numbers,
            self.settled,
            [(home, bodies[scope]) for scope, home in known],
        )

    def _visible(self, state: State, events: Sequence[Answer]) -> list[Event]:
        """What the target showed, and what the functions showed that are looked into."""
        scopes = {self.body.scope.index, *(scope for scope, _ in state.opened)}

        def seen(point: int) -> bool:
            return point not in self.owner or self.owner[point].scope in scopes

        return [Event(data) for data in events if seen(data["point"])]

    def _retreat(self, state: State) -> None:
        """The last collectives raised: try them one by one from now on, the first alone."""
        first, *rest = state.fresh
        for sync, _ in rest:
            state.syncs.remove(sync)
        if rest:
            state.fresh = [first]
        else:
            state.take_back(first[0])

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
            wanted = f"sharded {sync.axis}" if sync.op == OWN_SHARE else "replicated"
            helped = all(
                leaf["kind"] == wanted
                for leaf in (first[point].leaves if point in first else ())
                if paths is None or leaf["path"] in paths
            )
            if not helped and sync in state.syncs:
                state.take_back(sync)
                dropped = True
        return dropped

    # -- deciding ----------------------------------------------------------------------------

    def _advance(self, state: State, events: Sequence[Event]) -> bool:
        """Change something for the better: add collectives, or look closer. False when stuck."""
        tainted: set[str] = set()
        advanced = False
        handled: set[int] = set()
        for event in events:
            statement = self.owner[event.point]
            if event.unaligned or statement.index in handled:
                continue
            if self.by_point.get(event.point) is not None and event.point != statement.value:
                continue  # Subexpressions speak when their statement asks.
            if statement.scope not in {self.body.scope.index, *state.loops}:
                # Inside a function that is looked into, partial values may stay partial: its caller
                # makes the result whole. Only what is already wrong there has to be mended there.
                if event.varying and statement.index not in state.hopeless:
                    return advanced or self.look_closer(state, statement, events, event.occurrence)
                continue
            depends = bool(statement.reads & tainted)
            if statement.kind == "other":
                if advanced or depends:
                    break
                if statement.index not in state.hopeless and self.mending.kept(state, statement, events):
                    return True
                continue
            if statement.scope in state.deciding and statement.kind == "return":
                if statement.index in state.hopeless or not self.opening.disagrees(state, statement, events):
                    continue
                return advanced or self.look_closer(state, statement, events)
            if statement.kind == "return" and event.point == statement.value:
                if advanced:
                    break
                if not event.varying and not event.partial(numbers=True):
                    continue
                return self.mending.result(state, statement, events)
            if event.varying:
                if advanced or depends:
                    break
                if statement.index in state.hopeless:
                    continue
                if self.look_closer(state, statement, events):
                    return True
                continue
            names = [name for name, point in statement.names if point == event.point]
            if event.partial() and names and not (set(names) & tainted and not depends):
                if depends:
                    tainted |= {name for name, _ in statement.names}
                    continue
                if self.mending.added_to(statement, event, events):
                    continue
                if self.mending.assignment(state, statement, events):
                    advanced = True
                    handled.add(statement.index)
                    tainted |= {name for name, _ in statement.names}
            elif depends:
                tainted |= {name for name, _ in statement.names}
        return advanced

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
        leaves: Sequence[Answer] | None = None,
    ) -> Sync:
        """A collective for what `event` showed of `value`, or for some leaves of it."""
        return Sync(op, value, where, span, bytes=self.bytes_of(event.leaves if leaves is None else leaves))

    def gathered(self, expression: Expression, event: Event, axis: int) -> Sync:
        """All of what `event` showed to be a share along `axis`, from every device."""
        sync = self.sync("all_gather", expression.text, "wrap", expression.span, event)
        return dataclasses.replace(sync, axis=axis)

    def bytes_of(self, leaves: Sequence[Answer]) -> int:
        """Bytes of one device's copy, in the user's own dtypes."""
        arrays = [leaf for leaf in leaves if not leaf.get("number")]
        return sum(math.prod(leaf["shape"]) * self.itemsize(leaf["dtype"]) for leaf in arrays)

    def look_closer(
        self, state: State, statement: Statement, events: Sequence[Event], occurrence: int = 0
    ) -> bool:
        """Find, inside a statement, the partial values that a varying one is made of."""
        if statement.index in state.hopeless:
            return False
        first = self.first_of(statement, events, occurrence)
        culprits = self.culprits(first)
        for culprit in culprits:
            feeding = [self.earliest(each, first) for each in self.partial_below(culprit, first)]
            again = [each for each in feeding if self.mending.where_made(state, each, statement, events)]
            feeding = [each for each in feeding if each not in again]
            if self.wrap_all(state, feeding, first, numbers=True) or again:
                self.gathering.await_share(state, culprit, first)
                return True
        if any(self.opening.look_inside(state, culprit) for culprit in culprits):
            return True
        value = self.by_point.get(statement.value) if statement.value is not None else None
        # `x -= x.mean()`: the name varies because what is added to it is partial.
        added = (
            []
            if culprits or value is None or value.point not in first
            else self.mending.origins(value, first)
        )
        if self.wrap_all(state, added, first, numbers=True):
            return True
        if self.gathering.together(state, culprits, first):
            return True
        if self.gathering.gather(state, culprits, first):
            for culprit in culprits:
                self.gathering.await_share(state, culprit, first)
            if not self.gathering.own_shares:
                self.gathering.gather_beside(state, statement, events)
            return True
        worst = culprits[0] if culprits else None
        state.hopeless[statement.index] = coupled(self.facts, statement, worst, self.closed)
        return self._advance(state, events)

    def earliest(self, expression: Expression, events: Mapping[int, Event]) -> Expression:
        """The name that a partial expression depends on linearly, if making that whole costs no more.

        Of ``w - 0.1 * grads`` that is ``grads``: what is synchronised is a gradient, and not the weights.
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
        return found if found.text.isidentifier() else expression

    def culprits(self, first: Mapping[int, Event]) -> list[Expression]:
        """The smallest varying expressions of a statement: what goes into them is not."""
        return [
            self.by_point[point]
            for point, event in first.items()
            if point in self.by_point
            and any(leaf["kind"] == "varying" for leaf in event.leaves)
            and not any(
                child.point in first and first[child.point].varying for child in self.descendants(point)
            )
        ]

    def _not_whole(self, final: Event) -> Refusal:
        leaves = [leaf for leaf in final.leaves if leaf["kind"] == "varying" or leaf["kind"] in PARTIAL]
        all_partial = bool(leaves) and all(leaf["kind"] in PARTIAL for leaf in leaves)
        return result_not_whole(self.owner[final.point], leaves, all_partial)

    def partial_below(self, expression: Expression, events: Mapping[int, Event]) -> list[Expression]:
        """The largest partial subexpressions below `expression`, and the smallest that are numbers.

        ``n // 4`` is a sum over shards on some sizes only; ``n`` is on all.
        """
        out = []
        for child in self.children.get(expression.point, []):
            event = events.get(child.point)
            if event is None or event.unaligned or event.whole_op(numbers=True) is None:
                out += self.partial_below(child, events)
                continue
            inner = [] if event.arrays else self.partial_below(child, events)
            # A shape is no size.
            out += [each for each in inner if events[each.point].leaves[0]["path"] == ""] or [child]
        return out
