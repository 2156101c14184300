"""Give names to the collectives inside long statements, as somebody would who writes them by hand.

``return (x - pmean(…)) / sqrt(pmean(…) + 1e-6)`` becomes two assignments and a short line. What is computed
stays the same: only what is evaluated once, and at every run of its statement, is moved in front of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

import libcst as cst

from jax_pmap.emit.weave import enclosed, renamed
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.syntax.text import in_one_line
from jax_pmap.worker.scopes import bound_names, names_in, root_name

#: What the value of a collective is called.
_CALLED = {
    "psum": "total",
    "pmean": "mean",
    "pmax": "largest",
    "pmin": "smallest",
    "all_gather": "all",
    "all_to_all": "own_rows",
}
#: Reductions that are methods of arrays, and functions of what is called one of these.
_REDUCED, _MODULES = frozenset({"mean", "sum", "max", "min"}), frozenset({"jax.numpy", "jnp", "np"})
#: What holds an expression that is evaluated later, several times or not at all.
_APART = (cst.Lambda, cst.IfExp, cst.BooleanOperation, cst.BaseComp)
#: A sum of what has a name, which it hands on.
_SUM = r"[\w.]*\bsum\([\w.\[\"']*?(\w+)[\"'\]]*(?:, axis=\w+)?(?:, where=[\w.]+)?\)"
#: Operators that go before sums.
_FIRST = (cst.Multiply, cst.Divide, cst.FloorDivide, cst.Modulo, cst.MatrixMultiply)
_ATOMS = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.BaseNumber, cst.Tuple, cst.List, cst.Dict)


def with_names(source: str, axis: str, gather: str, taken: Collection[str], width: int) -> str:
    """`source` with statements that do not fit into `width` columns made shorter.

    Args:
        source: statements, dedented, with collectives in them.
        axis: source of the axis name of the collectives.
        gather: name of the helper that gathers what is joined, a collective too.
        taken: names that no new variable may have, besides those in `source`.
        width: columns for a line.
    """
    module = cst.parse_module(source)
    own = _OwnNames(axis)
    module.visit(own)
    made = module.visit(_Naming(axis, gather, own.names | set(taken), width))
    return made.code


class _OwnNames(cst.CSTVisitor):
    """The names in a piece of code, but for the parameters of lambdas that are called where they stand."""

    def __init__(self, axis: str) -> None:
        super().__init__()
        self.axis, self.names = axis, set[str]()
        self._bound: list[str] = []

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        """The parameters of a lambda that is called are not counted in it."""
        self._bound += _parameters(node, self.axis) or ()

    def leave_Call(self, original_node: cst.Call) -> None:  # noqa: N802
        """Behind it, they are."""
        for _ in _parameters(original_node, self.axis) or ():
            self._bound.pop()

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        """A name."""
        if node.value not in self._bound:
            self.names.add(node.value)

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:  # noqa: N802
        """An attribute is no variable."""
        self._bound.append(node.attr.value)

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:  # noqa: N802
        """Behind it, what has its name may be one."""
        self._bound.pop()


class _Naming(cst.CSTTransformer):
    """Puts assignments in front of long statements."""

    def __init__(self, axis: str, gather: str, used: set[str], width: int) -> None:
        super().__init__()
        self.axis, self.gather, self.used, self.width = axis, gather, used, width
        self.depth = 0
        #: The assignments in front of the statement at hand, and names by what they hold.
        self.lines: list[cst.SimpleStatementLine] = []
        self.assignments: dict[str, str] = {}

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:  # noqa: N802
        """Statements in it have less room."""
        self.depth += 1

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:  # noqa: N802
        """An argument without parentheses that it does not need, where a collective is in it."""
        return updated_node.with_changes(value=self.open(updated_node.value))

    def leave_Element(  # noqa: N802
        self, original_node: cst.Element, updated_node: cst.Element
    ) -> cst.Element:
        """The same of a member of a tuple or a list."""
        return updated_node.with_changes(value=self.open(updated_node.value))

    def leave_BinaryOperation(  # noqa: N802
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BinaryOperation:
        """A sum or difference, with no parentheses around a product that is a term of it."""
        right = updated_node.right
        if not isinstance(updated_node.operator, cst.Add | cst.Subtract):
            return updated_node
        if not isinstance(right, cst.BinaryOperation) or not isinstance(right.operator, _FIRST):
            return updated_node
        return updated_node.with_changes(right=self.open(right))

    def open(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """An operation with collectives without the parentheses around it."""
        if not isinstance(value, cst.BinaryOperation) or len(value.lpar) != 1 or not _is_one_line(value):
            return value
        return value.with_changes(lpar=(), rpar=()) if f"axis_name={self.axis}" in _code(value) else value

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """The statements of a block."""
        made = updated_node.with_changes(body=self.statements(updated_node.body))
        self.depth -= 1
        return made

    def visit_SimpleStatementSuite(self, node: cst.SimpleStatementSuite) -> None:  # noqa: N802
        """Statements behind a colon have lines of their own where one is made shorter."""
        self.depth += 1

    def leave_SimpleStatementSuite(  # noqa: N802
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """The statements behind a colon, below it where there are collectives in them."""
        line = cst.SimpleStatementLine(
            updated_node.body, trailing_whitespace=updated_node.trailing_whitespace
        )
        has_collectives = f"axis_name={self.axis}" in _code(line)
        made = cst.IndentedBlock(self.statements([line])) if has_collectives else updated_node
        self.depth -= 1
        return made

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        """The statements at the top."""
        return updated_node.with_changes(body=self.statements(updated_node.body))

    def statements(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """`body` with the assignments in front of what they are for."""
        out: list[cst.BaseStatement] = []
        self.assignments = {}
        for index, line in enumerate(body):
            if not isinstance(line, cst.SimpleStatementLine):
                out.append(line)
                self.assignments = {}
                continue
            line = self.explained(body[index - 1], line, body[index + 1 :]) if index else line
            for each in self.apart(line):
                lines = self.shorter(each)
                self.remember(lines[-1], out[-1] if out and len(lines) == 1 else None)
                out += lines
        return out

    def apart(self, line: cst.SimpleStatementLine) -> list[cst.SimpleStatementLine]:
        """The statements of a line, each on one of its own, where there are collectives in it."""
        if len(line.body) == 1 or f"axis_name={self.axis}" not in _code(line):
            return [line]
        every = [each.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for each in line.body]
        first, *rest = (cst.SimpleStatementLine([each]) for each in every)
        return [first.with_changes(leading_lines=line.leading_lines), *rest]

    def remember(self, line: cst.BaseStatement, before: cst.BaseStatement | None) -> None:
        """Forget what collectives gave ahead of `line` where it gives names in them another value.

        What it gives a name by itself is known by that: ``mean = pmean(x.mean(0))``, or in two statements
        `before` and `line`, ``mean = x.mean(0)`` and ``mean = pmean(mean)``.
        """
        if self.assignments:
            tree = ast.parse(cst.Module([]).code_for_node(line))
            nodes = (each for each in ast.walk(tree) if isinstance(each, ast.Attribute | ast.Subscript))
            stored = {root_name(each) for each in nodes if not isinstance(each.ctx, ast.Load)}
            bound = bound_names(tree.body) | stored
            self.assignments = {
                key: name for key, name in self.assignments.items() if not bound & {name, *_names(key)}
            }
        only, ahead = _assignment(line), _assignment(before)
        if only is None or not self.operation(only.value):
            return
        value, name = cst.ensure_type(only.value, cst.Call), _target(only)
        if ahead is not None and _target(ahead) == name == _code(value.args[0].value):
            value = value.with_changes(args=[value.args[0].with_changes(value=ahead.value), *value.args[1:]])
        if name not in _names(key := _key(value)):
            self.assignments.setdefault(key, name)

    def explained(
        self, before: cst.BaseStatement, line: cst.SimpleStatementLine, rest: Sequence[cst.BaseStatement]
    ) -> cst.SimpleStatementLine:
        """`line` with a comment, where it synchronises the loss and not its gradient, or the other way round.

        What comes behind uses the other one as it is: that one is whole.
        """
        found = re.fullmatch(r"(.*?), (\w+) = [\w.]*value_and_grad\(.*", _code(before))
        synced = re.fullmatch(r"([\w, ]+) = [\w.]+\(.*axis_name=(\w+)\)", _code(line)) if found else None
        if (
            not isinstance(before, cst.SimpleStatementLine)
            or not found
            or not synced
            or synced[2] != self.axis
        ):
            return line
        # With `has_aux`, the loss comes first.
        results, gradient = re.findall(r"\w+", found[1]), {found[2]}
        done = set(re.findall(r"\w+", synced[1]))
        used = set(re.findall(r"\w+", " ".join(map(_code, rest)))) - self.synchronised(rest)
        if done <= set(results) and gradient <= used:
            why = "The gradient is whole: the transpose of the collective in the loss has summed it."
        elif done == gradient and results and results[0] in used:
            why = "The loss is whole on every device, the gradient only that through its own rows."
        else:
            return line
        comment = cst.EmptyLine(comment=cst.Comment(f"# {why}"))
        return line.with_changes(leading_lines=[*line.leading_lines, comment])

    def synchronised(self, rest: Sequence[cst.BaseStatement]) -> set[str]:
        """The names in what collectives are taken of in some statements."""
        calls = (
            node
            for line in rest
            for node in ast.walk(ast.parse(cst.Module([]).code_for_node(line)))
            if isinstance(node, ast.Call)
            and any(
                each.arg == "axis_name" and ast.unparse(each.value) == self.axis for each in node.keywords
            )
        )
        return names_in(*calls)

    def shorter(self, line: cst.SimpleStatementLine) -> list[cst.SimpleStatementLine]:
        """One statement, with what it needs in front."""
        only = line.body[0]
        value = getattr(only, "value", None)
        if len(line.body) != 1 or not isinstance(value, cst.BaseExpression) or not _is_movable(value):
            return [line]
        self.lines = []
        value = self.reused(value)
        around = len(_code(only)) - len(_code(value))
        room = self.width - 4 * self.depth
        short = self.shortened(value, room - around, room - 5)
        if not self.lines:
            return [line.with_changes(body=[only.with_changes(value=short)])]
        short = self.reused(short)
        lines = together(self.lines, self.axis)
        first = lines[0].with_changes(leading_lines=line.leading_lines)
        last = line.with_changes(leading_lines=(), body=[only.with_changes(value=short)])
        return [first, *lines[1:], last]

    def reused(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """An expression with the names that its collectives have."""
        made = value.visit(_Reused(self))
        assert isinstance(made, cst.BaseExpression)
        return made

    def shortened(self, value: cst.BaseExpression, room: int, inner: int) -> cst.BaseExpression:
        """An expression that has to fit into `room` columns, its parts into `inner` on lines of their own."""
        if isinstance(value, cst.Call) and _parameters(value, self.axis) is not None:
            return self.shortened(self.applied(value), room, inner)
        is_called = _HasApplied(self.axis).found(value)
        if isinstance(value, _APART) or (len(_code(value)) <= room and not is_called):
            return value
        if isinstance(value, cst.Tuple | cst.List | cst.Dict):
            parts = [
                each.with_changes(value=self.shortened(each.value, inner - 10, inner - 4))
                for each in value.elements
            ]
            return value.with_changes(elements=parts)
        if isinstance(value, cst.Call) and self.operation(value):
            # One collective in another is an assignment of its own.
            first = value.args[0].with_changes(value=self.named(value.args[0].value))
            value = value.with_changes(args=[first, *value.args[1:]])
        elif isinstance(value, cst.Call):
            before = [*self.lines], {*self.used}, {**self.assignments}
            short = self.named(value)
            if len(_code(short)) <= room:
                return short
            self.lines, self.used, self.assignments = before
        if isinstance(value, cst.Call) and _is_dotted(value.func):
            args = [
                each.with_changes(value=self.shortened(each.value, inner, inner - 4)) for each in value.args
            ]
            return value.with_changes(args=args)
        return self.named(value)

    def named(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """An expression with names in the places of its collectives, assigned in front."""
        made = value.visit(_Named(self))
        assert isinstance(made, cst.BaseExpression)
        return made

    def applied(self, call: cst.Call) -> cst.BaseExpression:
        """The body of a lambda that is called where it stands, its arguments assigned before."""
        assert isinstance(call.func, cst.Lambda)
        names = {}
        for parameter, arg in zip(call.func.params.params, call.args, strict=True):
            wanted = parameter.name.value
            names[wanted] = self.assigned(wanted, arg.value)
        body = renamed(call.func.body, names)
        return self.applied(body) if isinstance(body, cst.Call) and _parameters(body) is not None else body

    def operation(self, node: cst.CSTNode) -> str | None:
        """The name of a collective over the axis, or None for anything else."""
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == self.gather:
            return "all_gather"
        return _operation(node, self.axis)

    def assigned(self, wanted: str, value: cst.BaseExpression) -> str:
        """The name of a variable that has `value`, from an assignment in front of the statement."""
        value = self.reused(value)
        if isinstance(value, cst.Name):
            return value.value
        key = _key(value)
        if key not in self.assignments:
            name, number = wanted, 2
            while name in self.used:
                name, number = f"{wanted}_{number}", number + 1
            self.used.add(name)
            room = self.width - 4 * self.depth
            value = self.shortened(value, room - len(name) - 3, room - 5)
            self.assignments[_key(value)] = name
            if not _is_one_line(value) and not value.lpar:
                value = enclosed(value)
            target = cst.AssignTarget(cst.Name(name))
            self.lines.append(cst.SimpleStatementLine([cst.Assign([target], value)]))
            self.assignments[key] = name
        return self.assignments[key]


def together(lines: Sequence[cst.SimpleStatementLine], axis: str) -> list[cst.SimpleStatementLine]:
    """Assignments with one collective of a tuple in place of several of one kind.

    ``total = psum(a); count = psum(b)`` becomes ``total, count = psum((a, b))``, where `b` needs no `total`.
    """
    groups: list[list[cst.Assign]] = []
    for line in lines:
        only = line.body[0]
        assert isinstance(only, cst.Assign)
        read = set(re.findall(r"\w+", _code(only.value)))
        at = next((at for at, group in enumerate(groups) if _alike(group[0].value, only.value, axis)), None)
        if at is None or any(_target(each) in read for group in groups[at:] for each in group):
            groups.append([only])
        else:
            groups[at].append(only)
    return [cst.SimpleStatementLine([_joined(group)]) for group in groups]


def _joined(group: Sequence[cst.Assign]) -> cst.Assign:
    """One assignment for several with the same collective; of one, that."""
    first = group[0]
    if len(group) == 1:
        return first
    calls = [cst.ensure_type(each.value, cst.Call) for each in group]
    operands = cst.Tuple([cst.Element(call.args[0].value) for call in calls])
    names = cst.Tuple([cst.Element(cst.Name(_target(each))) for each in group], lpar=(), rpar=())
    args = [calls[0].args[0].with_changes(value=operands), *calls[0].args[1:]]
    return first.with_changes(targets=[cst.AssignTarget(names)], value=calls[0].with_changes(args=args))


def _assignment(line: cst.BaseStatement | None) -> cst.Assign | None:
    """What a line assigns to one name, and does nothing else; None for any other."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    only = line.body[0]
    named = isinstance(only, cst.Assign) and len(only.targets) == 1 and _target(only).isidentifier()
    return only if named else None  # type: ignore[return-value]


