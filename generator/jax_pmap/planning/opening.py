"""Look inside functions that a call runs: which they are, and how their tapped copies are called."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import libcst as cst

from jax_pmap.emit.callees import UserFunction
from jax_pmap.emit.places import Body, Expression, Statement, inside, place
from jax_pmap.model import Span, Sync
from jax_pmap.planning.bodies import Bodies
from jax_pmap.planning.events import PARTIAL, Event, State, identity
from jax_pmap.reading.decorators import may_run_repeatedly
from jax_pmap.reading.runs import behind, transformed_inside
from jax_pmap.syntax.library import SCANS
from jax_pmap.syntax.lines import in_parentheses, parsed_expression


@functools.lru_cache(maxsize=1024)
def called_by(call: str) -> str:
    """Source of what a call calls: ``hk.transform(loss).apply``; of what is made to be called, its maker."""
    function = parsed_expression(call)
    func = function.func if isinstance(function, ast.Call) else None
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
        return ast.unparse(func)
    while isinstance(func, ast.Call):
        func = func.func
    if func is None:
        return call.partition("(")[0].strip()
    # As it is written: others look for just that.
    return ast.get_source_segment(in_parentheses(call), func) or ast.unparse(func)


def method_given(call: str) -> str:
    """Source of what a call of ``module.apply`` is given as ``method=``, or ``""``."""
    if "method=" not in call:
        return ""
    node = parsed_expression(call)
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "apply":
        return ""
    return next((ast.unparse(each.value) for each in node.keywords if each.arg == "method"), "")


def _calls_given(call: cst.Call) -> Iterator[cst.Call]:
    """The calls among the arguments of a call, and theirs: ``LBFGS(loss)`` of ``jit(LBFGS(loss).run)``."""
    for argument in call.args:
        value = argument.value
        while isinstance(value, cst.Attribute):
            value = value.value
        if isinstance(value, cst.Call):
            yield value
            yield from _calls_given(value)


class Find(Protocol):
    """What tells which functions a call runs that no name in the source leads to."""

    #: Why something was not found, by the source of what is called.
    why: dict[str, str]

    def scopes(self, called: str, caller: Body) -> list[int]:
        """The scopes of the functions that `called` runs in a body, where they can be looked into."""

    def axis_argument(self, called: str, caller: Body) -> str:
        """The parameter under which what is `called` in a body takes the name of the axis, or ``""``."""

    def methods(self, span: Span, below: bool) -> list[int]:
        """The scopes of the methods of modules that a library runs for a call, where they can be looked into.

        With `below`, those that these run as well. Why others cannot is under ``""`` in `why`.
        """


def _is_made(call: str) -> bool:
    """Whether what is called was made where it is called, as in ``jax.vmap(f)(x)``."""
    node = parsed_expression(call)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Call)


class Opening:
    """What is done to see into a call."""

    def __init__(self, table: Bodies, find: Find) -> None:
        self.table, self.find = table, find

    def look_inside(self, state: State, call: Expression) -> bool:
        """Open the function that a call runs, directly or through a gradient."""
        if not call.is_call:
            return False
        gradient = self.table.gradients.get(call.point)
        callee = called_by(call.text)
        home = self.table.homes[self.table.body_of[call.statement].scope.index]
        named = self.table.call_graph.find(callee, home)
        if gradient and named is None:
            # Else the module has the gradient under a name, which a copy of the function takes the place of.
            callee = gradient.function
        method = "" if gradient else method_given(call.text)
        if method and self._open_method(state, call, callee, method):
            return True
        runs = self.table.runs.get(call.point, [])
        # What the module compiled under a name is carried under that name.
        if runs and named is None:
            deciding = [run for run in runs if run.decides]
            body = self.table.body_of[call.statement]
            if any(self._scope_of(run.function, body, run.function_span) is None for run in deciding):
                return False
            opened = [
                self._open(state, call, run.function, run.function_span, body, True, run.repeats)
                for run in runs
            ]
            scopes = [self._scope_of(run.function, body, run.function_span) for run in runs]
            for run, scope in zip(runs, scopes, strict=True):
                if scope is not None:
                    state.deciding |= {scope} if run.decides else set()
                    state.stacking |= {scope} if run.stacks else set()
            # Else it may be what has a name that the body does not see.
            if any(opened) or any(scope is not None for scope in scopes) or not self._users_own(callee, home):
                return any(opened)
        return (
            self._open(state, call, callee, call.span)
            or self._open_made(state, call)
            or self._open_given(state, call)
            or self._open_modules(state, call, callee)
        )

    def whole_inside(self, state: State, call: Expression, gradients: bool = False) -> bool:
        """Open the function that a call runs directly, for its values to be whole in it; whether that is new.

        What it gives back may be an object that cannot be taken apart where it is called. That goes for a
        function that is called under `vmap` as well, and with `gradients` for one that is differentiated.
        """
        if not call.is_call or (call.point in self.table.gradients and not gradients):
            return False
        if self.table.runs.get(call.point) and not _is_made(call.text):
            return False
        self.look_inside(state, call)
        scopes = {scope for scope, point in state.opened if point == call.point} - state.loops
        state.loops |= scopes
        # What was made whole where it is used is made whole where it is assigned from now on.
        for scope in scopes:
            found = self.table.scopes[scope].span
            for sync in [each for each in state.syncs if each.op in PARTIAL and each.span.file == found.file]:
                if inside(place(sync.span), place(found)):
                    state.forget(sync)
        return bool(scopes)

    def give_axis(self, state: State, culprits: Sequence[Expression], first: Mapping[int, Event]) -> bool:
        """Give calls that couple the examples the name of the axis, where what they call takes that.

        What couples them may have been made by such a call: ``scale.value_and_grad(loss)(params)``.
        """
        added = False
        for culprit in (each for each in culprits if each.is_call):
            body = self.table.body_of[culprit.statement]
            for call, where in self._makers(culprit, body):
                sync = self._axis_given(call, where, first)
                added |= sync is not None and state.add(sync, culprit.point)
        return added

    def _axis_given(self, call: cst.Call, body: Body, events: Mapping[int, Event]) -> Sync | None:
        """The name of the axis as an argument of a call, where what it calls takes that.

        One that it is given already is another axis, but for ``axis_name=self.axis_name`` that is None.
        """
        name = self.find.axis_argument(body.code(call.func), body)
        given = {each.keyword.value if each.keyword else each.star: each.value for each in call.args}
        if not name or given.keys() & {"*", "**"}:
            return None
        if name in given and not self._is_none(given[name], body, events):
            return None
        return Sync(name, body.code(call), "wrap", body.span(call))

    @staticmethod
    def _is_none(value: cst.BaseExpression, body: Body, events: Mapping[int, Event]) -> bool:
        """Whether an expression was None as it was passed."""
        known = body.expression_nodes.get(value)
        event = events.get(known.point) if known is not None else None
        written = isinstance(value, cst.Name) and value.value == "None"
        return written or (event is not None and not event.leaves and event.tree is None)

    def look_at_makers(self, state: State, culprits: Sequence[Expression]) -> bool:
        """Open the functions that went into making what is called: ``scale.value_and_grad(loss)(params)``.

        With other collectives in these, the name of the axis may be of help that was of none before.
        """
        opened = False
        for culprit in (each for each in culprits if each.is_call):
            body = self.table.body_of[culprit.statement]
            for call, where in [*self._makers(culprit, body)][1:]:
                if self._open_handed(state, culprit, where, where.code(call), where.span(call)):
                    opened = True
                    sync = self._axis_given(call, where, {})
                    state.blocked -= set() if sync is None else {identity(sync)}
        return opened

    def _makers(self, culprit: Expression, body: Body) -> Iterator[tuple[cst.Call, Body]]:
        """A call, with those that made what it calls: where it stands, or under a name; each with its body.

        Of a method (``kernel.step(key, state)``) that is what made its object. Behind each stand the calls
        among its arguments.
        """
        call = body.call_at(culprit.span)
        # A name bound anew by what it has (`scale, loss = scale.grad(f)(w)`) leads back to where it began.
        met: list[cst.Call] = []
        while call is not None and call not in met:
            yield call, body
            yield from ((each, body) for each in _calls_given(call) if met)
            met.append(call)
            called, call = call.func, None
            called = called.value if isinstance(called, cst.Attribute) else called
            if isinstance(called, cst.Call):
                call = called
            elif isinstance(called, cst.Name):
                bound = [s for s in body.statements.values() if called.value in dict(s.names)]
                value = self.table.by_point.get(bound[0].value or 0) if len(bound) == 1 else None
                found = self.table.maker(called.value, body)
                if found is not None:
                    own = (s.value for s in found.statements.values() if s.scope == found.scope.index)
                    body, value = found, self.table.by_point.get(next(own) or 0)
                call = body.call_at(value.span) if value is not None else None

    def _open_made(self, state: State, call: Expression) -> bool:
        """Open the function that a call makes for another call to run: ``make_loss(batch)(params)``."""
        made = self.table.body_of[call.statement].call_at(call.span)
        if made is None or not isinstance(made.func, cst.Call):
            return False
        return self._open(state, call, self.table.body_of[call.statement].bare(made.func), call.span)

    def _open_given(self, state: State, call: Expression) -> bool:
        """Open the functions that a call hands on: a solver's operator, the objective of an optimiser."""
        return self._open_handed(state, call, self.table.body_of[call.statement], call.text, call.span)

    def _open_handed(self, state: State, call: Expression, body: Body, text: str, span: Span) -> bool:
        """Open the functions among the arguments of the call `text` at `span`, for one that couples examples.

        What becomes of a result is not known; it may go into the next run, and has to be whole.
        """
        node = parsed_expression(text)
        assert isinstance(node, ast.Call)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        given = [each for each in given if not isinstance(each, ast.Starred)]
        written = [ast.get_source_segment(in_parentheses(text), each) or "" for each in given]
        parsed = self.table.homes[body.scope.index].parsed
        functions = [behind(parsed, each) or each for each in written]
        known = [each for each in functions if self._scope_of(each, body, span) is not None]
        opened = [self._open(state, call, each, span, body, given=True, repeats=True) for each in known]
        return any(opened)

    def _open_modules(self, state: State, call: Expression, callee: str) -> bool:
        """Open the methods of modules that a library runs for a call.

        What these leave in variables of modules further below passes through none of them.
        """
        new: set[tuple[int, int]] = set()
        for below in (False, True):
            new = new or {(scope, call.point) for scope in self.find.methods(call.span, below)} - state.opened
        state.opened |= new
        if "" in self.find.why:
            state.closed[callee] = self.find.why.pop("")
        return bool(new)

    def _open(
        self,
        state: State,
        call: Expression,
        callee: str,
        span: Span,
        body: Body | None = None,
        given: bool = False,
        repeats: bool = False,
    ) -> bool:
        """Open the function `callee`, written inside `span` if it is a lambda; whether that is new.

        It is called so in a `body`, that of the call where none is given. `given` says that the call hands it
        on, as `jax.lax.scan` does, and does not call it by itself.
        """
        body = body or self.table.body_of[call.statement]
        scope = self._scope_of(callee, body, span)
        homes = self.table.homes
        caller = homes[body.scope.index]
        repeats = repeats or (scope is not None and may_run_repeatedly(caller.parsed, callee))
        if scope is None and not given:
            bound = behind(caller.parsed, callee)
            if bound:
                scope = self._scope_of(bound, body, span)
                callee = bound if scope is not None or self.find.scopes(bound, body) else callee
        made = transformed_inside(caller.parsed, callee) if scope is None else ""
        scope = self._scope_of(made, body, span) if made else scope
        if scope is not None:
            scopes = [scope]
            if scope in state.others:
                state.closed[callee] = self.both(state, scope)
        else:
            seen = self.find.scopes(callee, body)
            scope = self._scope_of(callee, body, span)
            if not seen and (callee in self.find.why or self._users_own(callee, caller)):
                state.closed[callee] = self.find.why.get(callee, "")
            scopes = seen if scope is None else [scope]
        new = {(each, call.point) for each in scopes} - state.opened
        state.opened |= new
        state.loops |= {each for each, _ in new if repeats or self._is_scanned(each)}
        return bool(new)

    def _is_scanned(self, scope: int) -> bool:
        """Whether a function outside the target has a decorator that runs it again and again."""
        home = self.table.homes.get(scope)
        return home is not None and any(each.name in SCANS for each in home.facts.decorators)

    def _open_method(self, state: State, call: Expression, callee: str, method: str) -> bool:
        """Open the method that ``module.apply(…, method=Module.loss)`` runs on the bound module."""
        body = self.table.body_of[call.statement]
        scope = self.table.open(method, body)
        if scope is None or not self.table.homes[scope].is_method:
            return False
        new = (scope, call.point) not in state.opened
        state.opened.add((scope, call.point))
        return new

    def both(self, state: State, scope: int) -> str:
        """What to say of a method that has a copy, where an object has another one."""
        method = self.table.home(scope).source.qualname
        return f"it is `{method}` in one call and `{state.others[scope]}` in another"

    def disagrees(self, state: State, statement: Statement, events: Sequence[Event]) -> bool:
        """Whether devices decide on another round of a loop by values that differ between them."""
        if statement.scope not in state.deciding or statement.kind != "return":
            return False
        first = self.table.first_of(statement, events)
        return any(event.varying for point, event in first.items() if point != statement.value)

    def _users_own(self, callee: str, caller: UserFunction) -> bool:
        """Whether a callee is of the user's module, of a function around, or of the method's object."""
        facts = caller.facts
        own = {*facts.module_names, *facts.closure_names, facts.receiver} - {""}
        return re.split(r"\W", callee)[0] in own

    def _scope_of(self, callee: str, body: Body, span: Span) -> int | None:
        """The scope of a function that a body knows by its name, or of a lambda written inside `span`."""
        for scope in body.scopes.values():
            if scope.index == body.scope.index:
                continue
            if scope.name == callee or (
                not scope.name and callee.startswith("lambda") and inside(place(scope.span), place(span))
            ):
                return scope.index
        return self.table.open(callee, body)
