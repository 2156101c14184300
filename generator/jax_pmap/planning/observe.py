"""Find the collectives a function needs by tracing it whole and on shares, round after round.

One round weaves taps into the body, traces the original on the whole batch and the woven body on shares, and
gives every value its kind by its placement; what follows from that is decided in `decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jax_pmap.emit.callees import CallGraph
from jax_pmap.emit.places import Body
from jax_pmap.emit.weave import woven_source
from jax_pmap.model import Refusal, Sync
from jax_pmap.planning.callees import Callees
from jax_pmap.planning.decide import Decider, Observation
from jax_pmap.planning.events import State
from jax_pmap.planning.gathering import Onward
from jax_pmap.planning.roles import Roles
from jax_pmap.planning.syncs import Placer
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.session import Session
from jax_pmap.worker import protocol

#: Rounds of weaving before giving up; each adds, or takes back, at least one collective.
ROUNDS = 60


@dataclass(slots=True)
class Spent:
    """What the search for a plan has taken so far."""

    #: Operations of the programs that were traced.
    operations: int = 0
    #: Whether the function was looked at in a map over devices.
    in_map: bool = False


class Observer(Placer):
    """Observes one function body through one worker."""

    def __init__(
        self,
        session: Session,
        body: Body,
        facts: FunctionFacts,
        axis_name: str,
        itemsize: Callable[[str], int],
        say: Callable[[str], None],
        call_graph: CallGraph,
        mutated: Sequence[str] = (),
        onward: Onward = Onward.ALL,
        settled: Sequence[str] = (),
        spent: Spent | None = None,
        check_in_map: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """An observer of `body`; see `Placer` and `Decider`.

        `check_in_map` raises the refusal of a function that runs in no map, given its static arguments.
        """
        super().__init__(body, facts, axis_name, itemsize, call_graph, mutated, settled)
        self.session, self.say, self.onward = session, say, onward
        self.spent = Spent() if spent is None else spent
        self.check_in_map = check_in_map
        #: Points of names of other scopes that are tapped as well.
        self.beyond: frozenset[int] = frozenset()
        #: Rows of the batch that is observed, where it is not the given one.
        self.rows: int | None = None
        #: The last question that the worker was asked, and its answer.
        self._last: tuple[protocol.Observe, protocol.Observation] | None = None

    def _taps(self) -> frozenset[int]:
        taps = {point for s in self.statements.values() for _, point in s.names} | set(self.by_point)
        taps |= {s.value for s in self.statements.values() if s.kind == "return" and s.value is not None}
        return frozenset(taps | set(self.touched) | self.beyond)

    def _code(self, syncs: Sequence[Sync]) -> protocol.Tapped:
        """The target and the functions of the user's that it calls, tapped, with collectives in them."""
        known = {body.scope.index for body in self.bodies}
        callee_bodies = [body for scope, body in self.watch.bodies.items() if scope not in known]
        taps = self._taps()

        def woven(body: Body) -> str:
            return woven_source(
                body,
                syncs,
                taps,
                self.name_of(body),
                words=self.words,
                reach=body is self.body or self.watch.is_watched(body),
                renames=self.renames(body, callee_bodies),
                tests=self.watch.numbers_of(body),
            )

        return protocol.Tapped(self.facts.name, woven(self.body), self.around(woven, callee_bodies))

    def _run(
        self, roles: Roles, overrides: Mapping[str, str], count: int, state: State
    ) -> protocol.Observation:
        """What tracing shows; the same once more where nothing has changed but what is looked into."""
        plain = self._code(())
        woven = self._code(state.syncs) if state.syncs else plain
        self.say(f"tracing on {count} devices ({len(state.syncs)} collectives)")
        request = protocol.Observe(
            roles.request(),
            overrides,
            plain,
            woven,
            tuple(sorted(self.results)),
            self.axis_name,
            count,
            self.rows,
            bool(self.parted),
        )
        if self._last is None or self._last[0] != request:
            self._last = request, self.session.ask(request, "tracing the function")
            self.spent.operations += self._last[1].operations
        return self._last[1]

    def traced(self, roles: Roles, count: int = 2, syncs: Sequence[Sync] = ()) -> protocol.Observation:
        """What the worker answers about the function as it stands, or with `syncs` in it."""
        return self._run(roles, {}, count, State(list(syncs)))

    def callees(self, roles: Roles, overrides: Mapping[str, str]) -> Callees:
        """What finds the functions and methods that calls run."""
        return Callees(self, self.session, self.say, self.facts.name, roles.statics, overrides)

    def observe(
        self, roles: Roles, overrides: Mapping[str, str], count: int, start: Sequence[Sync] = ()
    ) -> Observation | Refusal:
        """Add collectives to `start` until every output is replicated or sharded.

        `overrides` are values (Python source) for static arguments, `count` the shards to use.
        """
        state = State(list(start))
        outcome = self._rounds(roles, overrides, count, state)
        if isinstance(outcome, Refusal) and state.grouped:
            # A loss of each group is that of rows which no one device has.
            gathered = self._rounds(roles, overrides, count, State(list(start), gather_groups=True))
            return outcome if isinstance(gathered, Refusal) else gathered
        if isinstance(outcome, Refusal) and state.has_opened_changes:
            # What a call is given can be made whole before it.
            outcome = self._rounds(roles, overrides, count, State(list(start), opens_changes=False))
        if isinstance(outcome, Refusal) and state.has_deferred:
            whole = self._rounds(roles, overrides, count, State(list(start), defers=False))
            return outcome if isinstance(whole, Refusal) else whole
        return outcome

    def _rounds(
        self, roles: Roles, overrides: Mapping[str, str], count: int, state: State
    ) -> Observation | Refusal:
        decider = Decider(self, self.callees(roles, overrides), self.onward)
        for _ in range(ROUNDS):
            found = decider.decide(state, self._run(roles, overrides, count, state))
            if found is not None:
                return found
            if any(sync.op == "all_gather" for sync in state.syncs):
                # It seems to couple examples, as loops of libraries do that run in no map, and much follows.
                self.check_in_map(roles.statics)
        return Refusal(
            "JP069",
            f"no set of collectives was found within {ROUNDS} rounds",
            "Split the function, or compute the reduced values in statements of their own",
            self.facts.span,
        )
