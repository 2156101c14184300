"""A body that works on a device's share, as one that adds up what it makes of the share's microbatches.

What collectives make whole is summed over the examples of a device first, so it may as well be summed over
groups of them, one after the other: what leads there from the batch becomes a function of one group, which
`lax.scan` adds up. All that does not depend on the batch stays where it is. Whether the result is that of the
original is for the proof to say.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jax_pmap.emit.names import Names
from jax_pmap.emit.source import indented
from jax_pmap.syntax.lines import Lines, Node, parsed_expression
from jax_pmap.worker.scopes import bound_names, own_nodes, parameters, positional, root_name, used_names

#: Collectives that are sums, or differ from them by a number.
SUMS = ("psum", "pmean")
#: Transformations that differentiate in their first argument unless `argnums` says otherwise.
GRADIENTS = ("grad", "value_and_grad")
#: Modules whose functions take no more memory than the arrays that they are given, ...
ARRAYS = ("jnp", "np", "numpy")
#: ... but for those.
PRODUCTS = frozenset({"dot", "matmul", "einsum", "tensordot", "vdot", "outer", "kron", "vmap", "vectorize"})
#: What else makes nothing larger of what it is given, a method or not.
SMALL = ("sum", "mean", "astype", "len", *SUMS)


class Indivisible(Exception):
    """Why a body cannot work on microbatches: the reason, the way out, and what source stands in the way."""

    def __init__(self, reason: str, hint: str, source: str) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.source = reason, hint, source


@dataclass(frozen=True, slots=True)
class Inner:
    """A collective in a function that the body calls."""

    function: str
    op: str
    #: Source of what it is taken of, ...
    operand: str
    #: ... and of the same where the function is called, or why there is none.
    outside: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Statement:
    """A statement of the body."""

    text: str
    node: ast.stmt
    reads: set[str]
    binds: set[str]
    #: Names that collectives in it are taken of, with the collective.
    summed: dict[str, str] = field(default_factory=dict)
    #: Whether what it is taken of is small, and made of the whole share at once.
    at_once: bool = False


# --- text by syntax --------------------------------------------------------------------------------


def plain(source: str) -> str:
    """An expression as it is told from others, however it is laid out."""
    return ast.unparse(parsed_expression(source))


def _segment(text: str, node: ast.expr | ast.stmt) -> str:
    return Lines(text, "").segment(node)


def _replaced(text: str, changes: Sequence[tuple[Node, str]]) -> str:
    """`text` with the source of some nodes of its tree changed."""
    lines = Lines(text, "")
    for start, end, new in sorted(((*lines.bounds(node), new) for node, new in changes), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _inserted(text: str, node: Node, new: str) -> str:
    """`text` with something new behind a node of its tree."""
    end = Lines(text, "").bounds(node)[1]
    return text[:end] + new + text[end:]


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all in it, without going into functions."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def _reads(node: ast.AST) -> set[str]:
    """Names that a node takes from around it, those that functions in it take among them."""
    return used_names([node])


def _binds(node: ast.stmt) -> set[str]:
    """Names that a statement binds, or whose value it changes."""
    parts = (n for n in own_nodes([node]) if isinstance(n, ast.Attribute | ast.Subscript))
    changed = {root_name(n) for n in parts if not isinstance(n.ctx, ast.Load)}
    return bound_names([node]) | {name for name in changed if name is not None}


def _statement(text: str) -> _Statement:
    [node] = ast.parse(text).body
    return _Statement(text, node, _reads(node), _binds(node))


def _statements(body: str) -> list[_Statement]:
    """The statements of a body, each with the comments ahead of it."""
    lines = body.splitlines()
    out: list[_Statement] = []
    done = 0
    for node in ast.parse(body).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if first <= done or (out and ";" in lines[node.lineno - 1][: node.col_offset]):
            out.append(_statement(ast.unparse(node)))
            continue
        text = "\n".join(lines[done : node.end_lineno])
        try:
            out.append(_statement(text))
        except ValueError:  # Several statements on one line.
            out.append(_statement(ast.unparse(node)))
        done = node.end_lineno or node.lineno
    return out


# --- collectives -----------------------------------------------------------------------------------


class Divided:
    """A woven body and the copies beside it, divided into microbatches.

    Args:
        body: source of the body, collectives woven in.
        copies: source of the functions that the file carries for it, by name.
        batch: parameters that are divided among the devices.
        names: those of the file.
        parted: what sums are taken of that stand ahead of the microbatches, and of which each has its part.
        keeps: whether what is no sum is kept of one microbatch, as it is the same for each.
    """

    def __init__(
        self,
        body: str,
        copies: Mapping[str, str],
        batch: Sequence[str],
        names: Names,
        parted: Collection[str] = (),
        *,
        keeps: bool = False,
    ) -> None:
        self.n, self.batch, self.parted = names, tuple(batch), frozenset(parted)
        self.copies, self.body = dict(copies), body
        #: Whether something may be kept, and is.
        self.keeps, self.kept = keeps, False
        #: Names that must not be used for anything new.
        self.taken = {*batch, *copies, *dataclasses.asdict(names).values()}
        for text in (body, *copies.values()):
            for node in ast.walk(ast.parse(text)):
                self.taken |= {getattr(node, each, None) for each in ("id", "arg", "name")} - {None}

    def free(self, wanted: str) -> str:
        """A name like `wanted` that is not taken; it is, from now on."""
        name = wanted
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def collective(self, node: ast.AST) -> str | None:
        """Which collective over the axis a node is, if it is one."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        axis = next((k.value for k in node.keywords if k.arg == "axis_name"), None)
        ours = isinstance(axis, ast.Name) and axis.id == self.n.axis
        return node.func.attr if ours and ast.unparse(node.func.value) == f"{self.n.jax}.lax" else None

    def inner(self) -> list[Inner]:
        """The collectives in functions that the body calls, and what they are where these are called."""
        return [found for _, _, found in self._inner()]

    def _inner(self) -> Iterator[tuple[str, ast.Call, Inner]]:
        """(the definition's text, the call in its tree, what is known of it)."""
        tree = ast.parse(self.body)
        nested = {
            node.name: _segment(self.body, node) for node in tree.body if isinstance(node, ast.FunctionDef)
        }
        for name, text in {**self.copies, **nested}.items():
            definition = ast.parse(text).body[0]
            for node in ast.walk(definition):
                op = self.collective(node)
                if op is None:
                    continue
                assert isinstance(node, ast.Call)
                operand = ast.unparse(node.args[0])
                try:
                    if not isinstance(definition, ast.FunctionDef):
                        raise LookupError("it is no function")
                    outside = self._outside(definition, node.args[0], nested=name in nested)
                    yield text, node, Inner(name, op, operand, outside)
                except LookupError as why:
                    yield text, node, Inner(name, op, operand, reason=str(why))

    def _outside(self, function: ast.FunctionDef, operand: ast.expr, *, nested: bool) -> str:
        """Source of what a collective in a function is taken of, where the body calls that function.

        Raises:
            LookupError: there is none; why.
        """
        made = self._inlined(function, operand)
        names = positional(function)
        used = _reads(made) & {each.arg for each in parameters(function.args)}
        if used:
            made = _Substituted(self._given(function.name, names, used)).visit(made)
        elif not nested:
            self._given(function.name, names, set())
        return ast.unparse(made)

    def _inlined(self, function: ast.FunctionDef, operand: ast.expr) -> ast.expr:
        """What a function is asked for, by its parameters and by names around it."""
        written = [
            n.id
            for n in own_nodes(function.body)
            if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
        ]
        # Each name's values in turn, with which statement of the function gives it.
        values: dict[str, list[tuple[int, ast.expr]]] = {name: [] for name in bound_names(function.body)}
        for index, statement in enumerate(function.body):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                for name, value in _parts(statement.targets[0], statement.value):
                    values.setdefault(name, []).append((index, value))
        given = {each.arg for each in parameters(function.args)}
        here = next((i for i, each in enumerate(function.body) if operand in _own(each)), None)

        def inline(expression: ast.expr, at: int | None) -> ast.expr:
            found: dict[str, ast.expr] = {}
            # A function inside sees what a name is when it is called, not where it stands.
            own = {n.id for n in _own(expression) if isinstance(n, ast.Name)} if at is not None else set()
            for name in _reads(expression) & values.keys():
                ahead = [(i, v) for i, v in values[name] if at is None or i < at]
                several = name not in own and (name in given or len(values[name]) > 1)
                if several or len(values[name]) != written.count(name) or not (ahead or name in given):
                    raise LookupError(f"`{name}` is not bound by one assignment alone")
                if ahead:
                    found[name] = inline(ahead[-1][1], ahead[-1][0])
            return _Substituted(found).visit(copy.deepcopy(expression))  # type: ignore[no-any-return]

        return inline(operand, here)

    def _given(self, name: str, parameters: Sequence[str], used: Collection[str]) -> dict[str, ast.expr]:
        """What the body gives to parameters of a function that it calls once.

        Raises:
            LookupError: it cannot be told, or is what the function is differentiated by.
        """
        tree = ast.parse(self.body)
        uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name]
        if len([n for n in uses if isinstance(n.ctx, ast.Load)]) != 1:
            raise LookupError(f"`{name}` is not called once, by its name")
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        at: ast.AST = next(n for n in uses if isinstance(n.ctx, ast.Load))
        by: tuple[int, ...] = ()
        call = parents[at]
        bound: list[ast.keyword] = []
        if isinstance(call, ast.Call) and call.func is not at and self._is_bound(call):
            bound, at, call = call.keywords, call, parents[call]
        if isinstance(call, ast.Call) and call.func is not at:
            if not call.args or call.args[0] is not at:
                raise LookupError(f"what `{name}` is called with does not stand in the body")
            if ast.unparse(call.func).rpartition(".")[2] not in GRADIENTS:
                raise LookupError(f"`{name}` is called by way of `{ast.unparse(call.func)}`")
            argnums = next((k.value for k in call.keywords if k.arg == "argnums"), ast.Constant(0))
            try:
                said = ast.literal_eval(argnums)
            except ValueError:
                raise LookupError(f"`argnums` of the gradient of `{name}` is no constant") from None
            by = (said,) if isinstance(said, int) else tuple(said)
            at, call = call, parents[call]
            if isinstance(call, ast.Assign) and isinstance(call.targets[0], ast.Name):
                gradient = call.targets[0].id
                calls = [
                    n
                    for n in ast.walk(tree)
                    if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == gradient
                ]
                if len(calls) != 1:
                    raise LookupError(f"`{gradient}` is not called once, by its name")
                call, at = calls[0], calls[0].func
        if not isinstance(call, ast.Call) or call.func is not at:
            raise LookupError(f"what `{name}` is called with does not stand in the body")
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            raise LookupError(f"`{name}` is called with `*` or `**`")
        given = dict(zip(parameters, call.args, strict=False))
        given |= {k.arg: k.value for k in (*bound, *call.keywords) if k.arg is not None}
        for parameter in used:
            if parameter not in given:
                raise LookupError(f"`{parameter}` is not given where `{name}` is called")
            if parameter in parameters and parameters.index(parameter) in by:
                raise LookupError(f"it depends on `{parameter}`, by which `{name}` is differentiated")
        return {parameter: given[parameter] for parameter in used}

    def _is_bound(self, call: ast.Call) -> bool:
        """Whether a call is of `functools.partial`, and binds sums that were moved here, or other names."""
        partial = ast.unparse(call.func) == f"{self.n.functools}.partial"
        return partial and len(call.args) == 1 and bool(call.keywords)

    # --- dividing --------------------------------------------------------------------------------

    def divide(self) -> None:
        """Divide the body: it, and the copies, are then those that work on microbatches.

        Raises:
            Indivisible: it cannot work on microbatches.
        """
        totals = self._moved()
        self._refuse_hidden()
        out: list[_Statement] = []
        for statement in _statements(self.body):
            for function in [f for f in totals if f in statement.reads]:
                out += [self._noted(line, at_once=True) for line in totals.pop(function)]
            bound = {name for each in out for name in each.binds}
            out += self._lifted(statement, bound)
        self.body = "\n".join(self._staged(out))

    def _moved(self) -> dict[str, list[str]]:
        """Move collectives out of functions that the body calls: statements ahead of the call of each."""
        ahead: dict[str, list[str]] = {}
        known: dict[tuple[str, str], str] = {}
        while True:
            first = next(self._inner(), None)
            if first is None:
                return ahead
            text, node, found = first
            if not found.outside:
                raise Indivisible(
                    f"`{found.function}` needs `{found.operand}` of the whole batch, which no group of "
                    f"examples has by itself: {found.reason}",
                    "Compute it in the step, ahead of what is differentiated, and pass it as an argument",
                    found.operand,
                )
            line = f"{self.n.jax}.lax.{found.op}({found.outside}, axis_name={self.n.axis})"
            line += f" / {self.n.groups}" if found.operand in self.parted else ""
            total = known.get((found.function, line), "")
            again = bool(total)
            if not again:
                total = known[found.function, line] = self.free("total")
                ahead.setdefault(found.function, []).append(f"{total} = {line}")
            made = _replaced(text, [(node, total)])
            if found.function not in self.copies:
                tree = ast.parse(self.body)
                definition = next(n for n in tree.body if getattr(n, "name", "") == found.function)
                self.body = _replaced(self.body, [(definition, made)])
                # The name is read where it is defined, ahead of every call.
                continue
            self.copies[found.function] = made if again else _with_parameter(made, total)
            if again:
                continue
            tree = ast.parse(self.body)
            use = next(n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == found.function)
            calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and use in n.args)
            around = next(filter(self._is_bound, calls), None)
            if around is not None:
                self.body = _inserted(self.body, around.keywords[-1].value, f", {total}={total}")
            else:
                bound = f"{self.n.functools}.partial({found.function}, {total}={total})"
                self.body = _replaced(self.body, [(use, bound)])

    def _refuse_hidden(self) -> None:
        """Refuse what is made whole in a function without a name, or in one that a branch defines."""
        tree = ast.parse(self.body)
        seen = {id(node) for node in _own(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and self.collective(node) and id(node) not in seen:
                operand = ast.unparse(node.args[0])
                raise Indivisible(
                    f"`{operand}` is needed of the whole batch where it stands, and no group of them has it",
                    "If it depends on the batch alone, compute it in the step, or make a function with a name"
                    " (`def`) of the lambda around it; else leave --accumulate out",
                    operand,
                )

    def _collectives(self, statement: _Statement) -> list[ast.Call]:
        """The collectives in a statement, outside the functions in it, and not those inside of others."""
        found = [n for n in _own(statement.node) if isinstance(n, ast.Call) and self.collective(n)]
        inside = {id(n) for call in found for n in ast.walk(call) if n is not call}
        return [call for call in found if id(call) not in inside]

    def _noted(self, text: str, *, at_once: bool = False) -> _Statement:
        """A statement, with what the collectives in it are taken of: names, unless it is made `at_once`."""
        statement = _statement(text)
        statement.at_once = at_once
        for node in self._collectives(statement):
            op = self.collective(node)
            assert op is not None
            for name in _reads(node.args[0]):
                if statement.summed.setdefault(name, op) != op:
                    raise Indivisible(
                        f"`{name}` is summed over the devices in two ways",
                        "Give each its own name",
                        statement.text,
                    )
        return statement

    def _other_reads(self, statement: _Statement) -> set[str]:
        """What a statement reads beside that of which its collectives are taken."""
        inside = {id(n) for call in self._collectives(statement) for n in ast.walk(call)}
        own = {
            n.id
            for n in ast.walk(statement.node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in inside
        }
        return own & statement.reads

    def _apart(self, statement: _Statement) -> list[_Statement]:
        """A statement behind ones that give a name to each collective in it."""
        changes = [(node, self.free("total")) for node in self._collectives(statement)]
        made = [self._noted(f"{name} = {_segment(statement.text, node)}") for node, name in changes]
        return [*made, _statement(_replaced(statement.text, changes))]

    def _lifted(self, statement: _Statement, bound: Collection[str]) -> Iterator[_Statement]:
        """A statement behind those that give a name to what collectives in it are taken of.

        What is taken of the batch itself, and of nothing that is `bound` by then, is made at once.
        """
        found = self._collectives(statement)
        if not found:
            yield statement
            return
        if not isinstance(statement.node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            raise Indivisible(
                "a sum over the devices stands in a loop or a branch",
                "Take the sum behind it, in a statement of its own",
                statement.text,
            )
        changes: list[tuple[Node, str]] = []
        for node in found:
            operand, source = node.args[0], _segment(statement.text, node.args[0])
            plain = [operand, *operand.elts] if isinstance(operand, ast.Tuple | ast.List) else [operand]
            if all(isinstance(n, ast.Name | ast.Tuple | ast.List) for n in plain):
                continue
            if not _reads(operand) & set(bound) and _is_small(_statement(f"_ = {source}")):
                name = self.free("total")
                yield self._noted(f"{name} = {_segment(statement.text, node)}", at_once=True)
                changes.append((node, name))
            else:
                name = self.free("local")
                yield from self._lifted(_statement(f"{name} = {source}"), bound)
                changes.append((operand, name))
        yield self._noted(_replaced(statement.text, changes))

    def _staged(self, statements: list[_Statement]) -> Iterator[str]:
        """The lines of the divided body."""
        ops = {name: op for each in statements if not each.at_once for name, op in each.summed.items()}
        local: list[_Statement] = []
        tainted = set(self.batch)
        whole: set[str] = set()
        waiting = list(statements)
        stages = 0
        while waiting:
            statement = waiting.pop(0)
            if not statement.summed:
                if statement.reads & tainted and not isinstance(statement.node, ast.Return):
                    if statement.binds & whole:
                        name = min(statement.binds & whole)
                        raise (
                            _twice(statement.text, statement.text) if stages else _two_values(name, statement)
                        )
                    local.append(statement)
                    tainted |= statement.binds
                    continue
                several = statement.binds & {n for each in local for n in (each.reads | each.binds)} - whole
                if several and not stages:
                    raise _two_values(min(several), statement)
            elif self._other_reads(statement) & tainted and not isinstance(statement.node, ast.Return):
                waiting[:0] = self._apart(statement)
                continue
            elif statement.at_once:
                part = _slice([each for each in local if each.binds], sorted(statement.summed), whole)
                if not all(map(_is_small, part)):
                    raise _twice(statement.text.partition(" = ")[2], statement.text)
                _check_again(part)
                yield from (each.text for each in part)
                yield statement.text
                continue
            elif statement.summed.keys() & (tainted - whole):
                self._ahead(statement, local, waiting, tainted)
                outputs = [
                    name
                    for name in dict.fromkeys(n for each in local for n in sorted(each.binds))
                    if name in ops and name not in whole
                ]
                outputs = _in_order(outputs, local)
                part = _slice(local, outputs, whole)
                kept: list[str] = []
                if all(map(_is_small, part)):
                    _check_again(part)
                    yield from (each.text for each in part)
                elif stages:
                    raise _twice(", ".join(outputs), statement.text)
                else:
                    stages += 1
                    if self.keeps:
                        later = self._needed([statement, *waiting]) - whole - set(outputs)
                        values = {n for each in local for n in each.binds} - _functions([*local, *waiting])
                        kept = _in_order(sorted(later & values), local)
                        part = _slice(local, [*outputs, *kept], whole)
                    yield from self._loop(part, outputs, ops, kept)
                whole |= {*outputs, *kept}
                tainted -= {*outputs, *kept}
            lost = statement.reads & tainted
            if lost:
                name = min(lost)
                raise Indivisible(
                    f"`{name}` is of each example, or holds more than sums over them, and is needed where "
                    "the sums over all of them are there",
                    "Return it from a function of its own, or leave --accumulate out",
                    statement.text,
                )
            tainted -= statement.binds
            yield statement.text
        if not stages:
            raise Indivisible(
                "nothing large is summed over the batch, so working on groups of examples saves no memory",
                "Leave --accumulate out",
                "",
            )

    @staticmethod
    def _ahead(
        total: _Statement, local: list[_Statement], waiting: list[_Statement], tainted: set[str]
    ) -> None:
        """Move statements that are of each example, and wait for nothing, in front of the first sum."""
        late = set(total.binds)
        for statement in list(waiting):
            movable = isinstance(statement.node, ast.Assign | ast.AnnAssign) and not statement.summed
            if movable and statement.reads & tainted and not (statement.reads | statement.binds) & late:
                waiting.remove(statement)
                local.append(statement)
                tainted |= statement.binds
            else:
                late |= statement.binds

    def _needed(self, statements: Sequence[_Statement]) -> set[str]:
        """Names that some statements read as they are, and that none of them binds ahead of that."""
        found, bound = set[str](), set[str]()
        for each in statements:
            found |= self._other_reads(each) - bound
            bound |= each.binds
        return found

    def _loop(
        self,
        part: Sequence[_Statement],
        outputs: Sequence[str],
        ops: Mapping[str, str],
        kept: Sequence[str] = (),
    ) -> Iterator[str]:
        """The function of one group, the sums of what it gives, and what is `kept` beside them."""
        n = self.n
        function = self.free("sums")
        read = {name for each in part for name in each.reads}
        given = [name for name in self.batch if name in read]
        bound: set[str] = set(given)
        first: dict[str, None] = {}
        for each in part:
            first |= dict.fromkeys(sorted(each.reads - bound))
            bound |= each.binds
        again = [name for name in first if any(name in each.binds for each in part)]
        lines = [each.text for each in part]
        last = part[-1].node
        given_back = ", ".join(outputs)
        if kept:
            self.kept = True
            given_back = ", ".join(
                names[0] if len(names) == 1 else f"({', '.join(names)})" for names in (outputs, kept)
            )
        returned = f"return {given_back}"
        if not kept and isinstance(last, ast.Assign) and len(last.targets) == 1:
            [target] = last.targets
            names = [e.id for e in getattr(target, "elts", [target]) if isinstance(e, ast.Name)]
            plain = not isinstance(target, ast.Tuple) or len(names) == len(target.elts)
            if names == list(outputs) and plain:
                lead = part[-1].text[: part[-1].text.index(_segment(part[-1].text, last))]
                lines[-1] = f"{lead}return {_segment(part[-1].text, last.value)}"
                returned = ""
        yield f"def {function}({', '.join([*given, *(f'{name}={name}' for name in again)])}):"
        yield from (indented(text, 4) for text in lines)
        if returned:
            yield f"    {returned}"
        yield ""
        # A tuple of one has to be taken apart as well.
        yield f"{given_back} = {n.accumulated}({', '.join([function, *given])})"
        means = [name for name in outputs if ops[name] == "pmean"]
        if means:
            value = means[0] if len(means) == 1 else f"({', '.join(means)})"
            scaled = f"{n.jax}.tree.map(lambda leaf: leaf / {n.groups}, {value})"
            yield f"{', '.join(means)} = {scaled}"


class _Substituted(ast.NodeTransformer):
    """Expressions in place of names."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The expression that stands for a name."""
        return copy.deepcopy(self.values.get(node.id, node))


def _parts(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment binds, with what each is."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        for index, element in enumerate(target.elts):
            part = ast.Subscript(value, ast.Constant(index), ast.Load())
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                yield from _parts(element, value.elts[index])
            else:
                yield from _parts(element, part)


def _with_parameter(text: str, name: str) -> str:
    """A function that takes one more argument, by its name."""
    [definition] = ast.parse(text).body
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    if given.kwarg is not None:
        raise Indivisible(
            f"`{definition.name}` takes `**{given.kwarg.arg}`, so a sum of the batch cannot be passed to it",
            "Name its arguments",
            f"def {definition.name}",
        )
    ends: list[ast.expr | ast.arg] = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    ends += [a.annotation for a in ends if isinstance(a, ast.arg) and a.annotation is not None]
    ends += [d for d in (*given.defaults, *given.kw_defaults) if d is not None]
    ends += [given.vararg] if given.vararg is not None else []
    last = max(ends, key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0))
    star = "" if given.vararg is not None or given.kwonlyargs else "*, "
    return _inserted(text, last, f", {star}{name}")


def _twice(what: str, source: str) -> Indivisible:
    return Indivisible(
        f"`{what}` is summed over the batch apart from other sums that are made of the same examples, so "
        "each group of them would be gone through twice",
        "Compute one of the sums in the step from the batch alone, ahead of what is differentiated",
        source,
    )


def _two_values(name: str, statement: _Statement) -> Indivisible:
    return Indivisible(
        f"`{name}` is one value in what is computed for each group of examples, and then another",
        "Give each value a name of its own",
        statement.text,
    )


def _check_again(part: Sequence[_Statement]) -> None:
    """Refuse statements that would give another value where they stand once more, in the loop.

    Raises:
        Indivisible: one binds anew a name that it, or one ahead of it, takes from around them.
    """
    read, bound = set[str](), set[str]()
    for each in part:
        read |= each.reads - bound
        bound |= each.binds
        if bound & read:
            raise _two_values(min(bound & read), each)


def _in_order(names: Sequence[str], local: Sequence[_Statement]) -> list[str]:
    """Names in the order in which statements write them."""
    written = [
        (index, n.lineno, n.col_offset, n.id)
        for index, each in enumerate(local)
        for n in ast.walk(each.node)
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    ]
    first = {name: place for *place, name in sorted(written, reverse=True)}
    return sorted(names, key=lambda name: first.get(name, []))


def _functions(statements: Sequence[_Statement]) -> set[str]:
    """Names that stand for functions: what makes them says so, or they are called."""
    found = set[str]()
    for node in (node for each in statements for node in ast.walk(each.node)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
    return found


def _slice(local: Sequence[_Statement], wanted: Sequence[str], whole: Collection[str]) -> list[_Statement]:
    """The statements that lead to some names, and those that do something beside binding names.

    What is `whole` by then is there, and what it was a part of is not made again.

    Raises:
        Indivisible: that would be made again beside what is needed.
    """
    needed = set(wanted)
    found: list[_Statement] = []
    for each in reversed(local):
        if each.binds & needed or not each.binds:
            again = sorted((each.binds - needed) & set(whole))
            if again:
                raise Indivisible(
                    f"`{again[0]}` is summed over the batch, and made together with what each group of "
                    "examples needs by itself",
                    "Compute it in a statement of its own",
                    each.text,
                )
            found.append(each)
            needed |= each.reads - set(whole)
    return found[::-1]


def _is_small(statement: _Statement) -> bool:
    """Whether a statement makes nothing larger than the batch, which is there anyway."""
    if not isinstance(statement.node, ast.Assign | ast.AnnAssign):
        return False
    for node in ast.walk(statement.node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return False
        if isinstance(node, ast.Call):
            base, _, name = ast.unparse(node.func).rpartition(".")
            array = base in ARRAYS or base.endswith("numpy") or name in SMALL
            if not array or name in PRODUCTS:
                return False
    return True
