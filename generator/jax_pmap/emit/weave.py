"""Put collectives, taps and guards into a function's body, leaving everything else as written.

What is observed and what is emitted go through the same transformer, so the collectives that
were seen to work are the ones that are written out. Places are known by their position in the
user's file; a `Sync` from a saved plan finds its node again by its span.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import libcst as cst

from jax_pmap.emit.decomposed import DIAGONALS, TOGETHER, UPDATES, reduction
from jax_pmap.emit.names import USUAL, Words
from jax_pmap.emit.places import Body, Expression, Statement, inside, place
from jax_pmap.emit.source import string
from jax_pmap.emit.syntax import is_constant
from jax_pmap.leaf_paths import STEP, dotted
from jax_pmap.model import (
    ADDED,
    AROUND,
    DIVIDE,
    EXCHANGE,
    EXTREMES,
    FOLD,
    GATHERED,
    OWN_SHARE,
    OWN_SIZE,
    REDUCING,
    Backend,
    Guard,
    Plan,
    Sync,
)
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.syntax.text import in_one_line
from jax_pmap.worker.protocol import AXIS_ARGUMENTS
from jax_pmap.worker.scopes import names_of_its_own

RECORDER = "__jax_pmap__"
Placed = TypeVar("Placed", Sync, Guard)
#: What a node becomes: another one, several, or nothing.
Replacement: TypeAlias = "cst.CSTNode | cst.FlattenSentinel[Any] | cst.RemovalSentinel"


def weave(
    body: Body,
    syncs: Sequence[Sync] = (),
    guards: Sequence[Guard] = (),
    words: Words = USUAL,
    taps: Iterable[int] = (),
    reach: bool = False,
    result: str = "result",
    renames: Mapping[str, str] = MappingProxyType({}),
    tests: Mapping[int, int] = MappingProxyType({}),
    asked: Mapping[str, int] | None = None,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> cst.FunctionDef:
    """The function with collectives after statements and around expressions.

    `taps` are points to record, in functions inside too; with `reach`, entered branches are recorded;
    `result` names the result where it must be taken apart; `renames` are sources in place of functions that
    are called as ``module.name`` or ``self.name``; `tests` are numbers under which what decides on the way
    through the function is recorded, by point; `asked` are sources of what is called, in one line, with the
    number under which is noted what that is: unless it is None, functions inside are noted too; `aliases` are
    other names for what the function reads of its module, none of which it binds itself.
    """
    editor = Editor(body, syncs, guards, words, frozenset(taps), reach, result)
    editor.renames = {in_one_line(called): copy for called, copy in renames.items()}
    editor.tests, editor.asked, editor.aliases = tests, asked, aliases
    woven = body.module.visit(editor)
    function = woven.body[0]
    assert isinstance(function, cst.FunctionDef)
    missing = editor.unplaced()
    if missing:
        raise LookupError(f"no place at {missing[0].span} for {missing[0].op} of {missing[0].value}")
    return function


def woven_source(
    body: Body,
    syncs: Sequence[Sync] = (),
    taps: Collection[int] = (),
    name: str = "",
    **how: Any,
) -> str:
    """The source of what `weave` makes of a body, of another `name` where there is one.

    It is made once for what the body is given: a round of a search changes few of the bodies that it traces.
    """
    own = tuple(inside_of(body, syncs))
    tapped = body.points.intersection(taps)
    given = tuple((k, tuple(v.items()) if isinstance(v, Mapping) else v) for k, v in how.items())

    def made() -> str:
        function = weave(body, own, taps=tapped, **how)
        return body.definition(function.with_changes(name=name_node(name)) if name else function)

    return body.once((own, tapped, name, given), made)


def written(plan: Plan, backend: Backend) -> tuple[Sync, ...]:
    """The syncs of a plan that its code has: in the global view, what is divided where it is made."""
    if backend is not Backend.JIT:
        return plan.syncs
    return tuple(sync for sync in plan.syncs if sync.op == OWN_SHARE) if plan.made else ()


def method_name(scope: int) -> str:
    """What the copy of a method is called, outside its class."""
    return f"__jax_pmap_method_{scope}__"


class Editor(cst.CSTTransformer):
    """One pass over the function that makes every change at once."""

    def __init__(
        self,
        body: Body,
        syncs: Sequence[Sync],
        guards: Sequence[Guard],
        words: Words,
        taps: frozenset[int],
        reach: bool,
        result: str,
    ) -> None:
        super().__init__()
        self.body, self.words, self.taps, self.reach, self.result = body, words, taps, reach, result
        self.axis, self.jax = words.axis, words.jax
        self.renames: Mapping[str, str] = {}
        self.aliases: Mapping[str, str] = {}
        self.tests: Mapping[int, int] = {}
        self.asked: Mapping[str, int] | None = None
        #: How many f-strings stand around.
        self.within_strings = 0
        self.after: dict[tuple[int, int, int, int], list[Sync]] = {}
        #: What stands around expressions, one along each axis.
        self.wrap: dict[tuple[int, int, int, int], dict[tuple[str, ...], Sync]] = {}
        #: Folds of the keys inside objects.
        self.around: list[Sync] = []
        #: Sums of what statements add to objects.
        self.added: dict[tuple[int, int, int, int], list[Sync]] = {}
        #: Calls that are given the name of the axis, with the parameter.
        self.named: dict[tuple[int, int, int, int], Sync] = {}
        for sync in syncs:
            if sync.where == AROUND:
                self.around.append(sync)
            elif sync.where == ADDED:
                self.added.setdefault(place(sync.span), []).append(sync)
            elif sync.op in AXIS_ARGUMENTS:
                self.named[place(sync.span)] = sync
            elif sync.where == "after":
                self.after.setdefault(place(sync.span), []).append(sync)
            else:
                self.wrap.setdefault(place(sync.span), {})[sync.along] = sync
        self.guards = {place(guard.span): guard for guard in guards}
        self.used: set[tuple[str, tuple[int, int, int, int]]] = set()
        #: Statements whose collectives went into what they assign.
        self.joined: set[tuple[int, int, int, int]] = set()

    def unplaced(self) -> list[Sync]:
        """Syncs whose span matched nothing."""
        return [
            *(s for where, syncs in self.after.items() if ("after", where) not in self.used for s in syncs),
            *(
                sync
                for where, syncs in self.wrap.items()
                if ("wrap", where) not in self.used
                for sync in syncs.values()
            ),
            *self.named.values(),
            *(s for where, syncs in self.added.items() if (ADDED, where) not in self.used for s in syncs),
            *(s for s in self.around if place(s.span) != place(self.body.head)),
        ]

    def collective(self, op: str, value: str, along: Sequence[str] = ("",), constant: bool = False) -> str:
        """Source of a collective over the axis of the batch, or over others; or of a division by its size."""
        if op == DIVIDE:
            return f"{value} / {self.collective('psum', '1', along)}"
        if op == "axis_index":
            return f"{self.jax}.lax.axis_index(axis_name={self.axes(along)})"
        if constant:
            value = f"{self.jax}.lax.stop_gradient({value})"
        return f"{self.jax}.lax.{op}({value}, axis_name={self.axes(along)})"

    def own_share(self, sync: Sync, value: str) -> str:
        """Source of the device's part of a value that all devices have whole."""
        axis = f", axis={sync.axis}" if sync.axis else ""
        return f"{self.words.own_share}({value}{axis})"

    def divided(self, sync: Sync, value: str) -> str:
        """Source of a value divided by the number of devices, or of all leaves of one."""
        if not sync.containers:
            return self.collective(DIVIDE, value, sync.along)
        return f"{self.jax}.tree.map(lambda part: {self.collective(DIVIDE, 'part', sync.along)}, {value})"

    def axes(self, along: Sequence[str]) -> str:
        """Source of the names of axes; ``""`` is that of the batch."""
        names = [string(name) if name else self.axis for name in along]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"

    def tap(self, point: int, value: cst.BaseExpression, method: str = "tap") -> cst.BaseExpression:
        """``__jax_pmap__.tap(point, value)``, or another method of the recorder."""
        value = parenthesized(value)
        return cst.Call(
            cst.Attribute(cst.Name(RECORDER), cst.Name(method)),
            [cst.Arg(cst.Integer(str(point))), cst.Arg(value)],
        )

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Into everything."""
        self.within_strings += isinstance(node, cst.FormattedString)
        return super().on_visit(node)

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """Expressions are wrapped and tapped, lines get their followers, suites their guards."""
        self.within_strings -= isinstance(original, cst.FormattedString)
        if self.aliases:
            updated = other_name(original, updated, self.aliases)
        if isinstance(original, cst.Attribute | cst.Subscript) and self.renames:
            name = self.copy_for(original)
            if name is not None:
                return cst.parse_expression(name)
        if isinstance(original, cst.Call) and isinstance(updated, cst.Call) and self.renames:
            updated = self.bound_call(original, updated)
        if self.named and isinstance(original, cst.Call) and isinstance(updated, cst.Call):
            named = self.named.pop(place(self.body.span(original)), None)
            updated = updated if named is None else with_argument(updated, named.op, self.axis)
        if isinstance(original, cst.Call) and isinstance(updated, cst.Call):
            updated = updated.with_changes(func=self.asking(original.func, updated.func))
            updated = updated.with_changes(func=self.substituted(original.func, updated.func))
            updated = self.object_called(original, updated)
        elif isinstance(original, cst.Arg) and isinstance(updated, cst.Arg):
            updated = updated.with_changes(value=self.asking(original.value, updated.value))
            updated = updated.with_changes(value=self.substituted(original.value, updated.value))
            if original.keyword is not None and original.keyword.value == "method":
                updated = updated.with_changes(value=self.unbound(original.value, updated.value))
        new: Replacement = updated
        if isinstance(original, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            new = self.line(original, updated)
        elif isinstance(original, cst.FunctionDef) and original is not self.body.function:
            new = self.nested(original, updated)
        elif isinstance(updated, cst.FunctionDef) and self.around:
            new = self.with_own_draws(updated)
        elif isinstance(original, cst.BaseExpression) and isinstance(updated, cst.BaseExpression):
            new = self.expression(original, updated)
            scope = self.body.scope_nodes.get(original)
            # One among the body's own defaults is made outside of it.
            if isinstance(original, cst.Lambda) and self.asked is not None and scope is not None:
                new = self.tap(scope.index, new, "known")
        if self.reach and isinstance(new, cst.FunctionDef) and original in self.body.scope_nodes:
            new = with_first(new, f"{RECORDER}.reach({self.body.scope_nodes[original].index})")
        if original in self.body.branch_nodes:
            assert isinstance(new, cst.BaseSuite)
            new = self.branch(original, new)
        if original in self.body.passes:
            new = self.past(original, new)
        if original in self.body.rests:
            new = self.rest(original, new)
        return new  # type: ignore[return-value]

    def copy_for(self, called: cst.BaseExpression, more: str = "") -> str | None:
        """What stands for something that is called, or for what its source followed by `more` is; or None."""
        return self.renames.get(in_one_line(self.body.bare(called)) + more) if self.renames else None

    def bound_call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        """``loss(agent, x)`` for ``partial(loss, agent)(x)``, where that stands for ``agent.loss(x)``."""
        made = updated.func
        if not isinstance(original.func, cst.Attribute) or not isinstance(made, cst.Call):
            return updated
        if not isinstance(made.func, cst.Attribute) or made.func.attr.value != "partial":
            return updated
        if self.copy_for(original.func) is None:
            return updated
        function, *bound = made.args
        return updated.with_changes(func=function.value, args=[*bound, *updated.args])

    def expression(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        """An expression with a collective and a tap around it, if it has them."""
        expression = self.body.expression_nodes.get(original)
        if expression is not None:
            plain = updated
            where = place(expression.span)
            # An extreme over one axis is that of sums over another.
            for sync in sorted(self.wrap.get(where, {}).values(), key=lambda each: each.op in EXTREMES):
                if sync.value != expression.text:
                    continue
                self.used.add(("wrap", where))
                both = self.over_both(original, updated, sync)
                if sync.op in TOGETHER:
                    updated = self.together(sync, original, updated)
                elif both is not None:
                    updated = both
                else:
                    if expression.point in self.taps:
                        updated = self.tap(expression.point, updated, "before")
                    updated = self.wrapped(sync, updated)
            statement = self.body.statements[expression.statement]
            if statement.value == expression.point:
                updated = self.assigned(statement, original, updated)
            if statement.span == expression.span and statement.kind == "return":
                updated = self.returned(expression, updated)
            if expression.side_of is not None and where in self.guards:
                updated = self.unseen_side(expression)
            else:
                if expression.point in self.tests:
                    updated = self.tap(self.tests[expression.point], updated, "test")
                if self.reach and expression.side_of is not None:
                    updated = self.tap(expression.point, updated, "side")
                if self.tapped_here(expression):
                    updated = self.tap(expression.point, updated)
            if updated is not plain and self.body.is_tight(original):
                updated = enclosed(updated)
        return updated

    def assigned(
        self, statement: Statement, original: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression:
        """What a statement assigns, with the one collective of all its names in it where that can be."""
        where = place(statement.span)
        syncs = self.after.get(where, [])
        names = [name for name, _ in statement.names]
        whole = sorted(sync.value for sync in syncs if sync.paths == ("",)) == sorted(names) != []
        if statement.kind == "return" or not whole or len({(s.op, s.along, s.constant) for s in syncs}) > 1:
            return updated
        both = self.over_both(original, updated, syncs[0])
        if both is None:
            return updated
        self.used.add(("after", where))
        self.joined.add(where)
        return both

    def over_both(
        self, original: cst.BaseExpression, updated: cst.BaseExpression, sync: Sync
    ) -> cst.BaseExpression | None:
        """A collective over the axis of a map inside, with the same over the devices in it; None of others.

        One after the other, the first would be of rows of different devices where they are differentiated.
        """
        if sync.op not in REDUCING or sync.constant or sync.like:
            return None
        if not isinstance(original, cst.Call) or not isinstance(updated, cst.Call):
            return None
        if self.body.called(original) != f"jax.lax.{sync.op}":
            return None
        named = [each for each in updated.args if each.keyword and each.keyword.value == "axis_name"]
        given = next(iter((*named, *updated.args[1:2])), None)
        if given is None or given.star:
            return None
        axes = given.value.elements if isinstance(given.value, cst.Tuple) else [cst.Element(given.value)]
        every = enclosed(cst.Tuple([*axes, cst.Element(cst.parse_expression(self.axes(sync.along)))]))
        args = [each.with_changes(value=every) if each is given else each for each in updated.args]
        return updated.with_changes(args=args)

    def returned(self, expression: Expression, updated: cst.BaseExpression) -> cst.BaseExpression:
        """What a lambda gives, taken apart for its collectives: no statement can stand behind it."""
        where = place(expression.span)
        syncs = self.after.get(where, [])
        if not syncs:
            return updated
        self.used.add(("after", where))
        for line in self.assignments(syncs):
            name, _, made = line.partition(" = ")
            call = cst.parse_expression(f"(lambda {name}: {made})(x)")
            assert isinstance(call, cst.Call)
            updated = call.with_changes(args=[cst.Arg(parenthesized(updated))])
        return self.tap(expression.point, updated) if expression.point in self.taps else updated

    def asking(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        """What is called, noted where that is asked: a method with the object that it is looked up on."""
        number = self.asked.get(in_one_line(self.body.bare(original))) if self.asked else None
        if number is None:
            return updated
        if not isinstance(updated, cst.Attribute):
            return self.tap(number, updated, "callee")
        if self.within_strings:
            return updated  # Before Python 3.12 the quotes would end the f-string, and it gives but text.
        args = (cst.Integer(str(number)), updated.value, cst.SimpleString(repr(updated.attr.value)))
        noted = cst.Attribute(cst.Name(RECORDER), cst.Name("method"))
        return cst.Call(noted, [cst.Arg(each) for each in args])

    def object_called(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        """``model_call(model, x)`` of ``model(x)``, where a copy stands for what the object runs."""
        copy = self.copy_for(original.func, "()")
        if copy is None:
            return updated
        made = cst.parse_expression(copy)
        assert isinstance(made, cst.Call)
        return updated.with_changes(func=made.args[0].value, args=[cst.Arg(updated.func), *updated.args])

    def unbound(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        """The copy of a method for ``module.apply(…, method=module.loss)``, which binds it itself."""
        if not isinstance(updated, cst.Call) or self.copy_for(original) is None:
            return updated
        return updated.args[0].value if len(updated.args) == 2 else updated

    def substituted(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        """What stands for a function that is called, or handed on, by a plain name, or as a call gives it."""
        name = self.copy_for(original) if isinstance(original, cst.Name | cst.Call) else None
        made = updated if name is None else cst.parse_expression(name)
        if name is None or not isinstance(original, cst.Call) or not isinstance(made, cst.Call):
            return made
        # That call, as in `getattr(self, name)(x)`, is made once, with what is woven into it.
        args = [a.with_changes(value=updated) if isinstance(a.value, cst.Call) else a for a in made.args]
        return made.with_changes(args=args)

    def wrapped(self, sync: Sync, value: cst.BaseExpression) -> cst.BaseExpression:
        """A collective, a fold of a key, or the taking of a share around a node."""
        axis = f", axis={sync.axis}" if sync.axis else ""
        if sync.constant:
            value = call_on(f"{self.jax}.lax.stop_gradient(x)", parenthesized(value))
        if sync.op == OWN_SHARE:
            return call_on(self.own_share(sync, "x"), value)
        if sync.op == DIVIDE and sync.containers:
            return call_on(self.divided(sync, "x"), value, at=1)
        if sync.op == DIVIDE:
            part = cst.parse_expression(f"({self.collective(DIVIDE, 'x', sync.along)})")
            assert isinstance(part, cst.BinaryOperation)
            plain = isinstance(value, cst.Name | cst.Attribute | cst.Subscript | cst.Call)
            return part.with_changes(left=value if plain else enclosed(value))
        if sync.op == EXCHANGE:
            how = f"split_axis={sync.axis}, concat_axis={1 - (sync.axis or 0)}, tiled=True"
            return call_on(f"{self.jax}.lax.all_to_all(x, axis_name={self.axes(sync.along)}, {how})", value)
        if sync.op == OWN_SIZE:
            return call_on(f"{self.words.own_size}(x)", value)
        if sync.like:
            return call_on(self.in_parts(sync, "x"), value, at=1)
        if sync.joined is not None:
            count, rows = sync.joined
            return call_on(f"{self.words.gather_joined}(x, {count}, {rows}{axis})", value)
        if sync.op != FOLD:
            return wrap_call(f"{self.jax}.lax.{sync.op}", value, self.axes(sync.along), sync.axis)
        if sync.paths == ("",):
            return call_on(self.fold("key", sync), parenthesized(value))
        if isinstance(value, cst.Name | cst.Attribute):
            return cst.parse_expression(self.folded(sync.value, sync))
        # What makes the keys is evaluated once.
        call = cst.parse_expression(f"(lambda keys: {self.folded('keys', sync)})(x)")
        assert isinstance(call, cst.Call)
        return call.with_changes(args=[cst.Arg(value)])

    def in_parts(self, sync: Sync, value: str) -> str:
        """Source of a value put together of the devices' parts, or summed and divided into such."""
        helper = self.words.gathered if sync.op == GATHERED else self.words.scattered
        return f"{helper}({string(dotted(sync.like))}, {value})"

    def together(
        self, sync: Sync, original: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression:
        """A reduction as sums and means of all devices, of its arguments as they are now."""
        found = reduction(aliased(sync.value, self.aliases), self.body.called(original))
        assert found is not None and isinstance(original, cst.Call) and isinstance(updated, cst.Call)
        before, after = (
            [*([each.func.value] if found.is_method else []), *(arg.value for arg in each.args)]  # type: ignore[attr-defined]
            for each in (original, updated)
        )
        changed = {
            parameter: after[index]
            for parameter, index in found.order.items()
            # What is updated stands there twice, in two parts: names and items, without taps. Of some
            # constants it depends what is written.
            if not is_constant(before[index])
            and aliased(self.body.code(before[index]), self.aliases) != self.body.code(after[index])
            and not (parameter == "x" and found.name in UPDATES.values())
        }
        if found.updates_made:
            changed["x"] = self.updated_array(after[found.order["x"]])
        named = {parameter: f"__jax_pmap_{parameter}__" for parameter in changed}
        axis = {"axis": str(sync.axis)} if found.name in DIAGONALS else {}
        collective = functools.partial(self.collective, along=sync.along)
        made = cst.parse_expression(found.written(collective, self.numpy(), self.jax, named | axis))
        made = made.visit(_Substituted({name: changed[p] for p, name in named.items()}))  # type: ignore[assignment]
        # The call was one operand, whatever stood around it.
        bare = not isinstance(made, cst.BinaryOperation) or self.body.is_member(original)
        return made if bare else enclosed(made)

    @staticmethod
    def updated_array(node: cst.BaseExpression) -> cst.BaseExpression:
        """What ``x.at[ids]`` is of, under the taps."""
        steps = iter((cst.Subscript, cst.Attribute))
        for step in steps:
            while not isinstance(node, step):
                assert isinstance(node, cst.Call)
                node = node.args[-1].value
            node = node.value
        return node

    def numpy(self) -> str:
        """What the function calls jax.numpy, if it does so everywhere."""
        own = names_of_its_own(ast.parse(self.body.text.text).body[0])
        for spelled, meant in self.body.text.called.items():
            inner = meant.removeprefix("jax.numpy")
            if inner != meant and spelled.endswith(inner) and spelled.partition(".")[0] not in own:
                return aliased(spelled.removesuffix(inner), self.aliases)
        return f"{self.jax}.numpy"

    def with_own_draws(self, function: cst.FunctionDef) -> cst.FunctionDef:
        """The function with all of its body, behind the docstring, in ``with own_draws(model):``."""
        suite, first = lines_of_body(function)
        call = cst.parse_expression(
            f"{self.words.own_draws}({', '.join(sync.value for sync in self.around)})"
        )
        block = cst.With([cst.WithItem(call)], cst.IndentedBlock(suite.body[first:], footer=suite.footer))
        return function.with_changes(body=suite.with_changes(body=[*suite.body[:first], block], footer=()))

    def fold(self, key: str, sync: Sync) -> str:
        """Source of a key that is another on every device."""
        index = f"{self.jax}.lax.axis_index({self.axis})"
        return f"{self.jax}.random.fold_in({key}, {'~' if sync.downward else ''}{index})"

    def folded(self, keys: str, sync: Sync) -> str:
        """Source of the containers of keys again, with those folded that `sync` names."""
        return rebuild(keys, [sync], lambda _, key: self.fold(key, sync))

    def tapped_here(self, expression: Expression) -> bool:
        """Whether an expression is tapped where it stands; a result made whole is, once it is whole."""
        statement = self.body.statements[expression.statement]
        later = statement.kind == "return" and statement.value == expression.point
        return expression.point in self.taps and not (later and place(statement.span) in self.after)

    def nested(self, original: cst.FunctionDef, updated: cst.CSTNode) -> Replacement:
        """A nested function, noted where functions are."""
        scope = self.body.scope_nodes.get(original)
        if scope is None or self.asked is None:
            return updated
        noted = cst.parse_statement(f"{RECORDER}.known({scope.index}, {original.name.value})")
        return cst.FlattenSentinel([updated, noted])

    def line(self, original: cst.CSTNode, updated: cst.CSTNode) -> Replacement:
        """A line of simple statements with collectives and taps, each behind its own statement."""
        assert isinstance(original, cst.SimpleStatementLine | cst.SimpleStatementSuite)
        assert isinstance(updated, cst.SimpleStatementLine | cst.SimpleStatementSuite)
        lines: list[cst.BaseStatement] = []
        own: list[int] = []
        blocks: dict[int, cst.With] = {}
        together: list[cst.BaseSmallStatement] = []

        def end_line() -> None:
            if together:
                last = together.pop().with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
                own.append(len(lines))
                lines.append(cst.SimpleStatementLine([*together, last]))
                together.clear()

        for whole, (small, after) in zip(
            original.body, map(self.small, original.body, updated.body), strict=True
        ):
            block = self.summed(whole)
            if block is not None:
                end_line()
                blocks[len(lines)] = block
            together.append(small)
            if after or block is not None:
                end_line()
                lines += [cst.parse_statement(text, self.body.module.config_for_parsing) for text in after]
        if not lines:
            return updated
        end_line()
        # The comments above and behind the line stay with the user's own statements.
        lines[own[-1]] = lines[own[-1]].with_changes(trailing_whitespace=updated.trailing_whitespace)
        for at, block in blocks.items():
            lines[at] = block.with_changes(body=cst.IndentedBlock([lines[at]]))
        if isinstance(updated, cst.SimpleStatementSuite):
            return cst.IndentedBlock(lines)
        lines[own[0]] = lines[own[0]].with_changes(leading_lines=updated.leading_lines)
        return cst.FlattenSentinel(lines)

    def summed(self, original: cst.BaseSmallStatement) -> cst.With | None:
        """The block that a statement gets which adds to objects; None of others.

        ``with summed(metrics.accuracy):``
        """
        statement = self.body.statement_nodes.get(original)
        syncs = self.added.get(place(statement.span), []) if statement is not None else []
        if not syncs:
            return None
        self.used.add((ADDED, place(syncs[0].span)))
        objects = ", ".join(sync.value + path for sync in syncs for path in sync.paths)
        call = cst.parse_expression(f"{self.words.summed}({objects})")
        return cst.With([cst.WithItem(call)], cst.IndentedBlock([]))

    def small(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> tuple[cst.BaseSmallStatement, list[str]]:
        """One simple statement, and what comes after it."""
        statement = self.body.statement_nodes.get(original)
        if statement is None:
            return updated, []
        after: list[str] = []
        where = place(statement.span)
        syncs = self.after.get(where, []) if where not in self.joined else []
        if syncs:
            self.used.add(("after", where))
            for name, point in statement.names if not any(s.paths != ("",) for s in syncs) else ():
                if point in self.taps and any(sync.value == name for sync in syncs):
                    after.append(f"{name} = {RECORDER}.before({point}, {name})")
            after += self.assignments(syncs)
            if statement.kind == "return":
                assert isinstance(updated, cst.Return) and updated.value is not None
                updated = cst.Assign([cst.AssignTarget(cst.Name(self.result))], updated.value)
                tapped = statement.value in self.taps
                last = f"{RECORDER}.tap({statement.value}, {self.result})" if tapped else self.result
                after.append(f"return {last}")
        for name, point in (*statement.names, *statement.touches):
            if point in self.taps:
                bound = f"{name} = " if name.isidentifier() and (name, point) in statement.names else ""
                after.append(f"{bound}{RECORDER}.tap({point}, {name})")
        return updated, after

    def assignments(self, syncs: Sequence[Sync]) -> list[str]:
        """``loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)`` and its like."""
        lines = []
        by_op: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
        parts: dict[tuple[str, tuple[str, ...], bool], list[Sync]] = {}
        for sync in syncs:
            if sync.like:
                lines.append(f"{sync.value} = {self.in_parts(sync, sync.value)}")
            elif sync.op == OWN_SHARE:
                lines.append(f"{sync.value} = {self.own_share(sync, sync.value)}")
            elif sync.op == DIVIDE and sync.paths == ("",):
                lines.append(f"{sync.value} = {self.divided(sync, sync.value)}")
            elif sync.paths == ("",):
                by_op.setdefault((sync.op, sync.along, sync.constant), []).append(sync.value)
            else:
                parts.setdefault((sync.value, sync.along, sync.constant), []).append(sync)
        for (op, along, constant), values in by_op.items():
            names = ", ".join(values)
            value = f"({names})" if len(values) > 1 else names
            lines.append(f"{names} = {self.collective(op, value, along, constant)}")
        for (value, along, constant), leaves in parts.items():
            collective = functools.partial(self.collective, along=along, constant=constant)
            lines.append(f"{value} = {rebuild(value, leaves, collective)}")
        return lines

    def branch(self, original: cst.CSTNode, updated: cst.BaseSuite) -> cst.BaseSuite:
        """A suite that records being entered, or raises because nothing is known of it."""
        branch = self.body.branch_nodes[original]
        suite = updated
        if isinstance(suite, cst.SimpleStatementSuite):
            suite = cst.IndentedBlock([cst.SimpleStatementLine(suite.body)])
        assert isinstance(suite, cst.IndentedBlock)
        guard = self.guards.get(place(branch.span))
        if guard is not None:
            return cst.IndentedBlock([self.guarded(guard)])
        if self.reach:
            return suite.with_changes(body=[reached(branch.index), *suite.body])
        return updated

    def past(self, original: cst.CSTNode, new: Replacement) -> Replacement:
        """An if with an else that records being entered, or raises because nothing is known of it."""
        branch = self.body.passes[original]
        guard = self.guards.get(place(branch.span))
        if not isinstance(new, cst.If) or (guard is None and not self.reach):
            return new
        line = self.guarded(guard) if guard is not None else reached(branch.index)
        return new.with_changes(orelse=cst.Else(cst.IndentedBlock([line])))

    def rest(self, original: cst.CSTNode, new: Replacement) -> Replacement:
        """A line behind a statement that may leave the suite: what `branch` does, line by line."""
        start = place(self.body.span(original))[:2]
        for branch in self.body.rests[original]:
            is_first = place(branch.span)[:2] == start
            guard = self.guards.get(place(branch.span))
            if guard is not None and not is_first:
                return cst.RemoveFromParent()
            if guard is not None:
                blank = [line for line in getattr(original, "leading_lines", ()) if line.comment is None]
                return self.guarded(guard).with_changes(leading_lines=blank)
            if self.reach and is_first:
                lines = new if isinstance(new, cst.FlattenSentinel) else [new]
                new = cst.FlattenSentinel([reached(branch.index), *lines])
        return new

    def unseen_side(self, side: Expression) -> cst.BaseExpression:
        """The call that raises in place of a side of an expression that was not observed."""
        self.left_out(self.guards[place(side.span)])
        text = ast.unparse(parsed_expression(side.text))
        return cst.Call(cst.Name(self.words.unseen), [cst.Arg(cst.SimpleString(string(text)))])

    def left_out(self, guard: Guard) -> None:
        """Take note that nothing in a guarded place is emitted."""
        self.used |= {
            (kind, where)
            for kind, table in (("after", self.after), ("wrap", self.wrap), (ADDED, self.added))
            for where in table
            if inside(where, place(guard.span))
        }

    def guarded(self, guard: Guard) -> cst.BaseStatement:
        """The error in place of lines that were not observed: nothing in them is emitted."""
        self.left_out(guard)
        what = guard.condition if "`" in guard.condition else f"`{guard.condition}`"
        text = f"{what} was not reached by the inputs this code was proved with"
        return cst.parse_statement(f"raise NotImplementedError({text!r})")


def reached(index: int) -> cst.BaseStatement:
    """The line that records that a branch was run, or a function entered."""
    return cst.parse_statement(f"{RECORDER}.reach({index})")


def name_node(name: str) -> cst.Name:
    """A name as a node."""
    return cst.Name(name)


def call_on(source: str, value: cst.BaseExpression, at: int = 0) -> cst.Call:
    """The call that is `source`, with a node in place of its argument number `at`."""
    call = cst.parse_expression(source)
    assert isinstance(call, cst.Call)
    args = list(call.args)
    args[at] = args[at].with_changes(value=value)
    return call.with_changes(args=args)


def wrap_call(
    function: str, value: cst.BaseExpression, axis: str, gathered: int | None = None
) -> cst.BaseExpression:
    """``function(value, axis_name=axis)`` around a node, its comments and layout kept.

    `gathered` is the axis along which ``all_gather`` puts the shares together.
    """
    axis_argument = cst.Arg(
        cst.parse_expression(axis),
        keyword=cst.Name("axis_name"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    call = cst.Call(cst.parse_expression(function), [cst.Arg(parenthesized(value)), axis_argument])
    if gathered is None:
        return call
    rest = cst.parse_expression(f"f(axis={gathered}, tiled=True)")
    assert isinstance(rest, cst.Call)
    return call.with_changes(args=[*call.args, *rest.args])


def enclosed(value: cst.BaseExpression) -> cst.BaseExpression:
    """An expression in parentheses."""
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def parenthesized(value: cst.BaseExpression) -> cst.BaseExpression:
    """A bare tuple in parentheses, so that it stays one argument."""
    return enclosed(value) if isinstance(value, cst.Tuple) and not value.lpar else value


def with_argument(call: cst.Call, name: str, value: str) -> cst.Call:
    """``norm(x, axis_name=AXIS)`` of ``norm(x)``, or of ``norm(x, axis_name=None)``."""
    given = cst.parse_expression(f"f({name}={value})")
    assert isinstance(given, cst.Call)
    (argument,) = given.args
    args = list(call.args)
    for at, each in enumerate(args):
        if each.keyword is not None and each.keyword.value == name:
            args[at] = each.with_changes(value=argument.value)
            return call.with_changes(args=args)
    last = args[-1].comma if args else cst.MaybeSentinel.DEFAULT
    args[-1:] = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in args[-1:]]
    return call.with_changes(args=[*args, argument.with_changes(comma=last)])


def rebuild(value: str, syncs: Sequence[Sync], collective: Callable[[str, str], str]) -> str:
    """Source that makes `value` again with some of its leaves synced.

    ``{**metrics, 'n': jax.lax.psum(metrics['n'], axis_name=AXIS)}`` for a dict.
    """
    ops = {path: sync.op for sync in syncs for path in sync.paths}
    containers: Mapping[str, str] = {path: kind for sync in syncs for path, kind in sync.containers}

    def build(prefix: str) -> str:
        if prefix in ops:
            return collective(ops[prefix], value + prefix)
        below = [path for path in ops if path.startswith(prefix)]
        if not below:
            return value + prefix
        tokens = list(dict.fromkeys(token.group() for p in below if (token := STEP.match(p, len(prefix)))))
        kind, _, size = containers[prefix].partition(" ")
        kind, *names = kind.split(".")
        if kind == "dict":
            items = ", ".join(f"{token[1:-1]}: {build(prefix + token)}" for token in tokens)
            return f"{{**{value}{prefix}, {items}}}"
        if kind == "namedtuple":
            fields = ", ".join(f"{token[1:]}={build(prefix + token)}" for token in tokens)
            return f"{value}{prefix}._replace({fields})"
        if kind == "dataclass":
            fields = ", ".join(f"{name}={build(f'{prefix}.{name}')}" for name in names)
            return f"type({value}{prefix})({fields})"
        items = ", ".join(build(f"{prefix}[{i}]") for i in range(int(size)))
        if kind == "tuple":
            return f"({items}{',' if size == '1' else ''})"
        return f"[{items}]"

    return build("")


def lines_of_body(function: cst.FunctionDef) -> tuple[cst.IndentedBlock, int]:
    """The body of a function as a block of lines, and which of these is the first behind its docstring."""
    suite: cst.BaseSuite = function.body
    if isinstance(suite, cst.SimpleStatementSuite):
        suite = cst.IndentedBlock([cst.SimpleStatementLine([each]) for each in suite.body])
    assert isinstance(suite, cst.IndentedBlock)
    return suite, 0 if function.get_docstring() is None else 1


def with_first(function: cst.FunctionDef, statement: str) -> cst.FunctionDef:
    """The function with a statement ahead of all others, behind its docstring."""
    suite, first = lines_of_body(function)
    lines = [*suite.body[:first], cst.parse_statement(statement), *suite.body[first:]]
    return function.with_changes(body=suite.with_changes(body=lines))


class _Substituted(cst.CSTTransformer):
    """Puts expressions in the places of names."""

    def __init__(self, nodes: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self.nodes = nodes

    def leave_Name(self, original: cst.Name, updated: cst.Name) -> cst.BaseExpression:  # noqa: N802
        """The expression, as one operand."""
        node = self.nodes.get(original.value)
        if node is None:
            return updated
        if isinstance(node, cst.Name | cst.Attribute | cst.Subscript | cst.Call) or node.lpar:
            return node
        return enclosed(node)


Code = TypeVar("Code", bound=cst.CSTNode)


class _Renamed(cst.CSTTransformer):
    """Puts other names for what code reads."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self.names = names

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """The node with another name in it."""
        return other_name(original, updated, self.names)


def other_name(original: cst.CSTNode, updated: cst.CSTNode, names: Mapping[str, str]) -> cst.CSTNode:
    """A node as one of `names`: attributes, keywords and what is imported stay as they were."""
    if isinstance(original, cst.Name):
        new = names.get(original.value)
        return updated if new is None else updated.with_changes(value=new)
    if isinstance(original, cst.Attribute):
        return updated.with_changes(attr=original.attr)
    if isinstance(original, cst.Arg):
        return updated.with_changes(keyword=original.keyword)
    return original if isinstance(original, cst.Import | cst.ImportFrom) else updated


def aliased(expression: str, names: Mapping[str, str]) -> str:
    """Source of an expression with other names for what it reads."""
    if not names or not expression:
        return expression
    made = renamed(cst.parse_expression(expression), names)
    return source_of(made)


def source_of(node: cst.CSTNode) -> str:
    """Source of a node that stands in no module."""
    return cst.Module([]).code_for_node(node)


def renamed(code: Code, names: Mapping[str, str]) -> Code:
    """A function or an expression with other names for what it reads; a function, for itself too."""
    made = code.visit(_Renamed(names))
    assert isinstance(made, type(code))
    return made


def inside_of(body: Body, placed: Sequence[Placed]) -> list[Placed]:
    """The syncs, or guards, that stand in one body."""
    own, whole = body.text.shown_path, place(body.scope.span)
    return [each for each in placed if each.span.file == own and inside(place(each.span), whole)]
