"""Every place in a function's body that can be tapped or synced, known by a number and by its span."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from jax_pmap.emit.syntax import (
    accumulated,
    binds_anew,
    bound_names,
    harmless,
    is_check,
    is_constant,
    is_linear,
    is_product,
    is_quotient,
    leaves,
    lines_of,
    local_names,
    names_in,
    never_falls_through,
    root_name,
)
from jax_pmap.model import Span
from jax_pmap.syntax.text import FunctionText, in_one_line
from jax_pmap.worker import scopes
from jax_pmap.worker.scopes import own_nodes, parameters

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
    cst.ListComp,
    cst.DictComp,
)
#: Nodes that are no expressions, or whose parts are not looked at.
UNWALKED = (cst.FunctionDef, cst.ClassDef, cst.FormattedString, cst.Annotation, cst.CompFor)
SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)
#: Functions that are given, first or by this name, one that says which parts of a value are meant.
SELECTING = {"equinox.tree_at": "where"}
#: What asks of its arguments what they are, and not how large.
KINDS = frozenset({"callable", "hasattr", "isinstance", "issubclass", "type"})
#: Statements with suites that may not be entered.
BRANCHING = (
    cst.If,
    cst.Else,
    cst.For,
    cst.While,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.MatchCase,
)
#: Parts of a compound statement that hold suites of their own.
CLAUSES = (cst.If, cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally, cst.MatchCase)


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
    #: What it calls, by its qualified name: ``"jax.nn.softmax"``; ``""`` where that is not known.
    called: str
    #: True for a tuple, list or dict display.
    is_display: bool
    #: True where a mean or sum of its parts is the mean or sum of it: + -, displays and comprehensions.
    is_linear: bool
    #: True for * and /, where that holds for one of the two while the other is whole.
    is_product: bool
    #: True for /, the second of whose parts is what the first is divided by.
    is_quotient: bool
    #: Source of the test that decides whether this is evaluated: a side of a conditional
    #: expression, the right of an ``and`` or ``or``, the element of a comprehension with an ``if``.
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
    #: Those that are given by position or by name.
    parameters: frozenset[str]


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
    #: Identities of the suites it stands in, the innermost first, and its place in that.
    blocks: tuple[int, ...]
    order: int
    #: What it adds to: ``total`` of ``total = total + x`` and ``total += x``, or ``found["n"]``.
    accumulates: str | None = None
    #: Point of each parameter it reads: what it may have changed in place.
    touches: tuple[tuple[str, int], ...] = ()
    #: Whether it puts its value into what its names stand for, and binds none anew: ``found["n"] = x``.
    keeps: bool = False

    @property
    def block(self) -> int:
        """Identity of the innermost suite it stands in."""
        return self.blocks[0]


@dataclass(frozen=True, slots=True)
class Branch:
    """Lines of the function, or of one nested in it, that may not be run.

    They are a suite, or the rest of one behind a compound statement that may leave it; or no lines
    at all, the way past an if that has no else.
    """

    index: int
    #: Index of the `Scope` it belongs to.
    scope: int
    span: Span
    condition: str
    #: True when there is nothing in it but ``raise``, ``pass`` or ``assert``.
    harmless: bool
    #: Of the way past an if, the names its test reads.
    tested: frozenset[str] | None = None
    #: Names that decide whether they are run.
    decided_by: frozenset[str] = frozenset()


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
        #: Names of other scopes that are read inside an expression, and whole numbers that stand in one.
        self.free: list[Expression] = []
        self.branches: list[Branch] = []
        self._blocks: tuple[int, ...] = ()
        self.scopes: dict[int, Scope] = {}
        self.statement_nodes: dict[cst.CSTNode, Statement] = {}
        self.expression_nodes: dict[cst.CSTNode, Expression] = {}
        self.branch_nodes: dict[cst.CSTNode, Branch] = {}
        #: Branches that are the rest of a suite, the outermost first, for every line in them.
        self.rests: dict[cst.CSTNode, list[Branch]] = {}
        #: The way past an if without an else.
        self.passes: dict[cst.CSTNode, Branch] = {}
        #: Statements that can only end in an error: asserts, and ifs that do nothing but raise.
        self.checks: set[int] = set()
        self.scope_nodes: dict[cst.CSTNode, Scope] = {}
        #: Names that a scope's statements may bind anew, by its index; of a lambda none.
        self._own: dict[int, frozenset[str]] = {}
        #: Functions, and names of such, that say which parts of a value are meant, by what these are: nothing
        #: is computed in them, and what is handed on in them with a mark would be no such part.
        self._selectors = {given for call in self._positions for given in self._given_to_select(call)}
        self._selecting = {node.value for node in self._selectors if isinstance(node, cst.Name)}
        #: Names that lambdas are assigned to.
        self.assigned: dict[cst.CSTNode, str] = {}
        self.numbers = itertools.count(1) if numbers is None else numbers
        #: Bodies of other functions with numbers beside these, and numbers of what is no place.
        self._callees: dict[Hashable, Body] = {}
        self._recorded: dict[Hashable, int] = {}
        #: What was made of it, by how.
        self._sources: dict[Hashable, str] = {}
        self.local_names = frozenset(local_names(function))
        self.scope = self._open(function, function.name.value)
        self.parameters = self.scope.parameters
        self._suite(function.body, self.scope.index)

    def callee(self, function: Hashable, text: FunctionText) -> Body:
        """The body of another `function`, whose `text` this is: the same one each time.

        What is woven into it with the same collectives is the same code then, which need not be traced again.
        """
        key = function, text.text, text.line
        if key not in self._callees:
            self._callees[key] = Body(text, self.numbers)
        return self._callees[key]

    @functools.cached_property
    def points(self) -> frozenset[int]:
        """The numbers of all its places that can be tapped."""
        named = {point for s in self.statements.values() for _, point in (*s.names, *s.touches)}
        returned = {s.value for s in self.statements.values() if s.value is not None}
        return frozenset(named | returned | {each.point for each in (*self.expressions, *self.free)})

    def once(self, what: Hashable, make: Callable[[], str]) -> str:
        """The source that is made of it in one way."""
        if what not in self._sources:
            self._sources[what] = make()
        return self._sources[what]

    def recorded(self, what: Hashable) -> int:
        """The number that something is recorded by which is no place of its own: the same one each time."""
        if what not in self._recorded:
            self._recorded[what] = next(self.numbers)
        return self._recorded[what]

    # -- places ----------------------------------------------------------------------------

    def _open(self, node: cst.FunctionDef | cst.Lambda, name: str) -> Scope:
        given = (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)
        names = frozenset(each.name.value for each in given)
        scope = Scope(next(self.numbers), name, self.span(node), names)
        self.scopes[scope.index] = scope
        self.scope_nodes[node] = scope
        if isinstance(node, cst.FunctionDef):
            self._own[scope.index] = _assignable(self.code(node))
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

    def call_at(self, span: Span) -> cst.Call | None:
        """The call that stands at a place."""
        calls = (node for node in self._positions if isinstance(node, cst.Call))
        return next((call for call in calls if self.span(call) == span), None)

    @property
    def head(self) -> Span:
        """Where the function's name stands."""
        return self.span(self.function.name)

    def called(self, node: cst.CSTNode) -> str:
        """The qualified name of what `node` calls, ``""`` where that is not known."""
        return self.text.called.get(self.bare(node.func), "") if isinstance(node, cst.Call) else ""

    def _given_to_select(self, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """What a call is given to say which parts of a value are meant."""
        parameter = SELECTING.get(self.called(node))
        if parameter is not None and isinstance(node, cst.Call):
            given = [each for each in node.args if each.keyword is None or each.keyword.value == parameter]
            yield from (each.value for each in given[:1])

    def code(self, node: cst.CSTNode) -> str:
        """Source of `node` as written."""
        return self.module.code_for_node(node).strip()

    def bare(self, node: cst.CSTNode) -> str:
        """The same without parentheses around it: ``model.loss`` of ``(model.loss)(x)``."""
        within = isinstance(node, cst.Name | cst.Attribute | cst.Subscript | cst.Call) and node.lpar
        return self.code(node.with_changes(lpar=(), rpar=()) if within else node)

    def is_tight(self, node: cst.BaseExpression) -> bool:
        """Whether a word stands right before `node`, which only its first character parts: ``not(a)``."""
        where = self._positions[node]
        assert isinstance(where, CodeRange)
        lines = self.text.text.split("\n")[: where.start.line]
        before = "\n".join([*lines[:-1], lines[-1][: where.start.column]])
        for _ in node.lpar:
            before = before.rstrip().removesuffix("(")
        return before[-1:].isidentifier()

    def is_member(self, node: cst.BaseExpression) -> bool:
        """Whether `node` stands between brackets or commas, so that any operator may stand in it."""
        where = self._positions[node]
        assert isinstance(where, CodeRange)
        lines = self.text.text.split("\n")
        before = lines[where.start.line - 1][: where.start.column].rstrip()
        behind = lines[where.end.line - 1][where.end.column :].lstrip()
        opens = before.endswith(("(", "[", "{", ",", ":", "return"))
        return not node.lpar and opens and behind.startswith((")", "]", "}", ","))

    def _suite(self, suite: cst.CSTNode, scope: int) -> None:
        lines = suite.body if isinstance(suite, cst.IndentedBlock) else [suite]
        around, self._blocks = self._blocks, (id(suite), *self._blocks)
        for order, line in enumerate(lines):
            if isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite):
                for number, small in enumerate(line.body):
                    self._statement(small, scope, order * 100 + number)
            elif isinstance(line, cst.FunctionDef):
                inner = self._open(line, line.name.value)
                if inner.name not in self._selecting:
                    self._suite(line.body, inner.index)
            elif not isinstance(line, SCOPES):
                self._compound(line, scope)
                rest = lines[order + 1 :]
                if rest and leaves(line):
                    self._rest(line, rest, scope)
        self._blocks = around

    def _rest(self, line: cst.CSTNode, rest: Sequence[cst.CSTNode], scope: int) -> None:
        """The lines behind a compound statement that may leave their suite: an else in all but name."""
        first, last = self.span(rest[0]), self.span(rest[-1])
        span = replace(first, end_line=last.end_line, end_column=last.end_column)
        condition = f"code after `{self._condition(line)}`"
        decided_by = names_in(line)
        branch = Branch(next(self.numbers), scope, span, condition, harmless(rest), decided_by=decided_by)
        self.branches.append(branch)
        for each in rest:
            self.rests.setdefault(each, []).append(branch)

    def _compound(self, node: cst.CSTNode, scope: int, decided_by: frozenset[str] = frozenset()) -> None:
        """An if, loop, with, try or match: its own expressions, then its suites."""
        decided_by |= self._deciding(node)
        for child in node.children:
            if isinstance(child, cst.BaseSuite):
                if isinstance(node, BRANCHING):
                    branch = Branch(
                        next(self.numbers),
                        scope,
                        self.span(child),
                        self._condition(node),
                        harmless(lines_of(child)),
                        decided_by=decided_by,
                    )
                    self.branches.append(branch)
                    self.branch_nodes[child] = branch
                self._suite(child, scope)
            elif isinstance(child, CLAUSES):
                self._compound(child, scope, decided_by)
            elif isinstance(child, cst.BaseExpression) and not (
                isinstance(node, cst.For) and child is node.target
            ):
                decides = isinstance(node, cst.If | cst.While | cst.Match | cst.MatchCase)
                only_raises = isinstance(node, cst.If) and node.orelse is None and is_check(node.body)
                self._alone(child, "test" if decides else "other", scope, only_raises)
            elif isinstance(child, cst.WithItem):
                self._alone(child.item, "other", scope)
        if isinstance(node, cst.If):
            self._pass(node, scope, decided_by)

    def _deciding(self, node: cst.CSTNode) -> frozenset[str]:
        """Names that decide which suites of a compound statement are run, and of a try all in it."""
        if isinstance(node, cst.Try | cst.TryStar):
            return names_in(node)
        heads = [getattr(node, part, None) for part in ("test", "iter", "subject", "guard")]
        return frozenset().union(*(names_in(head) for head in heads if isinstance(head, cst.CSTNode)))

    def _pass(self, node: cst.If, scope: int, decided_by: frozenset[str]) -> None:
        """What is done where the test of an if without an else fails: nothing, and that is a way too."""
        if node.orelse is not None or is_check(node.body) or never_falls_through(node.body):
            return
        span = self.span(node)
        start = replace(span, end_line=span.line, end_column=span.column)
        condition = f"the way past `{self._condition(node)}`"
        self.passes[node] = Branch(
            next(self.numbers), scope, start, condition, False, names_in(node.test), decided_by
        )
        self.branches.append(self.passes[node])

    def _condition(self, node: cst.CSTNode) -> str:
        """The head of a compound statement or of one of its clauses, on one line."""
        if isinstance(node, cst.If | cst.While):
            text = f"{'if' if isinstance(node, cst.If) else 'while'} {self.code(node.test)}"
        elif isinstance(node, cst.For):
            text = f"for {self.code(node.target)} in {self.code(node.iter)}"
        elif isinstance(node, cst.MatchCase):
            guard = f" if {self.code(node.guard)}" if node.guard is not None else ""
            text = f"case {self.code(node.pattern)}{guard}"
        elif isinstance(node, cst.Match):
            text = f"match {self.code(node.subject)}"
        elif isinstance(node, cst.With):
            text = f"with {', '.join(self.code(item).rstrip(', ') for item in node.items)}"
        else:
            words = {cst.Else: "else", cst.Try: "try", cst.TryStar: "try"}
            text = words.get(type(node), "except")
            if isinstance(node, cst.ExceptHandler | cst.ExceptStarHandler) and node.type is not None:
                text += f" {self.code(node.type)}"
        return in_one_line(text)

    def _alone(self, node: cst.BaseExpression, kind: str, scope: int, only_raises: bool = False) -> Statement:
        """An expression without a statement of its own: the test of an if, the body of a lambda."""
        index = next(self.numbers)
        if only_raises:
            self.checks.add(index)
        blocks = (id(node), *self._blocks)
        blank = Statement(index, scope, kind, self.span(node), (), None, names_in(node), blocks, 0)
        self.statements[index] = blank
        value = self._walk(node, index, None, kind == "test")
        statement = replace(blank, value=value)
        self.statements[index] = statement
        return statement

    def _statement(self, node: cst.BaseSmallStatement, scope: int, order: int) -> None:
        kind, value, names = "other", None, []
        if isinstance(node, cst.Assign):
            kind, value = "assign", node.value
            names = [name for target in node.targets for name in bound_names(target.target)]
            if isinstance(node.value, cst.Lambda) and isinstance(node.targets[0].target, cst.Name):
                self.assigned[node.value] = node.targets[0].target.value
        elif isinstance(node, cst.AnnAssign | cst.AugAssign) and node.value is not None:
            kind, value, names = "assign", node.value, bound_names(node.target)
        elif isinstance(node, cst.Return):
            kind, value = "return", node.value
        elif isinstance(node, cst.Expr):
            value = node.value
        elif isinstance(node, cst.Assert):
            kind, value = "test", node.test
        # To bind a name of a scope around it, whose object is changed, would make another variable of it.
        names = [name for name in names if name in self._own.get(scope, ())]
        index = next(self.numbers)
        if isinstance(node, cst.Assert):
            self.checks.add(index)
        points = tuple((name, next(self.numbers)) for name in dict.fromkeys(names))
        reads = names_in(value) if value is not None else names_in(node)
        if isinstance(node, cst.AugAssign):
            reads |= frozenset(names)
        blank = Statement(index, scope, kind, self.span(node), points, None, reads, self._blocks, order)
        self.statements[index] = blank
        point = self._walk(value, index, None, kind == "test") if value is not None else None
        touches: tuple[tuple[str, int], ...] = ()
        if kind != "return" and scope == self.scope.index:
            touches = tuple((name, next(self.numbers)) for name in sorted(reads & self.parameters))
        keeps = isinstance(node, cst.Assign) and not any(binds_anew(each.target) for each in node.targets)
        statement = replace(blank, value=point, accumulates=accumulated(node), touches=touches, keeps=keeps)
        self.statements[index] = statement
        self.statement_nodes[node] = statement

    def _walk(
        self, node: cst.CSTNode, statement: int, parent: int | None, test: bool, side_of: str | None = None
    ) -> int | None:
        """Number the expressions at and below `node`; the point of `node` itself, if it has one."""
        if isinstance(node, UNWALKED):
            return None
        point = self._number(node, statement, parent, test, side_of)
        if isinstance(node, cst.Lambda):
            name = self.assigned.get(node, "")
            scope = self._open(node, name)
            if node not in self._selectors and name not in self._selecting:
                self._alone(node.body, "return", scope.index)
            return point
        test = test and not asks_for_kind(node)
        for part, decides, condition in self._parts(node, statement):
            self._walk(part, statement, parent if point is None else point, test or decides, condition)
        return point

    def _number(
        self, node: cst.CSTNode, statement: int, parent: int | None, test: bool, side_of: str | None
    ) -> int | None:
        """Point of an expression that can be tapped; names of other scopes and numbers are kept without."""
        # What may not be evaluated is looked at to know whether it was; a constant is what it is.
        wanted = isinstance(node, TAPPED) or (side_of is not None and not is_constant(node))
        if isinstance(node, cst.Name) and (side_of is None or is_constant(node)):
            wanted = node.value in self.local_names
        elif isinstance(node, cst.Attribute) and side_of is None:
            # What a call or an operation gives has no name: ``solve(a, b).T``.
            root = root_name(node)
            wanted = root is None or root in self.local_names
        free = not wanted and isinstance(node, cst.Name | cst.Attribute | cst.Integer) and parent is not None
        if not wanted and not free:
            return None
        expression = Expression(
            next(self.numbers),
            statement,
            parent,
            self.span(node),
            self.code(node),
            is_call=isinstance(node, cst.Call),
            called=self.called(node),
            is_display=isinstance(node, cst.Tuple | cst.List | cst.Dict),
            is_linear=is_linear(node),
            is_product=is_product(node),
            is_quotient=is_quotient(node),
            side_of=side_of,
            in_test=test,
        )
        (self.expressions if wanted else self.free).append(expression)
        self.expression_nodes[node] = expression
        return expression.point if wanted else None

    def _parts(self, node: cst.CSTNode, statement: int) -> Iterator[tuple[cst.CSTNode, bool, str | None]]:
        """The parts of an expression: each, whether it decides what is evaluated, what decides on it."""
        if isinstance(node, cst.Call):
            # The callee is no value of its own; what a method is called on is.
            if isinstance(node.func, cst.Attribute):
                yield node.func.value, False, None
            elif isinstance(node.func, cst.Call):
                yield from ((argument.value, False, None) for argument in node.func.args)
            elif isinstance(node.func, cst.Lambda | cst.IfExp | cst.BooleanOperation):
                yield node.func, False, None
            yield from ((argument.value, False, None) for argument in node.args)
        elif isinstance(node, cst.Attribute | cst.NamedExpr):
            yield node.value, False, None
        elif isinstance(node, cst.GeneratorExp | cst.ListComp | cst.SetComp | cst.DictComp):
            condition: str | None = None
            clause: cst.CompFor | None = node.for_in
            while clause is not None:
                yield clause.iter, False, condition
                for each in clause.ifs:
                    yield each.test, True, condition
                    condition = self.code(each.test)
                clause = clause.inner_for_in
            parts = [node.key, node.value] if isinstance(node, cst.DictComp) else [node.elt]
            yield from ((part, False, condition) for part in parts)
        elif isinstance(node, cst.BooleanOperation):
            yield node.left, True, None
            # A test that can only raise shows at once what it was not seen with.
            yield node.right, False, None if statement in self.checks else self.code(node.left)
        elif isinstance(node, cst.IfExp):
            yield node.test, True, None
            yield from ((side, False, self.code(node.test)) for side in (node.body, node.orelse))
        else:
            yield from ((child, False, None) for child in node.children)

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


