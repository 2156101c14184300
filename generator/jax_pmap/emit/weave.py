"""Put collectives, taps and guards into a function's body, leaving everything else as written.

What is observed and what is emitted go through the same transformer, so the collectives that
were seen to work are the ones that are written out. Places are known by their position in the
user's file; a `Sync` from a saved plan finds its node again by its span.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Expression:
    """A subexpression of a statement, in the function's own scope."""

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


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple statement of the function's own scope."""

    index: int
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
    """A suite that may not be entered."""

    index: int
    span: Span
    condition: str
    #: True when there is nothing in it but ``raise``, ``pass`` or ``assert``.
    harmless: bool


class Body:
    """The body of one function, with a number for every place that can be tapped or synced."""

    def __init__(self, text: FunctionText) -> None:
        wrapper = MetadataWrapper(cst.parse_module(text.text))
        self.text = text
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        function = self.module.body[0]
        assert isinstance(function, cst.FunctionDef)
        self.function = function
        self.statements: list[Statement] = []
        self.expressions: list[Expression] = []
        self.branches: list[Branch] = []
        self._statement_nodes: dict[cst.CSTNode, Statement] = {}
        self._expression_nodes: dict[cst.CSTNode, Expression] = {}
        self._branch_nodes: dict[cst.CSTNode, Branch] = {}
        self._points = 0
        self.local_names = frozenset(local_names(function))
        self._suite(function.body)

    # -- places ----------------------------------------------------------------------------

    def _next_point(self) -> int:
        self._points += 1
        return self._points

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

    def _suite(self, suite: cst.BaseSuite | cst.CSTNode) -> None:
        lines = suite.body if isinstance(suite, cst.IndentedBlock) else [suite]
        block, order = id(suite), 0
        for line in lines:
            if isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite):
                for small in line.body:
                    self._statement(small, block, order)
                    order += 1
            elif not isinstance(line, SCOPES):
                self._compound(line)
                order += 1
            else:
                order += 1

    def _compound(self, node: cst.CSTNode) -> None:
        """An if, loop, with, try or match: its own expressions, then its suites."""
        for child in node.children:
            if isinstance(child, cst.BaseSuite):
                if isinstance(
                    node, cst.If | cst.Else | cst.For | cst.While | cst.ExceptHandler | cst.MatchCase
                ):
                    branch = Branch(
                        len(self.branches), self.span(child), self._condition(node), harmless(child)
                    )
                    self.branches.append(branch)
                    self._branch_nodes[child] = branch
                self._suite(child)
            elif isinstance(child, cst.If | cst.Else | cst.ExceptHandler | cst.Finally | cst.MatchCase):
                self._compound(child)
            elif isinstance(child, cst.BaseExpression) and not (
                isinstance(node, cst.For) and child is node.target
            ):
                self._header(child)
            elif isinstance(child, cst.WithItem):
                self._header(child.item)

    def _condition(self, node: cst.CSTNode) -> str:
        if isinstance(node, cst.If | cst.While):
            word = "if" if isinstance(node, cst.If) else "while"
            return f"{word} {self.code(node.test)}"
        if isinstance(node, cst.For):
            return f"for {self.code(node.target)} in {self.code(node.iter)}"
        return {cst.Else: "else", cst.ExceptHandler: "except"}.get(type(node), "case")

    def _header(self, node: cst.BaseExpression) -> None:
        """The test of an if, the iterable of a loop: expressions without a statement of their own."""
        statement = Statement(len(self.statements), "other", self.span(node), (), None, names_in(node), 0, 0)
        self.statements.append(statement)
        self._walk(node, statement.index, None)

    def _statement(self, node: cst.BaseSmallStatement, block: int, order: int) -> None:
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
        index = len(self.statements)
        points = tuple((name, self._next_point()) for name in dict.fromkeys(names))
        # Reserve the place, so that the numbers of a statement's expressions follow it.
        self.statements.append(
            Statement(index, kind, self.span(node), points, None, frozenset(), block, order)
        )
        first = self._walk(value, index, None) if value is not None else None
        reads = names_in(value) if value is not None else names_in(node)
        if isinstance(node, cst.AugAssign):
            reads |= frozenset(names)
        top = self._expression_nodes.get(value) if value is not None else None
        statement = Statement(
            index, kind, self.span(node), points, top.point if top else first, reads, block, order
        )
        self.statements[index] = statement
        self._statement_nodes[node] = statement

    def _walk(self, node: cst.CSTNode, statement: int, parent: int | None) -> int | None:
        """Number the expressions at and below `node`; the point of `node` itself, if it has one."""
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
                isinstance(node, cst.Call),
                isinstance(node, cst.Tuple | cst.List | cst.Dict),
            )
            self.expressions.append(expression)
            self._expression_nodes[node] = expression
        inner = point if point is not None else parent
        if isinstance(node, cst.Call):
            # The callee is no value of its own; what a method is called on is.
            if isinstance(node.func, cst.Attribute):
                self._walk(node.func.value, statement, inner)
            elif isinstance(node.func, cst.Call):
                for argument in node.func.args:
                    self._walk(argument.value, statement, inner)
            for argument in node.args:
                self._walk(argument.value, statement, inner)
        elif isinstance(node, cst.Attribute):
            self._walk(node.value, statement, inner)
        elif isinstance(node, cst.GeneratorExp | cst.ListComp | cst.SetComp):
            self._walk(node.for_in.iter, statement, inner)
            self._walk(node.elt, statement, inner)
        else:
            for child in node.children:
                self._walk(child, statement, inner)
        return point

    # -- weaving ---------------------------------------------------------------------------

    def weave(
        self,
        syncs: Sequence[Sync] = (),
        guards: Sequence[Guard] = (),
        axis: str = "AXIS",
        taps: Iterable[int] = (),
        reach: bool = False,
        result: str = "result",
    ) -> cst.FunctionDef:
        """The function with collectives after statements and around expressions.

        `axis` is the source of the axis name; `taps` are points to record; with `reach`, entered
        branches are recorded too; `result` names the result where it must be taken apart.
        """
        editor = Editor(self, syncs, guards, axis, frozenset(taps), reach, result)
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


