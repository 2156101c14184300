"""Take a function that was changed where it stands back to what it was, by the mark above it.

So `check` can make the change anew and compare. What the user has written into the mapped function since
stays in it; collectives, the axis name, the helpers and the copies of other functions go. Whether a change
can be taken back so is tried when it is made: only then the mark says what was added.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import libcst as cst

from jax_pmap.emit.lines import BLOCKS, indent_of, prefixed, shifted
from jax_pmap.emit.mark import LINE, Mark, marks
from jax_pmap.model import FOLD, Source
from jax_pmap.syntax.definitions import Function, find
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.text import function_text
from jax_pmap.worker.protocol import AXIS_ARGUMENTS

_COPY = re.compile(r"\s*# `([^`]+)`(?: of `[^`]+`)? on one device's share, for `")
_COLLECTIVES = frozenset({"psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all"})
#: Expressions that need no parentheses wherever they stand.
_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.List, cst.Dict, cst.ListComp)
_Small: TypeAlias = "cst.BaseStatement"


def taken_back(text: str, mark: Mark) -> str | None:
    """The file with the change of one mark taken out; None where what it speaks of is not there."""
    raw = LINE.findall(text)
    newline = next((line[len(line.rstrip("\r\n")) :] for line in raw if line[-1:] in "\r\n"), "\n")
    lines = tuple(line.rstrip("\r\n") for line in raw)
    tree = ast.parse(text.removeprefix("\ufeff"))
    around = mark.qualname.rpartition(".")[0]
    drop_in = _function(tree, mark.qualname)
    mapped = _function(tree, f"{around}.{mark.mapped}" if around else mark.mapped)
    if drop_in is None or mapped is None or not mark.end <= mapped.lineno < drop_in.lineno:
        return None
    holder = next(
        (each for each in mapped.body if isinstance(each, ast.FunctionDef) and _spread(each)), mapped
    )
    added = [(name, _node(tree, name)) for name in mark.added or ()]
    if any(node is None for _, node in added):
        return None
    copies = {
        node.name: match[1]
        for _, node in added
        if isinstance(node, ast.FunctionDef) and (match := _note(lines, node)) is not None
    }
    constants = {name for name, node in added if isinstance(node, ast.Assign)}
    rows = ("own_share", "own_size", "gather_joined", "in_place_of", "merged", *BLOCKS)
    shares = {name for name, node in added if name.startswith(rows)}
    guards = {name for name, node in added if name.startswith(("modes", "flags", "as_proved", "unproved"))}
    unseen = {name for name, node in added if name.startswith("unseen")}
    undo = _Unweaving(constants, shares, copies, guards, unseen, _around(drop_in, holder, added))
    definition = _restored(tree, lines, drop_in, holder, undo)
    base = indent_of(lines[drop_in.lineno - 1])
    restored = shifted(definition, base)
    if holder is mapped and not any(name.startswith(BLOCKS) for name in shares):  # all is as deep as it was
        restored = _as_written(lines[holder.lineno - 1 : holder.end_lineno], restored)
    changes = [
        (
            mark.line - 1,
            drop_in.end_lineno or drop_in.lineno,
            [
                *prefixed(_decorators(drop_in, mapped, mark), base),
                # Comments stood between decorators: those above them are above the mark.
                *(line for line in lines[mark.end : mapped.lineno] if line.lstrip().startswith("#")),
                *restored,
            ],
        )
    ]
    for _, node in added:
        assert node is not None
        changes.append((*_extent(lines, node), []))
    for first, end, new in sorted(changes, reverse=True):
        raw[first:end] = [line + newline for line in new]
    return "".join(raw)


def is_same(left: str, right: str, qualname: str = "") -> bool:
    """Whether two files are one but for layout, comments and what is imported at the top.

    For the function `qualname`, the order of its decorators and of the helpers added for it does not count.
    """
    try:
        return _shape(left, qualname) == _shape(right, qualname)
    except (SyntaxError, ValueError, RecursionError):
        return False


def _shape(text: str, qualname: str) -> str:
    tree = ast.parse(text.removeprefix("\ufeff"))
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    if qualname and (chain := find(tree, qualname)) is not None:
        chain[-1].decorator_list.sort(key=ast.dump)
    names = next((each.added or () for each in marks(text) if each.qualname == qualname), ())
    helpers = [node for node in tree.body if node in [_node(tree, name) for name in names]]
    tree.body = [node for node in tree.body if node not in helpers] + sorted(helpers, key=ast.dump)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                inner = first.value
                inner.value = inspect.cleandoc(inner.value) if isinstance(inner.value, str) else inner.value
    return ast.dump(tree)


# --- finding what was added ---------------------------------------------------------------


def _function(tree: ast.Module, qualname: str) -> Function | None:
    chain = find(tree, qualname)
    return chain[-1] if chain is not None and not isinstance(chain[-1], ast.ClassDef) else None


def _node(tree: ast.Module, name: str) -> ast.stmt | None:
    """A definition, or the assignment of a constant or a table at the top of the file."""
    chain = find(tree, name)
    if chain is not None:
        return chain[-1]
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant | ast.Dict):
            continue
        if isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == name:
            return statement
    return None


def _first(node: ast.stmt) -> int:
    """The line of a statement with its decorators, counted from 0."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    decorators = node.decorator_list if isinstance(node, definitions) else []
    return min([node.lineno, *(each.lineno for each in decorators)]) - 1


