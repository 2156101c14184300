"""Find the collectives a function needs by running it whole and on shards and comparing its values.

One observation weaves taps into the body, runs the original on the whole batch and the woven
body on shards, and gives every value its kind. At the first value that is partial (a mean, sum,
maximum or minimum over shards of the whole value) a collective is woven in and the run repeated;
at the first value that is none of these, its subexpressions are looked at, and the partial ones
that feed it are made whole. A collective that raises or does not help is taken back.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jax_pmap.emit.beside import Beside, Neighbourhood
from jax_pmap.emit.places import Body, Expression, Scope, Statement, inside, place
from jax_pmap.emit.weave import (
    FIRST_SLICE,
    OWN_SHARE,
    RECORDER,
    THROUGH,
    Probe,
    inside_of,
    method_name,
    name_node,
    probe_name,
    weave,
)
from jax_pmap.model import Callee, Guard, Refusal, Span, Sync
from jax_pmap.planning.callees import Callees
from jax_pmap.planning.coupling import coupled, fails_on_share, result_not_whole
from jax_pmap.planning.events import PARTIAL, Event, State
from jax_pmap.planning.gathering import Gathering
from jax_pmap.planning.mending import Mending
from jax_pmap.planning.roles import Roles
from jax_pmap.planning.watching import Watch
from jax_pmap.problems import Answer
from jax_pmap.reading.facts import FunctionFacts, FunctionRun, GradientCall
from jax_pmap.reading.read import make_resolver
from jax_pmap.reading.runs import behind, held_inside
from jax_pmap.reading.text import function_text
from jax_pmap.session import Session

if TYPE_CHECKING:
    from libcst import FunctionDef

#: The collective that makes a reduction of this name whole.
REDUCTIONS = {
    "all": "pmin",
    "amax": "pmax",
    "amin": "pmin",
    "any": "pmax",
    "max": "pmax",
    "mean": "pmean",
    "min": "pmin",
    "sum": "psum",
}
#: What observed code calls jax and the helper that takes a device's share: names no function has.
JAX, OWN_SHARE_NAME = "__jax_pmap_jax__", "__jax_pmap_own_share__"
OWN_DRAWS_NAME = "__jax_pmap_own_draws__"
#: What observed code calls: the device's share of a value, the folding of keys inside objects, and what a
#: loop over slices begins with.
HELPERS = f"""\
@__jax_pmap_contextlib__.contextmanager
def {OWN_DRAWS_NAME}(*objects):
    from flax import nnx
    keys = {JAX}.tree.map(lambda key: key, nnx.state(objects, nnx.RngKey))
    index = {JAX}.lax.axis_index({{axis}})
    fold = {JAX}.numpy.vectorize(lambda key: {JAX}.random.fold_in(key, index))
    nnx.update(objects, {JAX}.tree.map(fold, keys))
    yield
    nnx.update(objects, keys)

def {OWN_SHARE_NAME}(x, axis=0):
    size = x.shape[axis] // {JAX}.lax.psum(1, {{axis}})
    return {JAX}.lax.dynamic_slice_in_dim(x, {JAX}.lax.axis_index({{axis}}) * size, size, axis)

def {THROUGH}(function, probe):
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(wrapped, __jax_pmap_functools__.partial):
        return {THROUGH}(wrapped, probe)
    if not isinstance(function, __jax_pmap_functools__.partial):
        return probe
    inner = {THROUGH}(function.func, probe)
    return __jax_pmap_functools__.partial(inner, *function.args, **function.keywords)

def {FIRST_SLICE}(tree, axis=0):
    return {JAX}.tree.map(lambda leaf: leaf[(slice(None),) * axis + (0,)], tree)