class Editor(cst.CSTTransformer):
    """One pass over the function that makes every change at once."""

    def __init__(
        self,
        body: Body,
        syncs: Sequence[Sync],
        guards: Sequence[Guard],
        axis: str,
        taps: frozenset[int],
        reach: bool,
        result: str,
    ) -> None:
        super().__init__()
        self.body, self.axis, self.taps, self.reach, self.result = body, axis, taps, reach, result
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
        expression = self.body._expression_nodes.get(original)
        if expression is not None and isinstance(updated, cst.BaseExpression):
            where = place(expression.span)
            sync = self.wrap.get(where)
            if sync is not None and ("wrap", where) not in self.used and sync.value == expression.text:
                self.used.add(("wrap", where))
                updated = wrap_call(f"jax.lax.{sync.op}", updated, self.axis)
            if expression.point in self.taps:
                updated = self.tap(expression.point, updated)
        return updated

    def line(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """A line of simple statements with collectives and taps behind it."""
        assert isinstance(original, cst.SimpleStatementLine | cst.SimpleStatementSuite)
        assert isinstance(updated, cst.SimpleStatementLine | cst.SimpleStatementSuite)
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
                if statement.kind == "return":
                    value = smalls[number]
                    assert isinstance(value, cst.Return) and value.value is not None
                    smalls[number] = cst.Assign([cst.AssignTarget(cst.Name(self.result))], value.value)
                    extra += self.assignments(syncs)
                    extra.append(f"return {self.result}")
                else:
                    extra += self.assignments(syncs)
            extra += [
                f"{RECORDER}.tap({point}, {name})" for name, point in statement.names if point in self.taps
            ]
        if not extra:
            return updated
        after = [cst.parse_statement(text, self.body.module.config_for_parsing) for text in extra]
        if isinstance(updated, cst.SimpleStatementSuite):
            return cst.IndentedBlock([cst.SimpleStatementLine(smalls), *after])
        return cst.FlattenSentinel([updated.with_changes(body=smalls), *after])  # type: ignore[return-value]

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
        self.depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self.depth += 1
        return self.depth == 1

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

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
    """Parameters and names bound in the function's own scope."""
    visitor = _Bindings()
    function.visit(visitor)
    return visitor.names