def _note(lines: Sequence[str], node: ast.stmt) -> re.Match[str] | None:
    """What the comment above a copy says."""
    first = _first(node)
    return _COPY.match(lines[first - 1]) if first else None


def _extent(lines: Sequence[str], node: ast.stmt) -> tuple[int, int]:
    """The lines of something added, with its comment and the blank lines that part it from what is above."""
    first = _first(node)
    is_table = isinstance(node, ast.Assign) and lines[first - 1].startswith("#:")
    if is_table or _note(lines, node) is not None:
        first -= 1
    while first and not lines[first - 1].strip():
        first -= 1
    return first, node.end_lineno or node.lineno


def _spread(node: ast.FunctionDef) -> bool:
    """Whether a function is decorated to run on every device."""
    return any("shard_map" in ast.unparse(each) for each in node.decorator_list)


def _decorators(drop_in: Function, mapped: Function, mark: Mark) -> list[str]:
    """The decorators the function had: those that stay outside, those taken off, those that went inside."""
    ours = {*(mark.added or ())}
    inside = [
        each
        for each in mapped.decorator_list
        if ".pmap" not in ast.unparse(each) and ast.unparse(each) not in ours
    ]
    return [
        *(f"@{ast.unparse(each)}" for each in drop_in.decorator_list),
        *mark.decorators,
        *(f"@{ast.unparse(each)}" for each in inside),
    ]


# --- the function as it was ---------------------------------------------------------------


def _restored(
    tree: ast.Module, lines: tuple[str, ...], drop_in: Function, holder: Function, undo: _Unweaving
) -> str:
    """Signature and docstring of the drop-in over the body of the mapped function, without collectives."""
    outside, inside = _parsed(tree, lines, drop_in), _parsed(tree, lines, holder)
    head, inner = outside.body[0], inside.body[0]
    assert isinstance(head, cst.FunctionDef) and isinstance(inner, cst.FunctionDef)
    body = inner.body.visit(undo)
    assert isinstance(body, cst.IndentedBlock) and isinstance(head.body, cst.IndentedBlock)
    statements = list(body.body)
    if inner.get_docstring() is not None:
        statements = statements[1:]
    statements = undo.around.taken_out(statements)
    if head.get_docstring() is not None:
        statements = [head.body.body[0], *statements]
    suite = body.with_changes(body=statements, header=head.body.header)
    return inside.with_changes(
        body=[head.with_changes(body=suite, leading_lines=())], header=(), footer=()
    ).code


