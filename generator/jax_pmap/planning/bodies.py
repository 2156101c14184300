"""The bodies that are observed, that of the target and those of functions it calls: where what stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jax_pmap.emit.callees import CallGraph, UserFunction, renamed
from jax_pmap.emit.names import Words
from jax_pmap.emit.places import Body, Expression, Scope, Statement, place
from jax_pmap.emit.weave import RECORDER, method_name
from jax_pmap.model import ADDED, Sync
from jax_pmap.planning.events import Event
from jax_pmap.planning.watching import Watch
from jax_pmap.reading.decorators import decorated
from jax_pmap.reading.facts import FunctionRun, GradientCall
from jax_pmap.syntax.text import function_text
from jax_pmap.worker.protocol import COPIES, Around

#: What observed code calls jax and the helpers: names no function has.
WORDS = Words(**{field: f"__jax_pmap_{field}__" for field in Words.__slots__})
JAX = WORDS.jax
#: What observed code calls: the device's share of a value, all rows of joined batches, the folding of keys
#: inside objects, and the mean over devices of gradients, of which they have their own where they have parts
#: of what they are taken of.
HELPERS = f"""\
@__jax_pmap_contextlib__.contextmanager
def {WORDS.own_draws}(*objects):
    from flax import nnx
    keys = {JAX}.tree.map(lambda key: key, nnx.state(objects, nnx.RngKey))
    index = {JAX}.lax.axis_index({{axis}})
    fold = {JAX}.numpy.vectorize(lambda key: {JAX}.random.fold_in(key, index))
    nnx.update(objects, {JAX}.tree.map(fold, keys))
    yield
    nnx.update(objects, keys)

@__jax_pmap_contextlib__.contextmanager
def {WORDS.summed}(*objects):
    from flax import nnx
    before = {JAX}.tree.map(lambda old: old, nnx.state(objects))
    nnx.update(objects, {JAX}.tree.map({JAX}.numpy.zeros_like, before))
    yield
    added = {JAX}.lax.psum(nnx.state(objects), {{axis}})
    nnx.update(objects, {JAX}.tree.map({JAX}.numpy.add, before, added))

def {WORDS.own_share}(tree, axis=0):
    def part(x):
        size = x.shape[axis] // {JAX}.lax.psum(1, {{axis}})
        return {JAX}.lax.dynamic_slice_in_dim(x, {JAX}.lax.axis_index({{axis}}) * size, size, axis)
    return {JAX}.tree.map(part, tree)

def {WORDS.own_size}(rows):
    size, left = divmod(rows, {JAX}.lax.psum(1, {{axis}}))
    if left:
        raise ValueError
    return size

def {WORDS.gather_joined}(x, count, rows, axis=0):
    parts = x.reshape(*x.shape[:axis], count, rows, *x.shape[axis + 1 :])
    whole = {JAX}.lax.all_gather(parts, {{axis}}, axis=axis + 1, tiled=True)
    return whole.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])

def {WORDS.scattered}(name, tree):
    def own(leaf, is_part):
        return leaf / {JAX}.lax.psum(1, {{axis}}) if is_part else {JAX}.lax.pmean(leaf, {{axis}})
    leaves, structure = {JAX}.tree.flatten(tree)
    return structure.unflatten([own(*each) for each in zip(leaves, {{parted}}[name], strict=True)])
