"""Put collectives, taps and guards into a function's body, leaving everything else as written.

What is observed and what is emitted go through the same transformer, so the collectives that
were seen to work are the ones that are written out. Places are known by their position in the
user's file; a `Sync` from a saved plan finds its node again by its span.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from jax_pmap.model import Guard, Span, Sync
from jax_pmap.reading.text import FunctionText

RECORDER = "__jax_pmap__"

#: Expressions worth a look of their own.
TAPPED = (
    cst.Call,
    cst.BinaryOperation,
    cst.UnaryOperation,
    cst.BooleanOperation,
    cst.Comparison,
    cst.IfExp,
    cst.Subscript,
    cst.Attribute,
    cst.Name,
    cst.Tuple,
    cst.List,
    cst.Dict,
)
SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)
#: Statements with suites that may not be entered.
BRANCHING = (cst.If, cst.Else, cst.For, cst.While, cst.ExceptHandler, cst.MatchCase)


@dataclass(frozen=True, slots=True)
class Expression:
    """A subexpression of a statement."""

    point: int
    statement: int
    #: Point of the smallest expression around it, None at the top of the statement.
    parent: int | None
    span: Span
    text: str
    #: True for a call, whose result may couple examples.
    is_call: bool
    #: True for a tuple, list or dict display.
    is_display: bool
    #: True where a mean or sum of its parts is the mean or sum of it: + - * / and displays.
    is_linear: bool
    #: True for what decides which way Python goes: the test of an if, a while or an assert.
    in_test: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """A function whose statements are known: the target itself, one nested in it, or a lambda."""

    index: int
    #: Empty for a lambda.
    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple statement, or the expression of a lambda."""

    index: int
    #: Index of the `Scope` it belongs to.
    scope: int
    kind: str  # "assign", "return" or "other"
    span: Span
    #: Point of each name it binds, in order.
    names: tuple[tuple[str, int], ...]
    #: Point of the value: the returned expression, or the assigned one.
    value: int | None
    #: Names it reads, also inside nested functions.
    reads: frozenset[str]
    #: Identity of the suite it stands in and its place there.
    block: int
    order: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A suite of the function's own scope that may not be entered."""

    index: int
    span: Span
    condition: str
    #: True when there is nothing in it but ``raise``, ``pass`` or ``assert``.
    harmless: bool