def _names(source: str) -> set[str]:
    """The names in an expression."""
    return names_in(ast.parse(source))


def _target(assignment: cst.Assign) -> str:
    """The name that is assigned to."""
    return _code(assignment.targets[0].target)


def _alike(one: cst.BaseExpression, other: cst.BaseExpression, axis: str) -> bool:
    """Whether two calls are one collective of two arrays; a size of Python's takes none."""
    op = _operation(one, axis)
    if op not in ("psum", "pmean", "pmax", "pmin") or op != _operation(other, axis):
        return False
    assert isinstance(one, cst.Call) and isinstance(other, cst.Call)
    sizes = any(_is_size(_code(each.args[0].value)) for each in (one, other))
    return not sizes and [_code(each) for each in one.args[1:]] == [_code(each) for each in other.args[1:]]


class _Named(cst.CSTTransformer):
    """Puts names in the places of collectives, and bodies in those of lambdas that are called at once."""

    def __init__(self, naming: _Naming) -> None:
        super().__init__()
        self.naming = naming

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to go into a node: not where it is evaluated at another time, nor into a collective."""
        applied = isinstance(node, cst.Call) and _parameters(node, self.naming.axis) is not None
        return not isinstance(node, _APART) and not applied and self.naming.operation(node) is None

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """A name in place of a collective."""
        if isinstance(updated, cst.Call) and _parameters(updated, self.naming.axis) is not None:
            body = self.naming.applied(updated).visit(self)
            assert isinstance(body, cst.BaseExpression)
            return body if isinstance(body, _ATOMS) or body.lpar else enclosed(body)
        op = self.naming.operation(updated)
        if op is None or not isinstance(updated, cst.Call):
            return updated
        return cst.Name(self.naming.assigned(_wanted(op, updated.args[0].value), updated))


class _Reused(cst.CSTTransformer):
    """Puts names in the places of collectives that have one, where those are short enough to stay."""

    def __init__(self, naming: _Naming) -> None:
        super().__init__()
        self.naming = naming

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to go into a node: not where it is evaluated at another time."""
        return not isinstance(node, _APART)

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """A name in place of what is assigned to it."""
        known = self.naming.assignments.get(_key(updated)) if self.naming.operation(original) else None
        return updated if known is None else cst.Name(known)