def _as_written(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """`new` with the lines that were there, wherever they began, as they were."""
    out: list[str] = []
    before, now = ([each.strip() for each in lines] for lines in (old, new))
    for kind, first, end, start, stop in difflib.SequenceMatcher(None, before, now, False).get_opcodes():
        out += old[first:end] if kind == "equal" else new[start:stop]
    return out


def _parsed(tree: ast.Module, lines: tuple[str, ...], node: Function) -> cst.Module:
    # Only its lines are asked for.
    source = Source("", Path(), "", "", Path(), node.name, "\n".join(lines))
    return cst.parse_module(function_text(ParsedSource(source, tree, node)).text)


@dataclass(frozen=True, slots=True)
class _Around:
    """What a body has at its beginning and in its returns because of what the drop-in does around the call.

    The drop-in takes what is no array out of its arguments, and changes the caller's own objects afterwards.
    """

    #: Parameters that the mapped function has besides: the constants of each argument.
    constants: frozenset[str]
    #: Arguments that are passed in something that can be hashed.
    wrapped: frozenset[str]
    #: Source of the objects that are changed in place, or ``""``.
    objects: str
    #: Names of the helper that takes arguments apart.
    partition: frozenset[str]

    def taken_out(self, statements: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """The statements of a body without any of it."""
        kept = list(statements)
        while kept and self._puts_together(kept[0]):
            del kept[0]
        if self.objects and kept and self._hands_out(kept[-1]):
            del kept[-1]
        if not (self.constants or self.objects):
            return kept
        block = cst.IndentedBlock(kept).visit(_ReturnsOfArrays(self))
        assert isinstance(block, cst.IndentedBlock)
        return list(block.body)

    def _puts_together(self, line: cst.BaseStatement) -> bool:
        """Whether a statement gives an argument the constants back that were taken from it."""
        found = _assigned(line)
        if found is None:
            return False
        name, value = found
        if isinstance(value, cst.Attribute):
            return name in self.wrapped and _code(value) == f"{name}.value"
        if not isinstance(value, cst.Call) or len(value.args) != 2:
            return False
        given = [_code(each.value) for each in value.args]
        return given[0] == name and given[1] in self.constants

    def _hands_out(self, line: cst.BaseStatement) -> bool:
        """Whether a statement returns the objects that are changed in place, and nothing else."""
        only = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        return isinstance(only, cst.Return) and self.is_objects(only.value)

    def is_objects(self, value: cst.BaseExpression | None) -> bool:
        """Whether a value is the objects that are changed in place."""
        return value is not None and _code(value).strip("()") == self.objects != ""

    def whole(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """What stands in a call that keeps its arrays alone; any other value as it is."""
        if isinstance(value, cst.Subscript):
            apart = value.value
            is_ours = isinstance(apart, cst.Call) and _dotted(apart.func) in self.partition
        else:
            apart = value
            is_ours = bool(self.constants) and isinstance(apart, cst.Call) and _keeps_arrays(apart)
        return apart.args[0].value if isinstance(apart, cst.Call) and is_ours else value


def _keeps_arrays(call: cst.Call) -> bool:
    """Whether a call is Equinox's ``filter(value, is_array)``."""
    names = [_dotted(call.func), *(_dotted(each.value) for each in call.args[1:])]
    return [name.rpartition(".")[2] for name in names] == ["filter", "is_array"]


def _around(drop_in: Function, holder: Function, added: Sequence[tuple[str, ast.stmt | None]]) -> _Around:
    """What the drop-in and its helpers say was put around a body."""
    own, mapped = (
        {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)} for node in (drop_in, holder)
    )
    classes = {name for name, node in added if isinstance(node, ast.ClassDef)}
    wrapped, objects = set(), ""
    for node in ast.walk(drop_in):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func) in classes:
                wrapped.add(ast.unparse(node.targets[0]))
        elif isinstance(node, ast.Call) and len(node.args) == 2:
            first, second = node.args
            if ast.unparse(node.func).endswith(".update") and ".state(" in ast.unparse(second):
                objects = ast.unparse(first).strip("()")
    partition = frozenset(name for name, _ in added if name.startswith("partition"))
    return _Around(frozenset(mapped - own), frozenset(wrapped), objects, partition)


class _ReturnsOfArrays(cst.CSTTransformer):
    """Returns of a body, those of functions in it aside, as they were before only arrays were returned."""

    def __init__(self, around: _Around) -> None:
        super().__init__()
        self.around = around

    def on_visit(self, node: cst.CSTNode) -> bool:
        """What functions in it return is not the result."""
        return not isinstance(node, cst.FunctionDef | cst.Lambda)

    def leave_Return(self, original: cst.Return, updated: cst.Return) -> cst.Return:  # noqa: N802
        """A return, with the value that it had."""
        value = updated.value
        if self.around.is_objects(value):
            return updated.with_changes(value=None)
        if isinstance(value, cst.Tuple) and len(value.elements) == 2:
            first, last = (each.value for each in value.elements)
            if self.around.is_objects(last):
                # A tuple needs parentheses inside another one only.
                value = first.with_changes(lpar=(), rpar=()) if isinstance(first, cst.Tuple) else first
        if isinstance(value, cst.Tuple | cst.List | cst.Dict):
            elements = [each.with_changes(value=self.around.whole(each.value)) for each in value.elements]
            value = value.with_changes(elements=elements)
        return updated.with_changes(value=None if value is None else self.around.whole(value))


class _Unweaving(cst.CSTTransformer):
    """Takes out what `weave` put in."""

    def __init__(
        self,
        axes: set[str],
        shares: set[str],
        copies: Mapping[str, str],
        guards: set[str],
        unseen: set[str],
        around: _Around,
    ) -> None:
        super().__init__()
        self.axes, self.shares, self.copies, self.guards = axes, shares, copies, guards
        self.unseen, self.around = unseen, around
        #: Parentheses put around a value that stood in a call.
        self.enclosed: list[cst.BaseExpression] = []
        #: Statements in which something was taken out.
        self.touched: list[cst.CSTNode] = []
        self._open: list[cst.CSTNode] = []

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:  # noqa: N802
        """The statement that what comes is in."""
        self._open.append(node)

    def leave_BinaryOperation(  # noqa: N802
        self, original: cst.BinaryOperation, updated: cst.BinaryOperation
    ) -> cst.BaseExpression:
        """What is divided by the number of devices."""
        return updated.left if self._is_division(original) else updated

    def _is_division(self, node: cst.CSTNode) -> bool:
        by = node.right if isinstance(node, cst.BinaryOperation) else None
        return isinstance(by, cst.Call) and self._is_ours(by) and isinstance(by.args[0].value, cst.Integer)

    def leave_Name(self, original: cst.Name, updated: cst.Name) -> cst.Name:  # noqa: N802
        """The original in place of its copy."""
        return updated.with_changes(value=self.copies.get(original.value, original.value))

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:  # noqa: N802
        """What a collective, a fold of a key or the taking of a share stands around, or an object called."""
        copied = self.copies.get(original.func.value) if isinstance(original.func, cst.Name) else None
        if copied == "__call__" and updated.args:
            return updated.with_changes(func=updated.args[0].value, args=updated.args[1:])
        made = updated.func
        if isinstance(made, cst.Lambda) and not made.deep_equals(original.func) and _gives_back(made):
            return updated.args[0].value  # What holds keys, of which some are folded.
        each = original.args[0].value if _dotted(original.func).endswith(".tree.map") else None
        if isinstance(each, cst.Lambda) and self._is_division(each.body):
            return updated.args[1].value
        if not updated.args or not self._is_ours(updated):
            return updated.with_changes(args=self._unnamed(updated.args))
        if self._open:
            self.touched.append(self._open[-1])
        value = updated.args[0].value
        if _dotted(updated.func) in self.unseen and isinstance(value, cst.SimpleString):
            value = cst.parse_expression(str(value.evaluated_value))
        if isinstance(value, _ATOMS) or value.lpar:
            return value
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        self.enclosed.append(value)
        return value

    def _unnamed(self, args: Sequence[cst.Arg]) -> Sequence[cst.Arg]:
        """The arguments of a call that was given the name of the axis, without that."""
        last = args[-1] if args else None
        if last is None or last.keyword is None or last.keyword.value not in AXIS_ARGUMENTS:
            return args
        if _dotted(last.value) not in self.axes:
            return args
        return [*args[:-2], *(each.with_changes(comma=last.comma) for each in args[-2:-1])]

    def _is_ours(self, call: cst.Call) -> bool:
        name = _dotted(call.func)
        if name in self.shares | self.unseen:
            return True
        if name.endswith(f".random.{FOLD}") and len(call.args) == 2:
            index = call.args[1].value
            if isinstance(index, cst.UnaryOperation) and isinstance(index.operator, cst.BitInvert):
                index = index.expression
            return (
                isinstance(index, cst.Call)
                and _dotted(index.func).endswith(".lax.axis_index")
                and len(index.args) == 1
                and _dotted(index.args[0].value) in self.axes
            )
        given = [each.value for each in call.args if each.keyword and each.keyword.value == "axis_name"]
        around, _, last = name.rpartition(".")
        return (
            last in _COLLECTIVES
            and around.endswith(".lax")
            and bool(given)
            and _dotted(given[0]) in self.axes
        )

    def _is_guard(self, line: cst.CSTNode) -> bool:
        """Whether a statement does nothing but refuse a mode or a form that was not proved."""
        asked: list[cst.CSTNode | None] = []
        if isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Expr):
            asked = [line.body[0].value]
        elif isinstance(line, cst.If) and isinstance(line.test, cst.Comparison):
            first = line.body.body[0]
            raised = first.body[0] if isinstance(first, cst.SimpleStatementLine) else None
            asked = [line.test.left, raised.exc if isinstance(raised, cst.Raise) else None]
        return any(isinstance(each, cst.Call) and _dotted(each.func) in self.guards for each in asked)

    def _bare(self, value: cst.BaseExpression | None) -> cst.BaseExpression | None:
        """A value without the parentheses that it needs inside another only."""
        if any(value is each for each in self.enclosed):
            assert value is not None
            return value.with_changes(lpar=(), rpar=())
        return value

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:  # noqa: N802
        """A value at the top of its statement needs no parentheses."""
        return updated.with_changes(value=self._bare(updated.value))

    def leave_Return(self, original: cst.Return, updated: cst.Return) -> cst.Return:  # noqa: N802
        """A value at the top of its statement needs no parentheses."""
        return updated.with_changes(value=self._bare(updated.value))

    def leave_Arg(self, original: cst.Arg, updated: cst.Arg) -> cst.Arg:  # noqa: N802
        """An argument needs no parentheses."""
        return updated.with_changes(value=self._bare(updated.value))

    def leave_IfExp(self, original: cst.IfExp, updated: cst.IfExp) -> cst.IfExp:  # noqa: N802
        """A side that ends the expression needs no parentheses, either."""
        bare = self._bare(updated.orelse)
        return updated if bare is None else updated.with_changes(orelse=bare)

    def leave_SimpleStatementLine(  # noqa: N802
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """The line; whether it goes is decided with its neighbours."""
        self._open.pop()
        return updated

    def _taken_from_block(
        self, original: cst.BaseStatement, updated: cst.BaseStatement
    ) -> list[cst.BaseStatement] | None:
        """What was put into a block that folds keys, or sums up what is added; None of another statement."""
        if not isinstance(original, cst.With) or not isinstance(updated, cst.With):
            return None
        call = original.items[0].item
        if not isinstance(call, cst.Call) or _dotted(call.func) not in self.shares:
            return None
        assert isinstance(updated.body, cst.IndentedBlock)
        first, *rest = updated.body.body
        above = (*updated.leading_lines, *getattr(first, "leading_lines", ()))
        return [first.with_changes(leading_lines=above), *rest]

    def leave_IndentedBlock(  # noqa: N802
        self, original: cst.IndentedBlock, updated: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """The lines without those that did nothing but synchronise, and a result without its name."""
        kept: list[_Small] = []
        gone: set[str] = set()
        for before, line in zip(original.body, updated.body, strict=True):
            if (inside := self._taken_from_block(before, line)) is not None:
                kept += inside
                continue
            name = _left_alone(line) if any(before is each for each in self.touched) else None
            if name is not None:
                gone.add(name)
                continue
            value = _returned(line)
            if value is not None and value in gone and value.rstrip("_") == "result" and kept:
                given = _assigned(kept[-1])
                if given is not None and given[0] == value:
                    assert isinstance(line, cst.SimpleStatementLine)
                    last = kept.pop()
                    returned = line.with_changes(body=[cst.Return(given[1])])
                    for part in ("leading_lines", "trailing_whitespace"):
                        returned = returned.with_changes(**{part: getattr(last, part)})
                    kept.append(returned)
                    continue
            gone.clear()
            if not self._is_guard(line):
                kept.append(line)
        return updated.with_changes(body=kept)


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return "?"


def _assigned(line: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """Target and value of a line that is one plain assignment."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    only = line.body[0]
    if not isinstance(only, cst.Assign) or len(only.targets) != 1:
        return None
    return _code(only.targets[0].target), only.value


def _returned(line: cst.CSTNode) -> str | None:
    """The name that a line returns."""
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
        only = line.body[0]
        if isinstance(only, cst.Return) and isinstance(only.value, cst.Name):
            return only.value.value
    return None


def _left_alone(line: cst.CSTNode) -> str | None:
    """The target of an assignment that gives a name, or several, what it has already."""
    found = _assigned(line)
    return found[0] if found is not None and _is_again(found[1], found[0]) else None


def _gives_back(made: cst.Lambda) -> bool:
    """Whether a function of one value gives what it is given."""
    names = [each.name.value for each in made.params.params]
    return len(names) == 1 and _is_again(made.body, names[0])


def _is_again(value: cst.BaseExpression, source: str) -> bool:
    """Whether `value` is what `source` is, put together from its parts."""
    if _code(value) == source:
        return True
    if isinstance(value, cst.Dict) and value.elements:
        first, *rest = value.elements
        return (
            isinstance(first, cst.StarredDictElement)
            and _code(first.value) == source
            and all(
                isinstance(each, cst.DictElement) and _is_again(each.value, f"{source}[{_code(each.key)}]")
                for each in rest
            )
        )
    if isinstance(value, cst.Tuple | cst.List):
        return bool(value.elements) and all(
            _is_again(each.value, f"{source}[{index}]") for index, each in enumerate(value.elements)
        )
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        return (
            value.func.attr.value == "_replace"
            and _code(value.func.value) == source
            and all(
                each.keyword is not None and _is_again(each.value, f"{source}.{each.keyword.value}")
                for each in value.args
            )
        )
    return False


def _code(node: cst.BaseExpression) -> str:
    """Source of an expression as `ast` writes it: without layout and outer parentheses."""
    text = cst.Module([]).code_for_node(node)
    return ast.unparse(parsed_expression(text))