def place(span: Span) -> tuple[int, int, int, int]:
    """A span without its file, as a key."""
    return span.line, span.column, span.end_line, span.end_column


def inside(inner: tuple[int, int, int, int], outer: tuple[int, int, int, int]) -> bool:
    """Whether one place lies within another."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


def _assignable(source: str) -> frozenset[str]:
    """Names of a function's own, and those that it declares global or nonlocal."""
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    nodes = own_nodes(definition.body)
    declared = {name for each in nodes if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    given = {each.arg for each in parameters(definition.args)}
    return frozenset(declared | given | scopes.bound_names(definition.body))


def asks_for_kind(node: cst.CSTNode) -> bool:
    """Whether an expression asks what its parts are, and not how large, as ``isinstance(x, str)`` does.

    So does ``len(x.shape)``, which is how many axes there are. What is bound in it,
    ``(top := x.max()) is not None``, is used as well.
    """
    if isinstance(node, cst.Comparison):
        asks = all(isinstance(each.operator, cst.Is | cst.IsNot) for each in node.comparisons)
        return asks and not isinstance(node.left, cst.NamedExpr)
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name):
        return False
    if node.func.value == "len" and len(node.args) == 1:
        of = node.args[0].value
        return isinstance(of, cst.Attribute) and of.attr.value == "shape"
    return node.func.value in KINDS