class Body:
    """The body of one function, with a number for every place that can be tapped or synced.

    `numbers` gives the numbers of points, statements and scopes; bodies that are observed
    together share it, so that no two places have the same.
    """

    def __init__(self, text: FunctionText, numbers: Iterator[int] | None = None) -> None:
        wrapper = MetadataWrapper(cst.parse_module(text.text))
        self.text = text
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        function = self.module.body[0]
        assert isinstance(function, cst.FunctionDef)
        self.function = function
        self.statements: dict[int, Statement] = {}
        self.expressions: list[Expression] = []
        self.branches: list[Branch] = []
        self.scopes: dict[int, Scope] = {}
        self._statement_nodes: dict[cst.CSTNode, Statement] = {}
        self._expression_nodes: dict[cst.CSTNode, Expression] = {}
        self._branch_nodes: dict[cst.CSTNode, Branch] = {}
        self._scope_nodes: dict[cst.CSTNode, Scope] = {}
        self.numbers = itertools.count(1) if numbers is None else numbers
        self.local_names = frozenset(local_names(function))
        self.scope = self._open(function, function.name.value)
        self._suite(function.body, self.scope.index)

    # -- places ----------------------------------------------------------------------------

    def _next_point(self) -> int:
        return next(self.numbers)

    def _open(self, node: cst.CSTNode, name: str) -> Scope:
        scope = Scope(next(self.numbers), name, self.span(node))
        self.scopes[scope.index] = scope
        self._scope_nodes[node] = scope
        return scope

    def span(self, node: cst.CSTNode) -> Span:
        """Where `node` stands in the user's file."""
        where = self._positions[node]
        assert isinstance(where, CodeRange)
        line, indent = self.text.line - 1, self.text.indent
        return Span(
            self.text.shown_path,
            where.start.line + line,
            where.start.column + indent,
            where.end.line + line,
            where.end.column + indent,
        )

    def code(self, node: cst.CSTNode) -> str:
        """Source of `node` as written."""
        return self.module.code_for_node(node).strip()

    def _suite(self, suite: cst.CSTNode, scope: int) -> None:
        lines = suite.body if isinstance(suite, cst.IndentedBlock) else [suite]
        block = id(suite)
        for order, line in enumerate(lines):
            if isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite):
                for number, small in enumerate(line.body):
                    self._statement(small, scope, block, order * 100 + number)
            elif isinstance(line, cst.FunctionDef):
                inner = self._open(line, line.name.value)
                self._suite(line.body, inner.index)
            elif not isinstance(line, SCOPES):
                self._compound(line, scope)

    def _compound(self, node: cst.CSTNode, scope: int) -> None:
        """An if, loop, with, try or match: its own expressions, then its suites."""
        for child in node.children:
            if isinstance(child, cst.BaseSuite):
                # Whether a nested function's branches are taken is not followed.
                if scope == self.scope.index and isinstance(node, BRANCHING):
                    branch = Branch(
                        len(self.branches), self.span(child), self._condition(node), harmless(child)
                    )
                    self.branches.append(branch)
                    self._branch_nodes[child] = branch
                self._suite(child, scope)
            elif isinstance(child, cst.If | cst.Else | cst.ExceptHandler | cst.Finally | cst.MatchCase):
                self._compound(child, scope)
            elif isinstance(child, cst.BaseExpression) and not (
                isinstance(node, cst.For) and child is node.target
            ):
                self._alone(child, "test" if isinstance(node, cst.If | cst.While) else "other", scope)
            elif isinstance(child, cst.WithItem):
                self._alone(child.item, "other", scope)

    def _condition(self, node: cst.CSTNode) -> str:
        if isinstance(node, cst.If | cst.While):
            word = "if" if isinstance(node, cst.If) else "while"
            return f"{word} {self.code(node.test)}"
        if isinstance(node, cst.For):
            return f"for {self.code(node.target)} in {self.code(node.iter)}"
        return {cst.Else: "else", cst.ExceptHandler: "except"}.get(type(node), "case")

    def _alone(self, node: cst.BaseExpression, kind: str, scope: int) -> Statement:
        """An expression without a statement of its own: the test of an if, the body of a lambda."""
        index = next(self.numbers)
        blank = Statement(index, scope, kind, self.span(node), (), None, names_in(node), id(node), 0)
        self.statements[index] = blank
        value = self._walk(node, index, None, kind == "test")
        statement = replace(blank, value=value)
        self.statements[index] = statement
        return statement

    def _statement(self, node: cst.BaseSmallStatement, scope: int, block: int, order: int) -> None:
        kind, value, names = "other", None, []
        if isinstance(node, cst.Assign):
            kind, value = "assign", node.value
            names = [name for target in node.targets for name in bound_names(target.target)]
        elif isinstance(node, cst.AnnAssign | cst.AugAssign) and node.value is not None:
            kind, value, names = "assign", node.value, bound_names(node.target)
        elif isinstance(node, cst.Return):
            kind, value = "return", node.value
        elif isinstance(node, cst.Expr):
            value = node.value
        elif isinstance(node, cst.Assert):
            kind, value = "test", node.test
        index = next(self.numbers)
        points = tuple((name, self._next_point()) for name in dict.fromkeys(names))
        reads = names_in(value) if value is not None else names_in(node)
        if isinstance(node, cst.AugAssign):
            reads |= frozenset(names)
        blank = Statement(index, scope, kind, self.span(node), points, None, reads, block, order)
        self.statements[index] = blank
        point = self._walk(value, index, None, kind == "test") if value is not None else None
        statement = replace(blank, value=point)
        self.statements[index] = statement
        self._statement_nodes[node] = statement

    def _walk(self, node: cst.CSTNode, statement: int, parent: int | None, test: bool) -> int | None:
        """Number the expressions at and below `node`; the point of `node` itself, if it has one."""
        if isinstance(node, cst.Lambda):
            self._alone(node.body, "return", self._open(node, "").index)
            return None
        if isinstance(node, (*SCOPES, cst.FormattedString, cst.Annotation, cst.NamedExpr, cst.CompFor)):
            return None
        point = None
        wanted = isinstance(node, TAPPED)
        if isinstance(node, cst.Name):
            wanted = node.value in self.local_names
        elif isinstance(node, cst.Attribute):
            wanted = root_name(node) in self.local_names
        if wanted:
            point = self._next_point()
            expression = Expression(
                point,
                statement,
                parent,
                self.span(node),
                self.code(node),
                is_call=isinstance(node, cst.Call),
                is_display=isinstance(node, cst.Tuple | cst.List | cst.Dict),
                is_linear=is_linear(node),
                in_test=test,
            )
            self.expressions.append(expression)
            self._expression_nodes[node] = expression
        inner = point if point is not None else parent
        if isinstance(node, cst.Call):
            # The callee is no value of its own; what a method is called on is.
            if isinstance(node.func, cst.Attribute):
                self._walk(node.func.value, statement, inner, test)
            elif isinstance(node.func, cst.Call):
                for argument in node.func.args:
                    self._walk(argument.value, statement, inner, test)
            elif isinstance(node.func, cst.Lambda):
                self._walk(node.func, statement, inner, test)
            for argument in node.args:
                self._walk(argument.value, statement, inner, test)
        elif isinstance(node, cst.Attribute):
            self._walk(node.value, statement, inner, test)
        elif isinstance(node, cst.GeneratorExp | cst.ListComp | cst.SetComp):
            self._walk(node.for_in.iter, statement, inner, test)
            self._walk(node.elt, statement, inner, test)
        elif isinstance(node, cst.IfExp):
            self._walk(node.test, statement, inner, True)
            self._walk(node.body, statement, inner, test)
            self._walk(node.orelse, statement, inner, test)
        else:
            for child in node.children:
                self._walk(child, statement, inner, test)
        return point

    # -- weaving ---------------------------------------------------------------------------

    def weave(
        self,
        syncs: Sequence[Sync] = (),
        guards: Sequence[Guard] = (),
        axis: str = "AXIS",
        taps: Iterable[int] = (),
        probes: Sequence[Probe] = (),
        reach: bool = False,
        result: str = "result",
    ) -> cst.FunctionDef:
        """The function with collectives after statements and around expressions.

        `axis` is the source of the axis name; `taps` are points to record; `probes` are inner
        functions to run for their taps before they are called; with `reach`, entered branches are
        recorded too; `result` names the result where it must be taken apart.
        """
        editor = Editor(self, syncs, guards, axis, frozenset(taps), probes, reach, result, self.scope.index)
        woven = self.module.visit(editor)
        function = woven.body[0]
        assert isinstance(function, cst.FunctionDef)
        missing = editor.unplaced()
        if missing:
            raise LookupError(f"no place at {missing[0].span} for {missing[0].op} of {missing[0].value}")
        return function

    def definition(self, function: cst.FunctionDef) -> str:
        """Source of a woven definition."""
        return self.module.with_changes(body=[function], header=(), footer=()).code

    def body_source(self, function: cst.FunctionDef) -> str:
        """Source of a woven body, dedented, without its docstring; comments kept."""
        suite = function.body
        if isinstance(suite, cst.SimpleStatementSuite):
            lines: Sequence[cst.BaseStatement] = [cst.SimpleStatementLine(suite.body)]
            footer: Sequence[cst.EmptyLine] = ()
        else:
            assert isinstance(suite, cst.IndentedBlock)
            lines, footer = suite.body, suite.footer
        if function.get_docstring() is not None:
            first = lines[0]
            assert isinstance(first, cst.SimpleStatementLine)
            lines = (
                [first.with_changes(body=first.body[1:]), *lines[1:]] if len(first.body) > 1 else lines[1:]
            )
        return self.module.with_changes(body=lines, header=(), footer=footer).code