class _HasApplied(cst.CSTVisitor):
    """Finds a lambda that is called where it stands."""

    def __init__(self, axis: str) -> None:
        super().__init__()
        self.axis, self.is_there = axis, False

    def found(self, node: cst.CSTNode) -> bool:
        """Whether there is one in a node."""
        node.visit(self)
        return self.is_there

    def on_visit(self, node: cst.CSTNode) -> bool:
        """One node."""
        self.is_there |= isinstance(node, cst.Call) and _parameters(node, self.axis) is not None
        return not isinstance(node, _APART)


def _key(node: cst.CSTNode) -> str:
    """What an expression is told by: the mean ``x.mean(0)`` is ``jnp.mean(x, axis=0)``."""
    return ast.unparse(_AsFunctions().visit(parsed_expression(_code(node))))


class _AsFunctions(ast.NodeTransformer):
    """Writes reductions by methods of arrays, and by functions, in one way."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """One call: ``jnp.mean(x, axis=0)`` of ``x.mean(0)`` and ``jnp.mean(x, 0)``."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in _REDUCED:
            return node
        module = node.func.value
        of_module = ast.unparse(module) in _MODULES
        given = [*([] if of_module else [module]), *node.args]
        if not 0 < len(given) <= 2:
            return node
        keywords = [*([ast.keyword("axis", given[1])] if given[1:] else []), *node.keywords]
        function = ast.Attribute(ast.Name("jnp", ast.Load()), node.func.attr, ast.Load())
        return ast.Call(function, given[:1], keywords)


