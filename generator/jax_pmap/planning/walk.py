"""Follows kinds through the statements of a body, and puts a collective where a value is partial."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from jax_pmap.model import Sync, refused
from jax_pmap.planning.rules import RULES
from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.rules.einsum import product
from jax_pmap.planning.values import (
    ARRAY,
    REPLICATED,
    SIZE,
    VARYING,
    Value,
    flat,
    join,
    partial,
)
from jax_pmap.reading.calls import decorated_gradient, gradient_of
from jax_pmap.reading.decorators import COMPILERS
from jax_pmap.reading.parse import ParsedSource
from jax_pmap.reading.resolve import UNKNOWN, Resolver
from jax_pmap.reading.scopes import parameters, root_name

_ARRAY_METHODS = frozenset(
    """all any argmax argmin argsort astype copy cumprod cumsum dot max mean min prod ravel repeat reshape
    sort squeeze std sum swapaxes transpose var""".split()  # noqa: SIM905
)
#: Functions that hand their argument back, compiled or rematerialised.
_WRAPPERS = COMPILERS | {"jax.checkpoint", "jax.remat", "jax.named_call"}
#: How deep calls of the file's own functions are followed.
_DEPTH = 5


class Walk:
    """One walk: through the target itself, or (`inside`) through a function it calls.

    In the target a partial value gets its collective. Inside a called function none can be put, so partial
    values must reach the result by linear steps alone, or the result is varying.
    """

    def __init__(
        self, parsed: ParsedSource, resolver: Resolver, names: dict[str, Value], outer: Walk | None = None
    ) -> None:
        """Start with `names`: the parameters and, in a nested function, what is around it."""
        self.parsed, self.resolver, self.names = parsed, resolver, names
        self.inside = outer is not None
        self.depth: int = outer.depth + 1 if outer else 0
        self.syncs: dict[tuple[object, ...], Sync] = outer.syncs if outer else {}
        self.notes: dict[str, None] = outer.notes if outer else {}
        self.functions: dict[str, ast.FunctionDef] = outer.functions if outer else _functions(parsed)
        #: What functions of the module returned for arguments of these kinds.
        self.known: dict[tuple[object, ...], Value] = outer.known if outer else {}
        #: Returned expressions with their values, after the collectives they need.
        self.returned: list[tuple[ast.expr | None, Value]] = []

    # -- what rules ask ----------------------------------------------------------------------

    def note(self, node: ast.expr, text: str) -> None:
        """Tell the reader of an assumption."""
        self.notes[f"Line {node.lineno}: {text}."] = None

    def refuse(self, code: str, node: ast.expr, reason: str, hint: str) -> NoReturn:
        """Give up."""
        raise refused(code, reason, hint, self.parsed.span(node))

    def whole(self, node: ast.expr, value: Value) -> Value:
        """The value after a collective around `node`, where it needs one."""
        if value.function is not None or all(leaf.kind != "partial" for leaf in flat(value)):
            return value
        if self.inside:
            return VARYING
        if isinstance(node, ast.Tuple | ast.List) and value.items is not None:
            return replace(value, items=tuple(map(self.whole, node.elts, value.items)))
        if isinstance(node, ast.Dict) and value.items is not None and len(node.values) == len(value.items):
            return replace(value, items=tuple(map(self.whole, node.values, value.items)))
        ops = {leaf.op if leaf.kind == "partial" else leaf.kind for leaf in flat(value)}
        if len(ops) > 1:
            self.refuse(
                "JP043",
                node,
                f"`{self._short(node)}` holds values of different kinds ({', '.join(sorted(ops))}).",
                "Unpack it into names first, so that each gets its own.",
            )
        self._sync(Sync(ops.pop(), self._short(node), "wrap", self.parsed.span(node)))
        return _made_whole(value)

    def invoke(self, function: Value, arguments: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        """What a function of the file returns for arguments of these kinds."""
        definition = function.function
        if definition is None or self.depth >= _DEPTH:
            return join([leaf for value in (*arguments, *keywords.values()) for leaf in flat(value)])
        # A nested function also depends on what is around it, and that changes.
        key = (definition, *arguments, *sorted(keywords.items(), key=lambda item: item[0]))
        if not function.around and key in self.known:
            return self.known[key]
        names = dict(function.around)
        own = list(parameters(definition.args))
        names.update((item.arg, REPLICATED) for item in own)
        positional = [*definition.args.posonlyargs, *definition.args.args]
        names.update((item.arg, value) for item, value in zip(positional, arguments, strict=False))
        if definition.args.vararg and len(arguments) > len(positional):
            names[definition.args.vararg.arg] = Value(items=tuple(arguments[len(positional) :]))
        known = {item.arg for item in own}
        names.update((name, value) for name, value in keywords.items() if name in known)
        walk = Walk(self.parsed, self.resolver, names, self)
        if isinstance(definition, ast.Lambda):
            return walk.value(definition.body)
        walk.body(definition.body)
        result = join([value for _, value in walk.returned]) if walk.returned else REPLICATED
        if not function.around:
            self.known[key] = result
        return result

    # -- statements --------------------------------------------------------------------------

    def body(self, statements: Sequence[ast.stmt]) -> None:
        """Walk through statements in order."""
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """One statement, and those inside it."""
        if isinstance(node, ast.Assign):
            value = self.value(node.value)
            for target in node.targets:
                self._assign(target, value, node, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.value(node.value), node, node.value)
        elif isinstance(node, ast.AugAssign):
            before = self.value(node.target)
            value = self._operation(node.op, node.target, before, node.value, self.value(node.value))
            self._assign(node.target, value, node, node.value)
        elif isinstance(node, ast.Return):
            value = self.value(node.value) if node.value else REPLICATED
            if node.value is not None and not self.inside:
                value = self.whole(node.value, value)
            self.returned.append((node.value, value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            made = decorated_gradient(self.resolver, node)
            self.names[node.name] = Value(function=node, around=self.names, gradient=made)
        elif isinstance(node, ast.If):
            self.whole(node.test, self.value(node.test))
            self._branches([node.body, node.orelse])
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._assign(node.target, _element(self.value(node.iter)), None, node.iter)
            self._branches([node.body, []])
            # Once more with what the first round left in the names.
            self._branches([node.body, []])
            self.body(node.orelse)
        elif isinstance(node, ast.While):
            self.whole(node.test, self.value(node.test))
            self._branches([node.body, []])
            self._branches([node.body, []])
        elif isinstance(node, ast.With | ast.AsyncWith):
            self.body(node.body)
        elif isinstance(node, ast.Try):
            self.body([*node.body, *(line for handler in node.handlers for line in handler.body)])
            self.body([*node.orelse, *node.finalbody])
        elif isinstance(node, ast.Match):
            self._branches([case.body for case in node.cases])
        elif isinstance(node, ast.Expr):
            self.value(node.value)

    def _branches(self, blocks: Sequence[Sequence[ast.stmt]]) -> None:
        """Walk each block from the same names; afterwards a name is what any of them made it."""
        before = dict(self.names)
        ends = []
        for block in blocks:
            self.names.clear()
            self.names.update(before)
            self.body(block)
            if not (block and isinstance(block[-1], ast.Return | ast.Raise)):
                ends.append(dict(self.names))
        self.names.clear()
        self.names.update(before)
        for name in {name for end in ends for name in end}:
            seen = [end[name] for end in ends if name in end]
            self.names[name] = seen[0] if all(value == seen[0] for value in seen) else join(seen)

    def _assign(self, target: ast.expr, value: Value, statement: ast.stmt | None, source: ast.expr) -> None:
        if isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            if statement is not None and not self.inside:
                value = self._after(target.id, value, statement)
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for part, item in zip(target.elts, _unpacked(value, target.elts), strict=True):
                self._assign(part, item, statement, source)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            value = self.whole(source, value)
            name = root_name(target)
            if name is not None:
                self._store(name, target, value)

    def _store(self, name: str, target: ast.Subscript | ast.Attribute, value: Value) -> None:
        """``metrics["loss"] = loss`` adds an item; anything less plain joins the whole."""
        old = self.names.get(name, REPLICATED)
        key = (
            target.slice if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else None
        )
        if isinstance(key, ast.Constant) and old.items is not None and (old.keys or not old.items):
            items = dict(zip(old.keys, old.items, strict=True)) | {repr(key.value): value}
            self.names[name] = replace(old, items=tuple(items.values()), keys=tuple(items))
        elif any(leaf.kind != "replicated" for leaf in flat(value)):
            self.names[name] = join([*flat(old), *flat(value)])

    def _after(self, name: str, value: Value, statement: ast.stmt) -> Value:
        """Syncs of a name right after its assignment. A size waits for its use: reshape wants it local."""
        if value.is_size or value.function is not None:
            return value
        paths: dict[str, list[str]] = {}
        for path, leaf in _paths(value):
            if leaf.kind == "partial":
                paths.setdefault(leaf.op, []).append(path)
        for op, found in paths.items():
            everything = len(found) == len(flat(value))
            where = ("",) if everything else tuple(found)
            self._sync(Sync(op, name, "after", self.parsed.span(statement), where))
        return _made_whole(value) if paths else value

    def _sync(self, sync: Sync) -> None:
        self.syncs[sync.span, sync.value, sync.op] = sync

    # -- expressions -------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """The value of an expression."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is not None:
            found: Value = method(node)
            return found
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return join([leaf for part in parts for leaf in flat(self.whole(part, self.value(part)))])

    def _constant(self, _: ast.Constant) -> Value:
        return REPLICATED

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.names:
            return self.names[node.id]
        if statement := self.functions.get(node.id):
            return Value(function=statement, gradient=decorated_gradient(self.resolver, statement))
        made = self.resolver.names.values.get(node.id)
        if made is not None:
            gradient = gradient_of(self.resolver, made)
            if gradient is not None:
                return Value(gradient=gradient)
            if isinstance(made, ast.Call) and made.args and self._compiles(made):
                return self.value(made.args[0])
        return REPLICATED

    def _compiles(self, call: ast.Call) -> bool:
        """Whether a call only wraps its first argument, as ``jax.jit(f)`` does."""
        return self.resolver.qualify(call.func) in _WRAPPERS

    def _lambda(self, node: ast.Lambda) -> Value:
        return Value(function=node, around=self.names)

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        if base.kind == "sharded":
            if node.attr == "shape":
                return replace(base, form="shape")
            if node.attr == "size":
                return SIZE
            if node.attr in ("ndim", "dtype"):
                return REPLICATED
            if node.attr == "T":
                return replace(base, axis={0: -1, -1: 0}.get(base.axis, base.axis), form="array")
        if base.kind == "partial":
            base = self.whole(node.value, base)
        return join(flat(base)) if base.items is not None else replace(base, function=None)

    def _subscript(self, node: ast.Subscript) -> Value:
        base, index = self.value(node.value), node.slice
        literal = self.resolver.literal(index)
        if base.form == "shape":
            if isinstance(index, ast.Slice):
                start = self.resolver.literal(index.lower) if index.lower else 0
                return REPLICATED if isinstance(start, int) and start > base.axis else base
            return SIZE if literal == base.axis else REPLICATED
        if base.items is not None:
            if base.keys and repr(literal) in base.keys:
                return base.items[base.keys.index(repr(literal))]
            if not base.keys and isinstance(literal, int) and -len(base.items) <= literal < len(base.items):
                return base.items[literal]
            return join(flat(base))
        if base.kind == "partial":
            base = self.whole(node.value, base)
        inside = [] if isinstance(index, ast.Slice) else flat(self.whole(index, self.value(index)))
        if base.kind == "replicated":
            return join([ARRAY, *inside]) if inside else base
        if base.kind != "sharded" or isinstance(literal, str):
            return base
        return self._indexed(node, base, literal)

    def _indexed(self, node: ast.Subscript, base: Value, literal: object) -> Value:
        """``x[:, 0]``, ``x[None]`` and, of what may be a tuple, ``batch[0]``."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        axis = 0
        for part in parts:
            if isinstance(part, ast.Constant) and part.value is None:
                axis += 1
                continue
            if base.axis < 0 or axis < base.axis:
                # An integer takes an axis away before the batch axis.
                if isinstance(part, ast.Constant) and isinstance(part.value, int):
                    return replace(base, axis=base.axis - 1 if base.axis > 0 else base.axis)
                break
            whole_slice = isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None
            if whole_slice or (isinstance(part, ast.Constant) and part.value is Ellipsis):
                break
            if isinstance(part, ast.Slice) or (isinstance(literal, int) and base.form == "array"):
                self.refuse(
                    "JP043",
                    node,
                    f"`{self._short(node)}` picks examples by their place in the batch.",
                    "Pick them before the call, or parallelise a function that gets the whole batch.",
                )
            if isinstance(literal, int):
                self.note(node, f"`{self._short(node)}` is taken to be an element of a tuple, not an example")
            break
        return replace(base, axis=base.axis + axis if base.axis >= 0 else base.axis)

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        values = [self.value(part.value if isinstance(part, ast.Starred) else part) for part in node.elts]
        if any(isinstance(part, ast.Starred) for part in node.elts):
            return join([leaf for value in values for leaf in flat(value)])
        return Value(items=tuple(values))

    _list = _tuple

    def _dict(self, node: ast.Dict) -> Value:
        values = [self.value(part) for part in node.values]
        if any(key is None or self.resolver.literal(key) is UNKNOWN for key in node.keys):
            return join([leaf for value in values for leaf in flat(value)])
        keys = tuple(repr(self.resolver.literal(key)) for key in node.keys)
        return Value(items=tuple(values), keys=keys)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Value:
        before = dict(self.names)
        for clause in node.generators:
            self._assign(clause.target, _element(self.value(clause.iter)), None, clause.iter)
        element = self.value(node.elt)
        self.names.clear()
        self.names.update(before)
        return element

    _generatorexp = _listcomp

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.whole(node.value, self.value(node.value))
        self.names[node.target.id] = value
        return value

    def _ifexp(self, node: ast.IfExp) -> Value:
        self.whole(node.test, self.value(node.test))
        return join([self.value(node.body), self.value(node.orelse)])

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub | ast.UAdd) and value.op not in ("pmax", "pmin"):
            return value
        return self.whole(node.operand, value)

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.MatMult):
            left, right = self.whole(node.left, left), self.whole(node.right, right)
            # `product` speaks of a call; an operator is one of `matmul`.
            stand_in = ast.copy_location(ast.Call(node, [], []), node)
            call = Call(
                stand_in, "jax.numpy.matmul", REPLICATED, (node.left, node.right), (left, right), {}, self
            )
            return product(call, left, right) or join([left, right])
        return self._operation(node.op, node.left, left, node.right, right)

    def _operation(
        self, op: ast.operator, left_node: ast.expr, left: Value, right_node: ast.expr, right: Value
    ) -> Value:
        """Elementwise arithmetic: linear steps keep a partial value partial."""
        if linear := _linear(op, left, right):
            return linear
        left, right = self.whole(left_node, left), self.whole(right_node, right)
        leaves = [*flat(left), *flat(right)]
        axes = {leaf.axis for leaf in leaves if leaf.kind == "sharded"}
        if len(axes) > 1:
            self.refuse(
                "JP043",
                left_node,
                f"`{self._short(left_node)}` and `{self._short(right_node)}` hold the batch on different "
                "axes: every example meets every other.",
                "Keep that step in a function of its own on one device, or run with example inputs.",
            )
        return join(leaves)

    def _call(self, node: ast.Call) -> Value:
        name = self.resolver.qualify(node.func) or ""
        function = REPLICATED
        nodes = [part.value if isinstance(part, ast.Starred) else part for part in node.args]
        if isinstance(node.func, ast.Attribute):
            receiver = self.value(node.func.value)
            bound = receiver.kind != "replicated" or receiver.items is not None
            if bound and node.func.attr in _ARRAY_METHODS:
                name, nodes = f"jax.numpy.{node.func.attr}", [node.func.value, *nodes]
            elif bound:
                function = self._attribute(node.func)
        else:
            function = self.value(node.func)
        args = tuple(self.value(part) for part in nodes)
        keywords = {keyword.arg or "": self.value(keyword.value) for keyword in node.keywords}
        if self._compiles(node) and args:
            return args[0]
        made = gradient_of(self.resolver, node)
        if made is not None:
            return Value(gradient=made, around=self.names)
        call = Call(node, name, function, tuple(nodes), args, keywords, self)
        for rule in RULES:
            result = rule(call)
            if result is not None:
                return result
        raise AssertionError("the last rule answers every call")

    def _short(self, node: ast.expr) -> str:
        text = " ".join(self.parsed.segment(node).split())
        return text if len(text) <= 40 else text[:37] + "..."


def _functions(parsed: ParsedSource) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in parsed.tree.body if isinstance(node, ast.FunctionDef)}


def _linear(op: ast.operator, left: Value, right: Value) -> Value | None:
    """A partial value after a step that commutes with its collective, or None."""
    if left.items is not None or right.items is not None:
        return None
    kinds = (left.kind, right.kind)
    if "partial" not in kinds:
        return None
    if isinstance(op, ast.Div) and left.op == "psum" and right.is_size:
        # One device's sum over one device's number is one device's mean.
        return partial("pmean")
    means = {left.op, right.op} - {""} <= {"pmean"}
    if isinstance(op, ast.Add | ast.Sub):
        if kinds == ("partial", "partial"):
            same = left.op == right.op and left.op in ("psum", "pmean") and left.is_size == right.is_size
            return left if same else None
        return partial("pmean") if means and "replicated" in kinds else None
    scales = kinds == ("partial", "replicated") or (
        kinds == ("replicated", "partial") and isinstance(op, ast.Mult)
    )
    found = left if left.kind == "partial" else right
    if isinstance(op, ast.Mult | ast.Div) and scales and found.op in ("psum", "pmean") and not found.is_size:
        return partial(found.op)
    return None


def _made_whole(value: Value) -> Value:
    if value.items is not None:
        return replace(value, items=tuple(map(_made_whole, value.items)))
    return ARRAY if value.kind == "partial" else value


def _element(value: Value) -> Value:
    """What a loop over a value yields."""
    return join(value.items) if value.items else value


def _unpacked(value: Value, targets: Sequence[ast.expr]) -> list[Value]:
    if value.items is not None and len(value.items) == len(targets):
        return list(value.items)
    if value.form == "shape":
        return [SIZE if number == value.axis else REPLICATED for number in range(len(targets))]
    one = join(flat(value)) if value.items is not None else replace(value, form="any")
    return [one for _ in targets]


def _paths(value: Value, path: str = "") -> Iterator[tuple[str, Value]]:
    if value.items is None:
        yield path, value
        return
    for number, item in enumerate(value.items):
        yield from _paths(item, f"{path}[{value.keys[number] if value.keys else number}]")