@dataclass(frozen=True, slots=True)
class Probe:
    """A call whose function is looked into: it is run once, tapped, before the call itself.

    So the values inside a differentiated function are seen as they are, not as tracers of grad.
    """

    #: Point of the call expression.
    call: int
    #: Scope of the function it calls.
    scope: int


def probe_name(scope: int) -> str:
    """What the tapped copy of an inner function is called."""
    return f"__jax_pmap_probe_{scope}"


class Editor(cst.CSTTransformer):
    """One pass over the function that makes every change at once."""

    def __init__(
        self,
        body: Body,
        syncs: Sequence[Sync],
        guards: Sequence[Guard],
        axis: str,
        taps: frozenset[int],
        probes: Sequence[Probe],
        reach: bool,
        result: str,
        scope: int,
    ) -> None:
        super().__init__()
        self.body, self.axis, self.taps, self.reach, self.result = body, axis, taps, reach, result
        self.syncs, self.probes = syncs, probes
        #: The scope that is tapped; collectives go into all of them.
        self.scope = scope
        self.after: dict[tuple[int, int, int, int], list[Sync]] = {}
        self.wrap: dict[tuple[int, int, int, int], Sync] = {}
        for sync in syncs:
            if sync.where == "after":
                self.after.setdefault(place(sync.span), []).append(sync)
            else:
                self.wrap[place(sync.span)] = sync
        self.guards = {place(guard.span): guard for guard in guards}
        self.used: set[tuple[str, tuple[int, int, int, int]]] = set()

    def unplaced(self) -> list[Sync]:
        """Syncs whose span matched nothing."""
        return [
            *(s for where, syncs in self.after.items() if ("after", where) not in self.used for s in syncs),
            *(s for where, s in self.wrap.items() if ("wrap", where) not in self.used),
        ]

    def collective(self, op: str, value: str) -> str:
        """Source of a collective over the axis."""
        return f"jax.lax.{op}({value}, axis_name={self.axis})"

    def tap(self, point: int, value: cst.BaseExpression) -> cst.BaseExpression:
        """``__jax_pmap__.tap(point, value)``."""
        value = parenthesized(value)
        return cst.Call(
            cst.Attribute(cst.Name(RECORDER), cst.Name("tap")),
            [cst.Arg(cst.Integer(str(point))), cst.Arg(value)],
        )

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """Expressions are wrapped and tapped, lines get their followers, suites their guards."""
        if isinstance(original, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            updated = self.line(original, updated)
        if original in self.body._branch_nodes:
            return self.branch(original, updated)
        if isinstance(original, cst.FunctionDef) and original is not self.body.function:
            return self.nested(original, updated)
        expression = self.body._expression_nodes.get(original)
        if expression is not None and isinstance(updated, cst.BaseExpression):
            where = place(expression.span)
            sync = self.wrap.get(where)
            if sync is not None and sync.value == expression.text:
                self.used.add(("wrap", where))
                updated = wrap_call(f"jax.lax.{sync.op}", updated, self.axis)
            if expression.point in self.taps and self.tapped(expression.statement):
                updated = self.tap(expression.point, updated)
        return updated

    def tapped(self, statement: int) -> bool:
        """Whether a statement belongs to the scope that is tapped."""
        return self.body.statements[statement].scope == self.scope

    def inner(self, scope: int) -> Editor:
        """The same editor for an inner function's own statements."""
        return Editor(
            self.body, self.syncs, (), self.axis, self.taps, self.probes, False, self.result, scope
        )

    def nested(self, original: cst.FunctionDef, updated: cst.CSTNode) -> cst.CSTNode:
        """A nested function, and behind it the tapped copy that probes call."""
        scope = self.body._scope_nodes.get(original)
        if scope is None or not any(probe.scope == scope.index for probe in self.probes):
            return updated
        editor = self.inner(scope.index)
        suite = original.body.visit(editor)
        copy = original.with_changes(name=cst.Name(probe_name(scope.index)), body=suite, decorators=())
        return cst.FlattenSentinel([updated, copy])  # type: ignore[return-value]

    def probe_calls(self, statement: Statement) -> list[cst.BaseStatement]:
        """Calls of inner functions for their taps, with the arguments they are about to get."""
        out: list[cst.BaseStatement] = []
        for probe in self.probes:
            node = next((n for n, e in self.body._expression_nodes.items() if e.point == probe.call), None)
            if node is None or self.body._expression_nodes[node].statement != statement.index:
                continue
            assert isinstance(node, cst.Call)
            lambdas = [n for n, scope in self.body._scope_nodes.items() if scope.index == probe.scope]
            callee: cst.BaseExpression = cst.Name(probe_name(probe.scope))
            if lambdas and isinstance(lambdas[0], cst.Lambda):
                # A lambda is written where it is used, so its tapped copy can be called in place.
                body = lambdas[0].body.visit(self.inner(probe.scope))
                callee = lambdas[0].with_changes(body=body, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            out.append(cst.SimpleStatementLine([cst.Expr(cst.Call(callee, node.args))]))
        return out

    def line(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """A line of simple statements with collectives and taps behind it."""
        assert isinstance(original, cst.SimpleStatementLine | cst.SimpleStatementSuite)
        assert isinstance(updated, cst.SimpleStatementLine | cst.SimpleStatementSuite)
        before: list[cst.BaseStatement] = []
        extra: list[str] = []
        smalls = list(updated.body)
        for number, small in enumerate(original.body):
            statement = self.body._statement_nodes.get(small)
            if statement is None:
                continue
            where = place(statement.span)
            syncs = self.after.get(where, [])
            if syncs:
                self.used.add(("after", where))
                extra += self.assignments(syncs)
                if statement.kind == "return":
                    value = smalls[number]
                    assert isinstance(value, cst.Return) and value.value is not None
                    smalls[number] = cst.Assign([cst.AssignTarget(cst.Name(self.result))], value.value)
                    extra.append(f"return {self.result}")
            if statement.scope == self.scope:
                before += self.probe_calls(statement)
                extra += [
                    f"{RECORDER}.tap({point}, {name})" for name, point in statement.names if point in self.taps
                ]
        if not extra and not before:
            return updated
        after = [cst.parse_statement(text, self.body.module.config_for_parsing) for text in extra]
        if isinstance(updated, cst.SimpleStatementSuite):
            return cst.IndentedBlock([*before, cst.SimpleStatementLine(smalls), *after])
        return cst.FlattenSentinel([*before, updated.with_changes(body=smalls), *after])  # type: ignore[return-value]

    def assignments(self, syncs: Sequence[Sync]) -> list[str]:
        """``loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)`` and its like."""
        lines = []
        by_op: dict[str, list[str]] = {}
        parts: dict[str, list[Sync]] = {}
        for sync in syncs:
            if sync.paths == ("",):
                by_op.setdefault(sync.op, []).append(sync.value)
            else:
                parts.setdefault(sync.value, []).append(sync)
        for op, values in by_op.items():
            names = ", ".join(values)
            lines.append(f"{names} = {self.collective(op, f'({names})' if len(values) > 1 else names)}")
        for value, leaves in parts.items():
            lines.append(f"{value} = {rebuild(value, leaves, self.collective)}")
        return lines

    def branch(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """A suite that records being entered, or raises because nothing is known of it."""
        branch = self.body._branch_nodes[original]
        suite = updated
        if isinstance(suite, cst.SimpleStatementSuite):
            suite = cst.IndentedBlock([cst.SimpleStatementLine(suite.body)])
        assert isinstance(suite, cst.IndentedBlock)
        guard = self.guards.get(place(branch.span))
        if guard is not None:
            # Nothing in here was observed, so nothing in here is emitted.
            self.used |= {
                (kind, where)
                for kind, table in (("after", self.after), ("wrap", self.wrap))
                for where in table
                if inside(where, place(branch.span))
            }
            text = f"`{guard.condition}` was not reached by the inputs this code was proved with"
            statement = cst.parse_statement(f"raise NotImplementedError({text!r})")
            return cst.IndentedBlock([statement])
        if self.reach:
            return suite.with_changes(
                body=[cst.parse_statement(f"{RECORDER}.reach({branch.index})"), *suite.body]
            )
        return updated


def name_node(name: str) -> cst.Name:
    """A name as a node."""
    return cst.Name(name)


def wrap_call(function: str, value: cst.BaseExpression, axis: str) -> cst.BaseExpression:
    """``function(value, axis_name=axis)`` around a node, its comments and layout kept."""
    axis_argument = cst.Arg(
        cst.parse_expression(axis),
        keyword=cst.Name("axis_name"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    return cst.Call(cst.parse_expression(function), [cst.Arg(parenthesized(value)), axis_argument])


def parenthesized(value: cst.BaseExpression) -> cst.BaseExpression:
    """A bare tuple in parentheses, so that it stays one argument."""
    if isinstance(value, cst.Tuple) and not value.lpar:
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


def is_linear(node: cst.CSTNode) -> bool:
    """Whether partial values in a node make it partial in the same way, whatever their numbers are."""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Add | cst.Subtract | cst.Multiply | cst.Divide)
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus | cst.Plus)
    return isinstance(node, cst.Tuple | cst.List | cst.Dict | cst.Subscript)


def harmless(suite: cst.BaseSuite) -> bool:
    """Whether a suite computes nothing."""
    lines = suite.body if isinstance(suite, cst.IndentedBlock) else [suite]
    return all(
        isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite)
        and all(isinstance(small, cst.Raise | cst.Pass | cst.Assert | cst.Continue) for small in line.body)
        for line in lines
    )


def place(span: Span) -> tuple[int, int, int, int]:
    """A span without its file, as a key."""
    return span.line, span.column, span.end_line, span.end_column


def inside(inner: tuple[int, int, int, int], outer: tuple[int, int, int, int]) -> bool:
    """Whether one place lies within another."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


TOKEN = re.compile(r"\[(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]]*)\]|\.\w+")


def rebuild(value: str, syncs: Sequence[Sync], collective: object) -> str:
    """Source that makes `value` again with some of its leaves synced.

    ``{**metrics, 'n': jax.lax.psum(metrics['n'], axis_name=AXIS)}`` for a dict.
    """
    ops = {path: sync.op for sync in syncs for path in sync.paths}
    containers: Mapping[str, str] = {path: kind for sync in syncs for path, kind in sync.containers}

    def build(prefix: str) -> str:
        if prefix in ops:
            return collective(ops[prefix], value + prefix)  # type: ignore[operator, no-any-return]
        below = [path for path in ops if path.startswith(prefix)]
        if not below:
            return value + prefix
        tokens = list(dict.fromkeys(token.group() for p in below if (token := TOKEN.match(p, len(prefix)))))
        kind, _, size = containers[prefix].partition(" ")
        if kind == "dict":
            items = ", ".join(f"{token[1:-1]}: {build(prefix + token)}" for token in tokens)
            return f"{{**{value}{prefix}, {items}}}"
        if kind == "namedtuple":
            fields = ", ".join(f"{token[1:]}={build(prefix + token)}" for token in tokens)
            return f"{value}{prefix}._replace({fields})"
        items = ", ".join(build(f"{prefix}[{i}]") for i in range(int(size)))
        if kind == "tuple":
            return f"({items}{',' if size == '1' else ''})"
        return f"[{items}]"

    return build("")


def bound_names(target: cst.CSTNode) -> list[str]:
    """Names a target binds or whose object it changes: ``a, (b, c)``, ``d['k']``, ``e.f``."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in bound_names(element.value)]
    if isinstance(target, cst.Subscript | cst.Attribute):
        root = root_name(target)
        return [root] if root else []
    return []


def root_name(node: cst.CSTNode) -> str | None:
    """``a`` of ``a.b[0].c``."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False


def names_in(node: cst.CSTNode) -> frozenset[str]:
    """Every name in an expression, also inside nested functions."""
    visitor = _Names()
    node.visit(visitor)
    return frozenset(visitor.names)


class _Bindings(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Param(self, node: cst.Param) -> None:
        self.names.add(node.name.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self.names.update(bound_names(node.target))

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self.names.update(bound_names(node.target))

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self.names.update(bound_names(node.target))

    def visit_For(self, node: cst.For) -> None:
        self.names.update(bound_names(node.target))

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self.names.update(bound_names(node.target))

    def visit_AsName(self, node: cst.AsName) -> None:
        self.names.update(bound_names(node.name))

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.names.update(bound_names(node.target))


def local_names(function: cst.FunctionDef) -> set[str]:
    """Parameters and names bound in a function or in the functions nested in it."""
    visitor = _Bindings()
    function.visit(visitor)
    return visitor.names