def _parameters(call: cst.Call, axis: str = "") -> list[str] | None:
    """The parameters where a lambda with a collective over `axis` in it is called as it stands, or None."""
    function = call.func
    if not isinstance(function, cst.Lambda) or (axis and f"axis_name={axis}" not in _code(call)):
        return None
    given = function.params
    plain = len(given.params) == len(call.args) and not (
        given.kwonly_params
        or given.posonly_params
        or given.star_kwarg
        or isinstance(given.star_arg, cst.Param)
    )
    if not plain or any(each.keyword or each.star for each in call.args):
        return None
    return [each.name.value for each in given.params]


def _operation(node: cst.CSTNode, axis: str) -> str | None:
    """The name of a collective over the axis, or None for anything else."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or not node.args:
        return None
    over = [each for each in node.args if each.keyword is not None and each.keyword.value == "axis_name"]
    name = node.func.attr.value
    return name if name in _CALLED and over and _code(over[0].value) == axis else None


def _wanted(op: str, operand: cst.BaseExpression) -> str:
    """What somebody would call what a collective gives."""
    source = _code(operand)
    if op == "psum" and source == "1":
        return "devices"
    if op == "all_to_all":
        return _CALLED[op]
    if re.fullmatch(r"-?[\w.]+", source):
        return f"{_CALLED[op]}_{source.lstrip('-').rpartition('.')[2]}"
    if entry := re.fullmatch(r"""-?[\w.]+\[["']([a-z_]\w*)["']\]""", source):
        return f"{_CALLED[op]}_{entry[1]}"
    if op == "psum" and (_is_size(source) or re.match(r"\w+\.sum\(\w+\.ones_like\(", source)):
        return "count"
    if op == "all_gather":
        return "all_values"
    if op == "psum" and (summed := re.fullmatch(_SUM, source)):
        return f"total_{summed[1]}"
    return _CALLED[op] + ("_square" if re.search(r"\*\* 2\b", source) and op in ("psum", "pmean") else "")


def _is_size(source: str) -> bool:
    """Whether an expression is a number of Python's: ``x.shape[0]``."""
    return bool(re.search(r"\.shape\[\d+\]$|\bsize\(|^len\(", source))


def _is_movable(value: cst.BaseExpression) -> bool:
    """Whether parts of an expression may be evaluated before others that stand in front of them.

    Layers that are made where they are called get their names in the order of the calls, and random numbers
    are drawn in it.
    """
    code = _code(value)
    return not re.search(r"#|\b[A-Z]\w*\(.*\)\(|rng|yield|await|:=", code)


def _is_dotted(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and _is_dotted(node.value))


def _is_one_line(node: cst.CSTNode) -> bool:
    return "\n" not in cst.Module([]).code_for_node(node)


def _code(node: cst.CSTNode) -> str:
    """Source of a node on one line."""
    return in_one_line(cst.Module([]).code_for_node(node))
