"""Every place in a function's body that can be tapped or synced, known by a number and by its span."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from jax_pmap.model import Span
from jax_pmap.reading.text import FunctionText

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
    #: Source of the test that decides whether this side of a conditional expression is taken.
    side_of: str | None
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
        self.statement_nodes: dict[cst.CSTNode, Statement] = {}
        self.expression_nodes: dict[cst.CSTNode, Expression] = {}
        self.branch_nodes: dict[cst.CSTNode, Branch] = {}
        self.scope_nodes: dict[cst.CSTNode, Scope] = {}
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
        self.scope_nodes[node] = scope
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
                    self.branch_nodes[child] = branch
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
        self.statement_nodes[node] = statement

    def _walk(
        self, node: cst.CSTNode, statement: int, parent: int | None, test: bool, side_of: str | None = None
    ) -> int | None:
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
                side_of=side_of,
                in_test=test,
            )
            self.expressions.append(expression)
            self.expression_nodes[node] = expression
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
            self._walk(node.body, statement, inner, test, self.code(node.test))
            self._walk(node.orelse, statement, inner, test, self.code(node.test))
        else:
            for child in node.children:
                self._walk(child, statement, inner, test)
        return point

    # -- source ----------------------------------------------------------------------------

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
