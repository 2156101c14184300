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
from jax_pmap.syntax.text import in_one_line

#: What the value of a collective is called.
_CALLED = {"psum": "total", "pmean": "mean", "pmax": "largest", "pmin": "smallest", "all_gather": "all"}
#: What holds an expression that is evaluated later, several times or not at all.
_APART = (cst.Lambda, cst.IfExp, cst.BooleanOperation, cst.BaseComp)
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
        value = updated_node.value
        if not isinstance(value, cst.BinaryOperation) or len(value.lpar) != 1 or not _is_one_line(value):
            return updated_node
        if f"axis_name={self.axis}" not in _code(value):
            return updated_node
        return updated_node.with_changes(value=value.with_changes(lpar=(), rpar=()))

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """The statements of a block."""
        made = updated_node.with_changes(body=self.statements(updated_node.body))
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
            if index and isinstance(line, cst.SimpleStatementLine):
                line = self.explained(body[index - 1], line, body[index + 1 :])
            out += self.shorter(line) if isinstance(line, cst.SimpleStatementLine) else [line]
        return out

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
        return {each.id for call in calls for each in ast.walk(call) if isinstance(each, ast.Name)}

    def shorter(self, line: cst.SimpleStatementLine) -> list[cst.SimpleStatementLine]:
        """One statement, with what it needs in front."""
        only = line.body[0]
        value = getattr(only, "value", None)
        if len(line.body) != 1 or not isinstance(value, cst.BaseExpression) or not _is_movable(value):
            return [line]
        self.lines = []
        # The number of devices has one name in a block; other collectives may have other operands by now.
        devices = f".psum(1, axis_name={self.axis})"
        self.assignments = {code: name for code, name in self.assignments.items() if code.endswith(devices)}
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
        if isinstance(value, cst.Call) and _is_dotted(value.func):
            args = [
                each.with_changes(value=self.shortened(each.value, inner, inner - 4)) for each in value.args
            ]
            return value.with_changes(args=args)
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
        code = _code(value)
        if code not in self.assignments:
            name, number = wanted, 2
            while name in self.used:
                name, number = f"{wanted}_{number}", number + 1
            self.used.add(name)
            room = self.width - 4 * self.depth
            value = self.shortened(value, room - len(name) - 3, room - 5)
            if not _is_one_line(value) and not value.lpar:
                value = enclosed(value)
            target = cst.AssignTarget(cst.Name(name))
            self.lines.append(cst.SimpleStatementLine([cst.Assign([target], value)]))
            self.assignments[code] = name
        return self.assignments[code]


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


def _target(assignment: cst.Assign) -> str:
    """The name that is assigned to."""
    return _code(assignment.targets[0].target)


def _alike(one: cst.BaseExpression, other: cst.BaseExpression, axis: str) -> bool:
    """Whether two calls are one collective of two arrays; a size of Python's takes none."""
    op = _operation(one, axis)
    if op not in ("psum", "pmean", "pmax", "pmin") or op != _operation(other, axis):
        return False
    assert isinstance(one, cst.Call) and isinstance(other, cst.Call)
    sizes = any(_wanted(op, each.args[0].value) == "count" for each in (one, other))
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
        known = self.naming.assignments.get(_code(updated)) if self.naming.operation(original) else None
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
    if re.fullmatch(r"-?[\w.]+", source):
        return f"{_CALLED[op]}_{source.lstrip('-').rpartition('.')[2]}"
    if op == "psum" and re.search(r"\.shape\[\d+\]$|\bsize\(|^len\(", source):
        return "count"
    if op == "all_gather":
        return "all_values"
    if op == "psum" and (summed := re.fullmatch(r"[\w.]*\bsum\([\w.\[\"']*?(\w+)[\"'\]]*\)", source)):
        return f"total_{summed[1]}"
    return _CALLED[op] + ("_square" if re.search(r"\*\* 2\b", source) and op in ("psum", "pmean") else "")


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