"""


class Bodies:
    """Every body that is looked into, and what the worker has to define so that they find each other."""

    def __init__(
        self, body: Body, call_graph: CallGraph, axis_name: str, settled: Sequence[str] = ()
    ) -> None:
        """The tables of `body` alone; `settled` arguments have no values but those that are tried."""
        self.body, self.call_graph, self.axis_name, self.settled = body, call_graph, axis_name, settled
        self.words = replace(WORDS, axis=repr(axis_name))
        #: Of arguments, or parts of them, whether the devices have parts of each of their arrays.
        self.parted: Mapping[str, tuple[bool, ...]] = {}
        #: Whether names are made whole where they are read: sums over microbatches leave functions partial.
        self.where_read = False
        self.bodies: list[Body] = []
        #: What each body is the body of, and the body each statement stands in.
        self.homes: dict[int, UserFunction] = {}
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
        self._know(body, call_graph.origin)
        self.watch = Watch(call_graph, body, settled)

    def watch_again(self) -> None:
        """Watch the methods, too, that running has shown since."""
        self.watch = Watch(self.call_graph, self.body, self.settled)

    def _know(self, body: Body, home: UserFunction) -> None:
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

    def behind(self, statement: Statement) -> list[Statement]:
        """A statement, and those of its function that what it reads is made in, the nearest first."""
        found = [statement]
        for each in found:
            ahead = (s for s in self.statements.values() if s.scope == statement.scope)
            made = [
                s for s in ahead if place(s.span) < place(each.span) and dict(s.names).keys() & each.reads
            ]
            found += [s for s in sorted(made, key=lambda s: place(s.span), reverse=True) if s not in found]
        return found

    def around(
        self,
        define: Callable[[Body], str],
        callee_bodies: Sequence[Body] = (),
        noted: Callable[[Body, str], Sequence[str]] = lambda *_: (),
    ) -> Around:
        """What the worker has to define around the target.

        That is what is looked into, and with `callee_bodies` what is watched; behind each body the lines that
        `noted` has for it and its name there.
        """
        first = [
            "import contextlib as __jax_pmap_contextlib__",
            "import functools as __jax_pmap_functools__",
            f"import jax as {JAX}",
            HELPERS.format(axis=self.words.axis, parted=dict(self.parted)),
            f"{COPIES} = {{}}",
        ]
        here, elsewhere = list(first), dict[str, list[str]]()
        own = self.call_graph.origin.source.path
        for body in (*self.bodies[1:], *callee_bodies):
            source = self.home(body.scope.index).source
            lines = here if source.path == own else elsewhere.setdefault(source.module, list(first))
            lines += [*decorated(self.home(body.scope.index).facts), define(body)]
            scope, home = body.scope.index, self.home(body.scope.index)
            name = self.name_of(body) or home.facts.name
            lines += noted(body, name)
            if home.library:
                lines.append(f"{COPIES}[{home.owner}.{home.facts.name}.__wrapped__] = {name}")
            elif home.owner and not home.by_value:
                lines.append(
                    f"{name} = {RECORDER}.guarded({scope}, {home.owner}, {home.facts.name!r}, {name})"
                )
        exports = []
        for caller, called, scope in self.linked(callee_bodies):
            home, by = self.home(scope), self.home(caller)
            into, module = ("" if each.source.path == own else each.source.module for each in (by, home))
            if into != module:
                name = method_name(scope) if home.is_apart else home.facts.name
                transformed = self.call_graph.transformed(called, by)
                named = home.is_apart or transformed is not None or "[" in called
                exports.append((into, name if named else called, module, name))
                # What the object is made with stands in the file where that is done.
                exports += [
                    (into, each, module, each) for each in sorted(transformed.names if transformed else ())
                ]
        texts = {module: "\n".join(lines) for module, lines in elsewhere.items()}
        return Around("\n".join(here), texts, tuple(exports))

    def home(self, scope: int) -> UserFunction:
        """What a body is the body of."""
        return self.homes[scope] if scope in self.homes else self.watch.homes[scope]

    def linked(self, callee_bodies: Sequence[Body] = ()) -> dict[tuple[int, str, int], None]:
        """The links between what is looked into, and with `callee_bodies` those to what is watched."""
        there = {body.scope.index for body in (*self.bodies, *callee_bodies)}
        links = dict(self.links)
        if callee_bodies:
            links |= dict.fromkeys(self.watch.links(self.body.scope.index))
        return {link: None for link in links if link[0] in there and link[2] in there}

    def renames(self, body: Body, callee_bodies: Sequence[Body] = ()) -> dict[str, str]:
        """What stands in a body for the methods it calls that are looked into, or watched."""
        out = {}
        for caller, called, scope in self.linked(callee_bodies):
            if caller == body.scope.index and self.home(scope).by_value:
                module, name = self.call_graph.seen_as(called, self.home(caller))
                copy = method_name(scope)
                out[called] = f"{RECORDER}.in_place_of({scope}, {called}, {module!r}, {name!r}, {copy})"
            elif self.home(scope).library:
                continue
            elif caller == body.scope.index and self.home(scope).makes:
                out[called] = self.home(scope).made(called, method_name(scope))
            elif caller == body.scope.index and self.home(scope).is_method:
                bound = self.call_graph.receiver(called, self.home(caller))
                name = method_name(scope)
                copy = f"__jax_pmap_functools__.partial({name}, {bound})" if bound else name
                out[renamed(called, bound)] = copy
            elif caller == body.scope.index and (
                transformed := self.call_graph.transformed(called, self.home(caller))
            ):
                out[called] = transformed.around(self.home(scope).facts.name)
            elif caller == body.scope.index and ("[" in called or self.home(scope).parsed.enclosing):
                out[called] = self.home(scope).facts.name
        return out

    def name_of(self, body: Body) -> str:
        """The name that others call a version of a function by; ``""`` where that is its own."""
        apart = body is not self.body and self.home(body.scope.index).is_apart
        return method_name(body.scope.index) if apart else ""

    def open(self, called: str, caller: Body) -> int | None:
        """Take a function of the user's that `caller` calls into the tables; its scope, or None."""
        found = self.call_graph.find(called, self.homes[caller.scope.index])
        if found is None:
            return None
        known = [scope for scope, home in self.homes.items() if home.is_same(found)]
        if not known:
            body = self.body.callee(found.key, function_text(found.parsed))
            self._know(body, found)
            known = [body.scope.index]
        self.links[caller.scope.index, called, known[0]] = None
        return known[0]

    def maker(self, name: str, caller: Body) -> Body | None:
        """The body of the function that makes anew what a name of a body has, where there is one."""
        found = self.call_graph.find(name, self.homes[caller.scope.index])
        scope = self.open(name, caller) if found is not None and found.makes else None
        return next((body for body in self.bodies if body.scope.index == scope), None)

    def open_called(self, syncs: Sequence[Sync] | None = None) -> None:
        """Take in the functions that are called by their names, up to those that `syncs` stand in, or all."""
        for body in self.bodies:
            if syncs is not None and all(self.point_of(sync) is not None for sync in syncs):
                return
            for called in self.call_graph.calls(self.homes[body.scope.index]):
                self.open(called, body)

    def point_of(self, sync: Sync) -> int | None:
        """The point of the expression, or of the name, that a collective is taken of; None for neither."""
        if sync.where in ("after", ADDED):
            names = (
                (name, point)
                for s in self.statements.values()
                if s.span == sync.span
                for name, point in (s.touches if sync.where == ADDED else s.names)
            )
            return next((point for name, point in names if name == sync.value), None)
        found = (e for e in self.by_point.values() if e.span == sync.span and e.text == sync.value)
        return next((each.point for each in found), None)

    def elements(self, display: Expression) -> list[Expression]:
        """The members of a display, through displays inside it."""
        out = []
        for child in self.children.get(display.point, []):
            out += self.elements(child) if child.is_display else [child]
        return out

    def descendants(self, point: int) -> list[Expression]:
        """Every expression inside the one at `point`."""
        out = []
        for child in self.children.get(point, []):
            out.append(child)
            out += self.descendants(child.point)
        return out

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