"""
#: Rounds of weaving before giving up; each adds, or takes back, at least one collective.
ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Observation:
    """What running a function showed."""

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


def called_by(call: str) -> str:
    """Source of what a call calls: ``hk.transform(loss).apply``; of what is made to be called, its maker."""
    if call.partition("(")[0].isidentifier():
        return call.partition("(")[0]
    function = ast.parse(f"({call})", mode="eval").body
    func = function.func if isinstance(function, ast.Call) else None
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
        return ast.unparse(func)
    return call.partition("(")[0].strip()


def method_given(call: str) -> str:
    """Source of what a call of ``module.apply`` is given as ``method=``, or ``""``."""
    if "method=" not in call:
        return ""
    node = ast.parse(f"({call})", mode="eval").body
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "apply":
        return ""
    return next((ast.unparse(each.value) for each in node.keywords if each.arg == "method"), "")


def points_of(events: Sequence[Event], holds: Callable[[Event], bool]) -> frozenset[int]:
    """Points at which something held each time they were passed."""
    failed = {event.point for event in events if not holds(event)}
    return frozenset(event.point for event in events) - failed


class Observer:
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
        self.session, self.body, self.facts, self.axis_name = session, body, facts, axis_name
        self.itemsize, self.say, self.neighbourhood = itemsize, say, neighbourhood
        self.gathering, self.mending = Gathering(self, own_shares), Mending(self)
        #: What is called where it was to be looked into, and was not found; and why, where that is known.
        self.closed: dict[str, str] = {}
        #: Of methods that have a copy, another one that objects were seen to have, by the scope.
        self.others: dict[int, str] = {}
        #: What running tells of calls, on the values that are observed.
        self.callees: Callees
        self.bodies: list[Body] = []
        #: What each body is the body of, and the body each statement stands in.
        self.homes: dict[int, Beside] = {}
        self.body_of: dict[int, Body] = {}
        #: (scope of the caller's body, name it calls by, scope of the function called).
        self.links: dict[tuple[int, str, int], None] = {}
        self.scopes: dict[int, Scope] = {}
        self.statements: dict[int, Statement] = {}
        self.by_point: dict[int, Expression] = {}
        self.children: dict[int, list[Expression]] = {}
        self.owner: dict[int, Statement] = {}
        self.gradients: dict[int, GradientCall] = {}
        self.runs: dict[int, list[FunctionRun]] = {}
        self._know(body, neighbourhood.origin)
        self.settled = settled
        self.watch = Watch(neighbourhood, body.numbers, settled)
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

    def _know(self, body: Body, home: Beside) -> None:
        """Take the places of one more body into the tables."""
        self.bodies.append(body)
        self.homes[body.scope.index] = home
        self.body_of |= dict.fromkeys(body.statements, body)
        self.scopes |= body.scopes
        self.statements |= body.statements
        calls = {place(call.span): call for call in home.facts.gradient_calls}
        for statement in body.statements.values():
            for _, point in statement.names:
                self.owner[point] = statement
        for expression in body.expressions:
            self.by_point[expression.point] = expression
            self.owner[expression.point] = body.statements[expression.statement]
            if expression.parent is not None:
                self.children.setdefault(expression.parent, []).append(expression)
            call = calls.get(place(expression.span))
            if call is not None and expression.is_call:
                self.gradients[expression.point] = call
            runs = [run for run in home.facts.function_runs if place(run.span) == place(expression.span)]
            if runs and expression.is_call:
                self.runs[expression.point] = runs

    # -- running -----------------------------------------------------------------------------

    def _taps(self) -> list[int]:
        taps = {point for s in self.statements.values() for _, point in s.names} | set(self.by_point)
        taps |= {s.value for s in self.statements.values() if s.kind == "return" and s.value is not None}
        return sorted(taps | set(self.touched))

    def around(
        self,
        define: Callable[[Body], Sequence[FunctionDef]],
        besides: Sequence[Body] = (),
        noted: Callable[[Body, str], Sequence[str]] = lambda *_: (),
    ) -> Answer:
        """What the worker has to define around the target: see `worker.around`.

        That is what is looked into, and with the bodies `besides` what is watched; behind each body the lines
        that `noted` has for it and its name there.
        """
        first = [
            "import contextlib as __jax_pmap_contextlib__",
            "import functools as __jax_pmap_functools__",
            f"import jax as {JAX}",
            HELPERS.format(axis=repr(self.axis_name)),
        ]
        here, elsewhere = list(first), dict[str, list[str]]()
        defined: set[str] = set()
        own = self.neighbourhood.origin.source.path
        for body in (*self.bodies[1:], *besides):
            source = self.home(body.scope.index).source
            lines = here if source.path == own else elsewhere.setdefault(source.module, list(first))
            made = define(body)
            lines += [body.definition(function) for function in made]
            defined |= {function.name.value for function in made}
            scope, home = body.scope.index, self.home(body.scope.index)
            name, probe = method_name(scope) if home.is_apart else home.facts.name, probe_name(scope)
            lines += noted(body, name)
            if home.owner:
                method = f"{home.owner}, {home.facts.name!r}"
                lines.append(f"{name} = {RECORDER}.guarded({scope}, {method}, {name})")
                if probe in defined:
                    lines.append(f"{probe} = {RECORDER}.guarded_probe({method}, {probe})")
        exports = []
        for caller, called, scope in self.linked(besides):
            home, by = self.home(scope), self.home(caller)
            into, module = ("" if each.source.path == own else each.source.module for each in (by, home))
            if into != module:
                name, probe = method_name(scope) if home.is_apart else home.facts.name, probe_name(scope)
                held = self.neighbourhood.held(called, by)
                named = home.is_apart or held is not None or "[" in called
                exports.append([into, name if named else called, module, name])
                # What the object is made with stands in the file where that is done.
                exports += [[into, each, module, each] for each in sorted(held.names if held else ())]
                exports += [[into, probe, module, probe]] if probe in defined else []
        return {
            "prelude": "\n".join(here),
            "elsewhere": {module: "\n".join(lines) for module, lines in elsewhere.items()},
            "exports": exports,
        }

    def home(self, scope: int) -> Beside:
        """What a body is the body of."""
        return self.homes[scope] if scope in self.homes else self.watch.homes[scope]

    def linked(self, besides: Sequence[Body] = ()) -> dict[tuple[int, str, int], None]:
        """The links between what is looked into, and with the bodies `besides` those to what is watched."""
        there = {body.scope.index for body in (*self.bodies, *besides)}
        links = dict(self.links)
        if besides:
            links |= dict.fromkeys(self.watch.links(self.body.scope.index))
        return {link: None for link in links if link[0] in there and link[2] in there}

    def renames(self, body: Body, besides: Sequence[Body] = ()) -> dict[str, str]:
        """What stands in a body for the methods it calls that are looked into, or watched."""
        out = {}
        for caller, called, scope in self.linked(besides):
            if caller == body.scope.index and self.home(scope).by_value:
                module, name = self.neighbourhood.seen_as(called, self.home(caller))
                copy = method_name(scope)
                out[called] = f"{RECORDER}.in_place_of({scope}, {called}, {module!r}, {name!r}, {copy})"
            elif caller == body.scope.index and self.home(scope).is_method:
                bound = self.neighbourhood.receiver(called, self.home(caller))
                name = method_name(scope)
                out[called] = f"__jax_pmap_functools__.partial({name}, {bound})" if bound else name
            elif caller == body.scope.index and (held := self.neighbourhood.held(called, self.home(caller))):
                out[called] = held.around(self.home(scope).facts.name)
            elif caller == body.scope.index and "[" in called:
                out[called] = self.home(scope).facts.name
        return out

    def named(self, body: Body, function: FunctionDef) -> FunctionDef:
        """A version of a function under the name that the others call it by."""
        if not self.home(body.scope.index).is_apart:
            return function
        return function.with_changes(name=name_node(method_name(body.scope.index)))

    def _code(self, state: State, syncs: Sequence[Sync]) -> tuple[str, Answer]:
        """The tapped target, and the functions that are looked into, tapped and plain."""
        taps = self._taps()
        probes = self._probes(state)
        woven = functools.partial(
            weave, axis=repr(self.axis_name), jax=JAX, own_share=OWN_SHARE_NAME, own_draws=OWN_DRAWS_NAME
        )
        known = {body.scope.index for body in self.bodies}
        besides = [body for scope, body in self.watch.bodies.items() if scope not in known]

        def define(body: Body) -> list[FunctionDef]:
            own, renames = inside_of(body, syncs), self.renames(body, besides)
            watched, tests = self.watch.is_watched(body), self.watch.numbers_of(body)
            plainly = functools.partial(woven, body, own, renames=renames, reach=watched, tests=tests)
            inner = body.scopes.keys() - {body.scope.index}
            if any(probe.held and probe.scope in inner for probe in probes):
                # They may be called where the tapped version is not.
                plainly = functools.partial(plainly, taps=taps, probes=probes, outermost=False)
            plain = self.named(body, plainly())
            if body.scope.index not in known:
                return [plain]
            tapped = woven(body, own, taps=taps, probes=probes, renames=renames)
            return [plain, tapped.with_changes(name=name_node(probe_name(body.scope.index)))]

        own, renames = inside_of(self.body, syncs), self.renames(self.body, besides)
        target = woven(self.body, own, taps=taps, probes=probes, reach=True, renames=renames)

        def noted(body: Body, name: str) -> list[str]:
            scope, probe = body.scope.index, probe_name(body.scope.index)
            if any(each.within for each in probes if each.scope == scope):
                return [f"{name} = {RECORDER}.diverting({scope}, {probe})({name})"]
            held = any(each.held for each in probes if each.scope == scope)
            return [f"{RECORDER}.probing({scope}, {name}, {probe})"] if held else []

        return self.body.definition(target), self.around(define, besides, noted)

    def _probes(self, state: State) -> list[Probe]:
        """The calls that are looked into; in what an object runs, tapped copies take the place of functions.

        There, a second call would not be the same: it would make layers of other names, and draw other keys.
        """
        probes = list(state.opened.values())
        inside = {probe.scope for probe in probes if probe.within}
        while True:
            caller = {probe: self.owner[probe.call].scope for probe in probes}
            more = {probe.scope for probe in probes if caller[probe] in inside} - inside
            if not more:
                break
            inside |= more

        def plain(probe: Probe) -> bool:
            """Whether the call itself runs the function, and with its own arguments."""
            called = probe.call not in self.gradients and probe.arguments is None
            return called and not (probe.held or probe.through or probe.named)

        return [
            dataclasses.replace(probe, instead=caller[probe] in inside and plain(probe)) for probe in probes
        ]

    def _run(self, roles: Roles, overrides: Mapping[str, str], count: int, state: State) -> Answer:
        plain, plain_around = self._code(state, ())
        woven, woven_around = self._code(state, state.syncs) if state.syncs else (plain, plain_around)
        self.say(f"observing on {count} shards ({len(state.syncs)} collectives)")
        return self.session.ask(
            "observe",
            "observing the function",
            reference_code=plain,
            reference_around=plain_around,
            code=woven,
            around=woven_around,
            name=self.facts.name,
            results=self.results,
            axis_name=self.axis_name,
            count=count,
            overrides=dict(overrides),
            measure=any(sync.op == "all_gather" for sync in state.syncs),
            **roles.request(),
        )

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
                every = [Event(data) for data in answer["events"]]
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
            every = [Event(data) for data in answer["events"]]
            watched = [event for event in every if event.point in self.watch.tests]
            changes = [event for event in every if event.point < 0 or event.point in self.touched]
            others = [event for event in every if event.point not in self.watch.tests]
            events = [self._named(event) for event in others if event not in changes]
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
                    if event.by_chance or self._disagrees(state, self.owner[event.point], events)
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
                    frozenset(event.point for event in events),
                    answer.get("share"),
                    points_of(events, lambda event: event.alike),
                    points_of(events, lambda event: event.alike and event.arrays == event.leaves != []),
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

    def _both(self, scope: int) -> str:
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
                    f"a method needs collectives in it, and {self._both(scope)}: its copy could not be both",
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

    def _named(self, event: Event) -> Event:
        """Settle what the data could not tell, where the call's own name says which reduction it is."""
        value = self.owner[event.point].value
        expression = self.by_point.get(event.point) or (self.by_point.get(value) if value else None)
        if expression is not None and expression.is_call:
            callee = re.match(r"[\w.]*?(\w+)\(", expression.text)
            method = re.search(r"\.(\w+)\([^()]*\)$", expression.text)
            named = [REDUCTIONS.get(match[1]) for match in (callee, method) if match]
            for leaf in event.leaves:
                leaf["kind"] = next((op for op in named if op in leaf.get("options", ())), leaf["kind"])
        return event

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
                if statement.index in state.hopeless or not self._disagrees(state, statement, events):
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

    def first_of(
        self, statement: Statement, events: Sequence[Event], occurrence: int = 0
    ) -> dict[int, Event]:
        """What each point of a statement showed the first time it was passed, or after that many times.

        Another call of a function may show another thing; a point that was not passed as often counts with
        its first time.
        """
        first: dict[int, Event] = {}
        for event in events:
            if self.owner[event.point] is statement and (
                event.point not in first or event.occurrence == occurrence
            ):
                first[event.point] = event
        return first

    def elements(self, display: Expression) -> list[Expression]:
        """The members of a display, through displays inside it."""
        out = []
        for child in self.children.get(display.point, []):
            out += self.elements(child) if child.is_display else [child]
        return out

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
            feeding = self.partial_below(culprit, first)
            again = [each for each in feeding if self.mending.where_made(state, each, statement, events)]
            feeding = [each for each in feeding if each not in again]
            if self.wrap_all(state, feeding, first, numbers=True) or again:
                self.gathering.await_share(state, culprit, first)
                return True
        if any(self._look_inside(state, culprit) for culprit in culprits):
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
        if self.gathering.gather(state, culprits, first):
            for culprit in culprits:
                self.gathering.await_share(state, culprit, first)
            if not self.gathering.own_shares:
                self.gathering.gather_beside(state, statement, events)
            return True
        worst = culprits[0] if culprits else None
        state.hopeless[statement.index] = coupled(self.facts, statement, worst, self.closed)
        return self._advance(state, events)

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

    def _look_inside(self, state: State, call: Expression) -> bool:
        """Open the function that a call runs, directly or through a gradient."""
        if not call.is_call:
            return False
        gradient = self.gradients.get(call.point)
        callee = gradient.function if gradient else called_by(call.text)
        method = "" if gradient else method_given(call.text)
        if method and self._open_method(state, call, callee, method):
            return True
        runs = self.runs.get(call.point, [])
        # What the module compiled under a name is carried under that name.
        home = self.homes[self.body_of[call.statement].scope.index]
        if runs and self.neighbourhood.find(callee, home) is None:
            deciding = [run for run in runs if run.decides]
            if any(self._scope_of(run.function, call, run.function_span) is None for run in deciding):
                return False
            opened = [
                self._open(state, call, run.function, run.function_span, run.arguments, run.repeats)
                for run in runs
            ]
            for run in deciding:
                scope = self._scope_of(run.function, call, run.function_span)
                if scope is not None and scope not in state.deciding:
                    self._agree(state, scope)
            return any(opened)
        return self._open(state, call, callee, call.span)

    def _open_method(self, state: State, call: Expression, callee: str, method: str) -> bool:
        """Open the method that ``module.apply(…, method=Module.loss)`` runs on the bound module."""
        body = self.body_of[call.statement]
        scope = self.open(method, body)
        if scope is None or not self.homes[scope].is_method:
            return False
        probe = Probe(call.point, scope, held=callee, within=True)
        new = (scope, call.point) not in state.opened
        state.opened.setdefault((scope, call.point), probe)
        return new

    def _open(
        self,
        state: State,
        call: Expression,
        callee: str,
        span: Span,
        arguments: tuple[tuple[str, int | None], ...] | None = None,
        repeats: bool = False,
    ) -> bool:
        """Open the function `callee`, written inside `span` if it is a lambda."""
        scope, through = self._scope_of(callee, call, span), ""
        body = self.body_of[call.statement]
        caller = self.homes[body.scope.index]
        if scope is None and arguments is None:
            bound = behind(caller.parsed, make_resolver(caller.parsed), callee)
            if bound:
                scope, through, callee = self._scope_of(bound, call, span), callee, bound
        made = held_inside(caller.parsed, make_resolver(caller.parsed), callee) if scope is None else ""
        inner = self._scope_of(made, call, span) if made else None
        if inner is not None:
            scope, held = inner, callee
        else:
            known = self.neighbourhood.held(callee, caller)
            held = known.around(self.homes[scope].facts.name) if scope in self.homes and known else ""
        if scope is None:
            seen = self.callees.scopes(callee, body)
            scope = self._scope_of(callee, call, span)
            if not seen and (callee in self.callees.why or self._users_own(callee, caller)):
                self.closed[callee] = self.callees.why.get(callee, "")
            probes = [Probe(call.point, each, "", arguments, held=through or callee) for each in seen]
        if scope is not None:
            receiver = self.neighbourhood.receiver(callee, caller) if scope in self.homes else ""
            probes = [Probe(call.point, scope, receiver, arguments, through, held, within=bool(held))]
            if scope in self.homes and self.homes[scope].by_value:
                named = self.neighbourhood.seen_as(callee, caller)
                probes = [dataclasses.replace(probes[0], through=through or callee, named=named)]
            if scope in self.others:
                self.closed[callee] = self._both(scope)
        new = [probe for probe in probes if (probe.scope, probe.call) not in state.opened]
        state.opened |= {(probe.scope, probe.call): probe for probe in new}
        if repeats:
            state.loops |= {probe.scope for probe in new}
        return bool(new)

    def _agree(self, state: State, scope: int) -> None:
        """Have devices do as many rounds of a loop as the one that needs most.

        Those that disagreed on whether there is another one would wait at its collectives for ever.
        """
        state.deciding.add(scope)
        for statement in self.statements.values():
            if statement.scope == scope and statement.kind == "return" and statement.value in self.by_point:
                value = self.by_point[statement.value]
                # Whatever it gives now: what it compares is made whole after it.
                together = Sync("pmax", value.text, "wrap", value.span, bytes=1)
                if together not in state.syncs:
                    state.syncs.append(together)

    def _disagrees(self, state: State, statement: Statement, events: Sequence[Event]) -> bool:
        """Whether devices decide on another round of a loop by values that differ between them."""
        if statement.scope not in state.deciding or statement.kind != "return":
            return False
        first = self.first_of(statement, events)
        return any(event.varying for point, event in first.items() if point != statement.value)

    def _users_own(self, callee: str, caller: Beside) -> bool:
        """Whether a callee is of the user's module, of a function around, or of the method's object."""
        facts = caller.facts
        own = {*facts.module_names, *facts.closure_names, facts.receiver} - {""}
        return re.split(r"\W", callee)[0] in own

    def _scope_of(self, callee: str, call: Expression, span: Span) -> int | None:
        """The scope of a function known by its name, or of a lambda written inside `span`."""
        body = self.body_of[call.statement]
        for scope in body.scopes.values():
            if scope.index == body.scope.index:
                continue
            if scope.name == callee or (
                not scope.name and callee.startswith("lambda") and inside(place(scope.span), place(span))
            ):
                return scope.index
        return self.open(callee, body)

    def open(self, called: str, caller: Body) -> int | None:
        """Take a function of the user's that `caller` calls into the tables; its scope, or None."""
        found = self.neighbourhood.find(called, self.homes[caller.scope.index])
        if found is None:
            return None
        known = [scope for scope, home in self.homes.items() if home.is_same(found)]
        if not known:
            watched = self.watch.scope_of(found)
            body = (
                Body(function_text(found.parsed), self.body.numbers)
                if watched is None
                else self.watch.bodies[watched]
            )
            self._know(body, found)
            known = [body.scope.index]
        self.links[caller.scope.index, called, known[0]] = None
        return known[0]

    def _not_whole(self, final: Event) -> Refusal:
        leaves = [leaf for leaf in final.leaves if leaf["kind"] == "varying" or leaf["kind"] in PARTIAL]
        all_partial = bool(leaves) and all(leaf["kind"] in PARTIAL for leaf in leaves)
        return result_not_whole(self.owner[final.point], leaves, all_partial)

    def descendants(self, point: int) -> list[Expression]:
        """Every expression inside the one at `point`."""
        out = []
        for child in self.children.get(point, []):
            out.append(child)
            out += self.descendants(child.point)
        return out

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
