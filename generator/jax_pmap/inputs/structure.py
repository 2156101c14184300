"""What the body says its arguments contain: subscripts, unpacking, loops, and what uses the leaves.

An abstract run over the syntax tree. Parameters are `Node` trees that grow as the body takes them
apart; names that are assigned from them are aliases of the same nodes, and a function of the same
file that gets a node as an argument is walked with its parameter bound to that very node.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jax_pmap.inputs.hints import hint_of
from jax_pmap.inputs.spec import Spec
from jax_pmap.reading.calls import GRADIENTS
from jax_pmap.reading.parse import ParsedSource
from jax_pmap.reading.resolve import Resolver
from jax_pmap.reading.scopes import parameters

#: Attributes of arrays; any other attribute makes its owner an object.
ARRAY_ATTRIBUTES = frozenset(
    {
        "T",
        "mT",
        "shape",
        "ndim",
        "size",
        "dtype",
        "at",
        "sum",
        "mean",
        "max",
        "min",
        "std",
        "var",
        "prod",
        "any",
        "all",
        "argmax",
        "argmin",
        "reshape",
        "ravel",
        "flatten",
        "astype",
        "transpose",
        "squeeze",
        "swapaxes",
        "dot",
        "copy",
        "clip",
        "round",
        "cumsum",
        "cumprod",
        "conj",
        "real",
        "imag",
        "sort",
        "argsort",
        "take",
        "repeat",
        "item",
        "tolist",
        "nbytes",
        "itemsize",
        "block_until_ready",
        "sharding",
        "view",
        "trace",
        "diagonal",
        "ptp",
    }
)

#: Functions that hand their arguments on to the function they were made from.
_PASSING = frozenset(
    {"jax.jit", "jax.checkpoint", "jax.remat", "jax.named_call", "equinox.filter_jit", "flax.nnx.jit"}
)
_INDEX_ARGUMENTS = {
    "jax.nn.one_hot": (0,),
    "jax.numpy.take_along_axis": (1,),
    "jax.numpy.take": (1,),
    "jax.numpy.bincount": (0,),
    "jax.ops.segment_sum": (1,),
    "jax.ops.segment_max": (1,),
    "optax.softmax_cross_entropy_with_integer_labels": (1,),
    "optax.losses.softmax_cross_entropy_with_integer_labels": (1,),
}
_SIZE_ARGUMENTS = {
    "jax.nn.one_hot": (1,),
    "jax.numpy.zeros": (0,),
    "jax.numpy.ones": (0,),
    "jax.numpy.arange": (0, 1),
    "jax.numpy.eye": (0,),
    "jax.random.split": (1,),
    "range": (0, 1, 2),
    "jax.lax.fori_loop": (1,),
    "jax.numpy.array_split": (1,),
    "jax.numpy.split": (1,),
}
_SIZE_KEYWORDS = frozenset({"axis", "num_classes", "keepdims", "length", "num_segments", "num"})
_SIZED = frozenset({"one_hot", "reshape", "zeros", "ones", "arange", "broadcast_to", "eye"})
_DEPTH = 8


@dataclass(slots=True, eq=False)
class Node:
    """What is known of one value."""

    #: Name the reader knows it by: the parameter, the key, the attribute, the loop variable.
    word: str
    #: Python source that reaches it from the arguments; empty for any element of a loop.
    path: str = ""
    #: Entries by dict key, sequence position or attribute.
    keys: dict[str | int, Node] = field(default_factory=dict)
    positions: dict[int, Node] = field(default_factory=dict)
    attributes: dict[str, Node] = field(default_factory=dict)
    #: What every element is, where the body loops over them.
    each: Node | None = None
    #: Number of elements, where the body unpacks them.
    count: int = 0
    #: True when `count` came from unpacking, which no array of another length survives.
    unpacked: bool = False
    #: What a use says: ``"index"``, ``"key"``, ``"size"``, ``"callable"``, ``"flag"`` …
    uses: set[str] = field(default_factory=set)
    #: Literals it is compared with, as Python source.
    values: list[str] = field(default_factory=list)
    #: The object whose ``update(grads, THIS, params)`` it goes through, and the params if given.
    optimiser: tuple[str, Node | None] | None = None
    #: The object whose ``apply(THIS, x)`` it goes through, the input, and whether it is wrapped
    #: as ``{"params": THIS}``.
    module: tuple[str, Node, bool] | None = None
    #: Number of dims, where `einsum` or unpacking the shape says it.
    rank: int | None = None
    #: The node it goes hand in hand with in ``jax.tree.map``.
    alike: Node | None = None
    #: True when a gradient is taken with respect to it.
    differentiated: bool = False
    #: True when the body handles it as an array (``x.shape``, arithmetic, ``x[:, 0]``).
    arraylike: bool = False

    def key(self, name: str | int) -> Node:
        """The entry of a dict."""
        return self.keys.setdefault(name, Node(str(name), self.path and f"{self.path}[{name!r}]"))

    def position(self, index: int) -> Node:
        """The element at a position, counted from the end when negative."""
        return self.positions.setdefault(index, Node(self.word, self.path and f"{self.path}[{index}]"))

    def element(self, word: str = "") -> Node:
        """Any element."""
        if self.each is None:
            self.each = Node(word or self.word)
        return self.each


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function value: its definition and the names around it."""

    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Mapping[str, Value]
    #: Arguments `functools.partial` has filled in.
    filled: tuple[Value, ...] = ()
    named: Mapping[str, Value] = field(default_factory=dict)
    #: Positions a gradient is taken of.
    argnums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """A tuple or list displayed in the body."""

    items: tuple[Value, ...]


Value: TypeAlias = "Node | Function | Items | None"


def read_structure(parsed: ParsedSource, resolver: Resolver) -> tuple[dict[str, Node], list[int]]:
    """Nodes of the target's parameters by name, and the numbers it uses that may be sizes of dims."""
    nodes = {
        parameter.arg: Node(parameter.arg, parameter.arg) for parameter in parameters(parsed.definition.args)
    }
    scope: dict[str, Value] = {}
    for outer in (parsed.tree, *parsed.enclosing):
        if not isinstance(outer, ast.ClassDef):
            _define(outer.body, scope)
    walker = _Walker(resolver)
    walker.body(parsed.definition.body, {**scope, **nodes}, 0)
    return nodes, list(dict.fromkeys([*walker.classes, *walker.sizes]))[:6]


def _define(body: Sequence[ast.stmt], scope: dict[str, Value]) -> None:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            scope[statement.name] = Function(statement, scope)


class _Walker:
    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.active: list[ast.AST] = []
        #: Numbers of classes and other sizes met in calls.
        self.classes: list[int] = []
        self.sizes: list[int] = []

    # --- statements ---

    def body(self, statements: Sequence[ast.stmt], scope: dict[str, Value], depth: int) -> Value:
        """Walk statements; the value of the last ``return``."""
        returned: Value = None
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                scope[statement.name] = Function(statement, scope)
            elif isinstance(statement, ast.Assign):
                value = self.value(statement.value, scope, depth)
                self.shape(statement, scope)
                for target in statement.targets:
                    self.bind(target, value, scope, depth)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self.bind(statement.target, self.value(statement.value, scope, depth), scope, depth)
            elif isinstance(statement, ast.AugAssign):
                self.array(self.value(statement.target, scope, depth))
                self.array(self.value(statement.value, scope, depth))
                self.bind(statement.target, None, scope, depth)
            elif isinstance(statement, ast.For | ast.AsyncFor):
                self.loop(statement.target, statement.iter, scope, depth)
                self.body([*statement.body, *statement.orelse], scope, depth)
            elif isinstance(statement, ast.Return):
                returned = self.value(statement.value, scope, depth) if statement.value else None
            elif isinstance(statement, ast.If | ast.While):
                self.test(statement.test, scope, depth)
                inside = [self.body(block, scope, depth) for block in (statement.body, statement.orelse)]
                returned = returned or inside[0] or inside[1]
            elif isinstance(statement, ast.With | ast.AsyncWith):
                returned = self.body(statement.body, scope, depth) or returned
            elif isinstance(statement, ast.Try):
                returned = self.body([*statement.body, *statement.finalbody], scope, depth) or returned
            elif isinstance(statement, ast.Match):
                subject = self.value(statement.subject, scope, depth)
                for case in statement.cases:
                    for pattern in ast.walk(case.pattern):
                        if isinstance(pattern, ast.MatchValue) and isinstance(subject, Node):
                            _compare(subject, self.resolver.literal(pattern.value))
                    self.body(case.body, scope, depth)
            elif isinstance(statement, ast.Expr | ast.Assert):
                self.value(
                    statement.value if isinstance(statement, ast.Expr) else statement.test, scope, depth
                )
        return returned

    def bind(self, target: ast.expr, value: Value, scope: dict[str, Value], depth: int) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
            if isinstance(value, Node) and value.word not in (target.id,) and not hint_of(value.word):
                value.word = target.id
        elif isinstance(target, ast.Tuple | ast.List):
            starred = any(isinstance(item, ast.Starred) for item in target.elts)
            if isinstance(value, Node) and not starred:
                value.count = max(value.count, len(target.elts))
                value.unpacked = True
            for index, item in enumerate(target.elts):
                part: Value = None
                if isinstance(item, ast.Starred):
                    self.bind(item.value, None, scope, depth)
                    continue
                if isinstance(value, Items) and index < len(value.items):
                    part = value.items[index]
                elif isinstance(value, Node) and not starred:
                    part = value.position(index)
                    if isinstance(item, ast.Name):
                        part.word = item.id
                self.bind(item, part, scope, depth)
        elif not isinstance(target, ast.Name):
            self.value(target, scope, depth)

    def shape(self, statement: ast.Assign, scope: dict[str, Value]) -> None:
        """Number of dims from ``b, t, d = x.shape``."""
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Attribute) and value.attr == "shape":
            owner = scope.get(value.value.id) if isinstance(value.value, ast.Name) else None
            if isinstance(owner, Node) and not any(isinstance(item, ast.Starred) for item in target.elts):
                owner.rank = len(target.elts)

    def loop(self, target: ast.expr, iterable: ast.expr, scope: dict[str, Value], depth: int) -> None:
        self.bind_words(target, element := self.elements(iterable, scope, depth))
        self.bind(target, element, scope, depth)

    def bind_words(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name) and isinstance(value, Node):
            value.word = target.id

    def elements(self, iterable: ast.expr, scope: dict[str, Value], depth: int) -> Value:
        """What one round of a loop over `iterable` gets."""
        if isinstance(iterable, ast.Call):
            name = self.name(iterable.func, scope)
            if name == "zip":
                return Items(tuple(self.elements(item, scope, depth) for item in iterable.args))
            if name == "enumerate" and iterable.args:
                return Items((None, self.elements(iterable.args[0], scope, depth)))
            if name in ("reversed", "list", "tuple") and iterable.args:
                return self.elements(iterable.args[0], scope, depth)
        value = self.value(iterable, scope, depth)
        if isinstance(value, Items):
            return value.items[0] if value.items else None
        return value.element() if isinstance(value, Node) else None

    def test(self, test: ast.expr, scope: dict[str, Value], depth: int) -> None:
        if isinstance(test, ast.BoolOp):
            for part in test.values:
                self.test(part, scope, depth)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.test(test.operand, scope, depth)
        else:
            value = self.value(test, scope, depth)
            if isinstance(test, ast.Name) and isinstance(value, Node):
                value.uses.add("flag")

    # --- expressions ---

    def value(self, expression: ast.expr, scope: dict[str, Value], depth: int) -> Value:
        if isinstance(expression, ast.Name):
            return scope.get(expression.id)
        if isinstance(expression, ast.Attribute):
            return self.attribute(expression, scope, depth)
        if isinstance(expression, ast.Subscript):
            return self.subscript(expression, scope, depth)
        if isinstance(expression, ast.Call):
            return self.call(expression, scope, depth)
        if isinstance(expression, ast.Lambda):
            return Function(expression, scope)
        if isinstance(expression, ast.Tuple | ast.List):
            return Items(tuple(self.value(item, scope, depth) for item in expression.elts))
        if isinstance(expression, ast.Dict):
            return Items(tuple(self.value(item, scope, depth) for item in expression.values))
        if isinstance(expression, ast.NamedExpr):
            value = self.value(expression.value, scope, depth)
            self.bind(expression.target, value, scope, depth)
            return value
        if isinstance(expression, ast.IfExp):
            self.test(expression.test, scope, depth)
            first = self.value(expression.body, scope, depth)
            return first or self.value(expression.orelse, scope, depth)
        if isinstance(expression, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            inner = dict(scope)
            for clause in expression.generators:
                self.loop(clause.target, clause.iter, inner, depth)
                for condition in clause.ifs:
                    self.value(condition, inner, depth)
            if not isinstance(expression, ast.DictComp):
                self.value(expression.elt, inner, depth)
            elif expression.value is not None:
                self.value(expression.value, inner, depth)
            return None
        if isinstance(expression, ast.Compare):
            self.compare(expression, scope, depth)
            return None
        for child in ast.iter_child_nodes(expression):
            if isinstance(child, ast.expr):
                value = self.value(child, scope, depth)
                if isinstance(expression, ast.BinOp | ast.UnaryOp):
                    self.array(value)
        return None

    def array(self, value: Value) -> None:
        if isinstance(value, Node):
            value.arraylike = True

    def attribute(self, expression: ast.Attribute, scope: dict[str, Value], depth: int) -> Value:
        owner = self.value(expression.value, scope, depth)
        if not isinstance(owner, Node):
            return None
        if expression.attr in ARRAY_ATTRIBUTES and not owner.attributes:
            owner.arraylike = True
            return None
        if expression.attr in ("items", "values", "keys"):
            owner.uses.add("dict")
            return None
        if expression.attr in ("get", "pop"):
            return None
        return owner.attributes.setdefault(
            expression.attr, Node(expression.attr, owner.path and f"{owner.path}.{expression.attr}")
        )

    def subscript(self, expression: ast.Subscript, scope: dict[str, Value], depth: int) -> Value:
        owner = self.value(expression.value, scope, depth)
        place = expression.slice
        literal = self.resolver.literal(place)
        if isinstance(owner, Items):
            if type(literal) is int and -len(owner.items) <= literal < len(owner.items):
                return owner.items[literal]
            return owner
        if not isinstance(owner, Node):
            for part in place.elts if isinstance(place, ast.Tuple) else [place]:
                value = self.value(part, scope, depth)
                if isinstance(value, Node):
                    value.uses.add("index")
            return None
        if isinstance(literal, str):
            return owner.key(literal)
        if type(literal) is int:
            return owner.position(literal)
        if isinstance(place, ast.Slice):
            for bound in (place.lower, place.upper, place.step):
                _use(self.value(bound, scope, depth) if bound is not None else None, "size")
            # A part of a list of layers is looped over; a part of an array is an array.
            return owner
        owner.arraylike = True
        for part in place.elts if isinstance(place, ast.Tuple) else [place]:
            if isinstance(part, ast.Slice):
                for bound in (part.lower, part.upper, part.step):
                    if bound is not None:
                        self.value(bound, scope, depth)
                continue
            value = self.value(part, scope, depth)
            if isinstance(value, Node):
                value.uses.add("index")
        return None

    def compare(self, expression: ast.Compare, scope: dict[str, Value], depth: int) -> None:
        sides = [expression.left, *expression.comparators]
        values = [self.value(side, scope, depth) for side in sides]
        from_argmax = any(
            isinstance(node, ast.Call)
            and (self.name(node.func, scope) or _last(node.func)).endswith("argmax")
            for side in sides
            for node in ast.walk(side)
        )
        for value in values:
            if not isinstance(value, Node):
                continue
            if from_argmax:
                value.uses.add("index")
            for side in sides:
                _compare(value, self.resolver.literal(side))

    def name(self, function: ast.expr, scope: Mapping[str, Value]) -> str:
        if isinstance(function, ast.Name) and isinstance(scope.get(function.id), Node):
            return ""
        return self.resolver.qualify(function) or (function.id if isinstance(function, ast.Name) else "")

    # --- calls ---

    def call(self, call: ast.Call, scope: dict[str, Value], depth: int) -> Value:
        name = self.name(call.func, scope)
        made = self.made_function(call, name, scope, depth)
        if made is not None:
            return made
        positional = [
            self.value(item.value if isinstance(item, ast.Starred) else item, scope, depth)
            for item in call.args
        ]
        named = {item.arg: self.value(item.value, scope, depth) for item in call.keywords}
        self.note_uses(call, name, positional, named)
        if name in ("jax.lax.scan", "jax.lax.map", "jax.lax.associative_scan"):
            return self.scan(name, positional, named, depth)
        if name == "jax.tree.map":
            return self.tree_map(positional)
        if name == "jax.lax.stop_gradient":
            return positional[0] if positional else None
        function = self.value(call.func, scope, depth)
        if isinstance(function, Function):
            if any(isinstance(item, ast.Starred) for item in call.args):
                return None
            return self.enter(function, positional, named, depth)
        if isinstance(function, Node) and isinstance(call.func, ast.Name):
            function.uses.add("callable")
        return None

    def made_function(
        self, call: ast.Call, name: str, scope: dict[str, Value], depth: int
    ) -> Function | None:
        """Functions made from functions: ``jax.grad(f)``, ``partial(f, x)``, ``vmap(f)``."""
        if not call.args:
            return None
        if name not in GRADIENTS and name not in _PASSING and name not in ("functools.partial", "jax.vmap"):
            return None
        inner = self.value(call.args[0], scope, depth)
        if not isinstance(inner, Function):
            return None
        if name == "functools.partial":
            filled = tuple(self.value(item, scope, depth) for item in call.args[1:])
            named = {item.arg: self.value(item.value, scope, depth) for item in call.keywords if item.arg}
            return Function(
                inner.definition,
                inner.scope,
                (*inner.filled, *filled),
                {**inner.named, **named},
                inner.argnums,
            )
        argnums = inner.argnums
        if name in GRADIENTS:
            given = next((item.value for item in call.keywords if item.arg == "argnums"), None)
            given = given or (call.args[1] if len(call.args) > 1 else None)
            literal = self.resolver.literal(given) if given is not None else 0
            argnums = tuple(
                i for i in (literal if isinstance(literal, tuple) else (literal,)) if type(i) is int
            )
        return Function(inner.definition, inner.scope, inner.filled, inner.named, argnums)

    def enter(
        self, function: Function, positional: Sequence[Value], named: Mapping[str | None, Value], depth: int
    ) -> Value:
        """Walk a function of the same file with the values of this call; what it returns."""
        for index in function.argnums:
            if 0 <= index < len(positional):
                _differentiate(positional[index])
        definition = function.definition
        if depth >= _DEPTH or self.active.count(definition) > 1:
            return None
        scope = dict(function.scope)
        arguments = definition.args
        names = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
        for item in parameters(arguments):
            scope[item.arg] = None
        scope.update(zip(names, [*function.filled, *positional], strict=False))
        scope.update(function.named)
        scope.update({key: value for key, value in named.items() if key is not None})
        self.active.append(definition)
        if isinstance(definition, ast.Lambda):
            result = self.value(definition.body, scope, depth + 1)
        else:
            result = self.body(definition.body, scope, depth + 1)
        self.active.pop()
        # The gradient of a function is no part of its arguments, nor is its value.
        return None if function.argnums else result

    def scan(
        self, name: str, positional: Sequence[Value], named: Mapping[str | None, Value], depth: int
    ) -> Value:
        function = positional[0] if positional else None
        if not isinstance(function, Function):
            return None
        rest = [*positional[1:], *(named[key] for key in ("init", "xs") if key in named)]
        if name == "jax.lax.scan" and len(rest) > 1 and isinstance(rest[1], Node):
            rest[1].uses.add("scanned")
        if name == "jax.lax.scan" and rest:
            self.enter(function, rest[:2], {}, depth)
        elif rest:
            self.enter(function, rest[:1], {}, depth)
        return None

    def tree_map(self, positional: Sequence[Value]) -> Value:
        trees = [value for value in positional[1:] if isinstance(value, Node)]
        for tree in trees[1:]:
            if tree.alike is None and tree is not trees[0]:
                tree.alike = trees[0]
        return None

    def note_uses(
        self, call: ast.Call, name: str, positional: Sequence[Value], named: Mapping[str | None, Value]
    ) -> None:
        arguments = [*call.args, *(item.value for item in call.keywords)]
        last = name.rpartition(".")[2] or _last(call.func)
        if last in _SIZED:
            numbers = [number for item in arguments for number in _numbers(self.resolver.literal(item))]
            (self.classes if last == "one_hot" else self.sizes).extend(numbers)
        subscripts = self.resolver.literal(call.args[0]) if name == "jax.numpy.einsum" and call.args else None
        if isinstance(subscripts, str) and "..." not in subscripts:
            for term, value in zip(subscripts.partition("->")[0].split(","), positional[1:], strict=False):
                if isinstance(value, Node):
                    value.rank = len(term.strip())
        if last.startswith("conv_"):
            for value in positional[:2]:
                if isinstance(value, Node):
                    value.rank = 4  # images; a convolution over one dim is found later
        for table, use in ((_INDEX_ARGUMENTS, "index"), (_SIZE_ARGUMENTS, "size")):
            for index in table.get(name, ()):
                if index < len(positional):
                    _use(positional[index], use)
        for keyword, value in named.items():
            if keyword in _SIZE_KEYWORDS:
                _use(value, "size")
        if name.startswith("jax.random.") and positional:
            _use(positional[0], "seed" if name in ("jax.random.key", "jax.random.PRNGKey") else "key")
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        owner = self.resolver.qualify(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if method in ("reshape", "split") or name == "jax.numpy.reshape":
            for value in positional if method != "split" else positional[1:]:
                for item in value.items if isinstance(value, Items) else (value,):
                    if not (name == "jax.numpy.reshape" and item is positional[0]):
                        _use(item, "size")
        if owner is None or not isinstance(call.func, ast.Attribute):
            return
        receiver = ast.unparse(call.func.value)
        if method == "update" and len(positional) > 1 and isinstance(positional[1], Node):
            third = positional[2] if len(positional) > 2 else named.get("params")
            positional[1].optimiser = (receiver, third if isinstance(third, Node) else None)
        if method == "apply" and len(call.args) > 1 and isinstance(positional[1], Node):
            first, wrapped = positional[0], False
            if isinstance(call.args[0], ast.Dict) and isinstance(first, Items) and len(first.items) == 1:
                first, wrapped = first.items[0], True
            if isinstance(first, Node):
                first.module = (receiver, positional[1], wrapped)


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else ""


def _use(value: Value, use: str) -> None:
    if isinstance(value, Node):
        value.uses.add(use)


def _differentiate(value: Value) -> None:
    if isinstance(value, Node):
        value.differentiated = True
    elif isinstance(value, Items):
        for item in value.items:
            _differentiate(item)


def _compare(node: Node, literal: object) -> None:
    for item in literal if isinstance(literal, tuple) else (literal,):
        if isinstance(item, str) and repr(item) not in node.values:
            node.values.append(repr(item))


def _numbers(literal: object) -> Iterator[int]:
    for item in literal if isinstance(literal, tuple) else (literal,):
        if type(item) is int and 2 <= item <= 4096:
            yield item


#: Hints of what is an array itself, and names of data that are often containers.
_LEAVES = frozenset({"labels", "tokens", "mask", "image", "sequence", "vector", "key", "scalar"})
_BATCHES = frozenset({"batch", "data", "inputs", "examples", "input"})


# --- nodes → forms -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Classes:
    """Fields of the file's NamedTuples and dataclasses, by class."""

    fields: Mapping[str, tuple[str, ...]]

    def holding(self, attributes: Sequence[str]) -> str | None:
        """The only class that has all these fields."""
        found = [name for name, fields in self.fields.items() if set(attributes) <= set(fields)]
        return found[0] if len(found) == 1 else None


def classes_in(parsed: ParsedSource) -> Classes:
    """Classes of the file whose fields are annotated: what can be made by keyword."""
    found = {}
    for statement in parsed.tree.body:
        if isinstance(statement, ast.ClassDef):
            rows = [
                row
                for row in statement.body
                if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name)
            ]
            marks = [ast.unparse(item) for item in (*statement.bases, *statement.decorator_list)]
            if any("NamedTuple" in mark or "dataclass" in mark or "struct" in mark for mark in marks):
                found[statement.name] = tuple(
                    row.target.id for row in rows if isinstance(row.target, ast.Name) and row.value is None
                )
    return Classes(found)


def form_of(node: Node, hint: str, classes: Classes, *, containers: bool = True) -> Spec:
    """The form of a node: a spec with unknown leaves. `hint` is what its container says it is.

    With ``containers=False``, what is only subscripted by position is taken for an array.
    """
    own = _hint(node)
    inherited = own if own in ("parameter", "data", "like") else hint
    if node.attributes:
        return _object(node, inherited, classes, containers)
    if "dict" in node.uses and not node.keys:
        # Any names do: the body only goes over them.
        names = ("w", "b") if inherited != "data" else ("x", "y")
        children = [[name, unknown(Node(name), inherited or "parameter")] for name in names]
        return {"kind": "dict", "items": children}
    if node.keys:
        items = [
            [key, form_of(child, inherited, classes, containers=containers)]
            for key, child in node.keys.items()
        ]
        return {"kind": "dict", "items": items}
    positions = containers and node.positions and not node.arraylike and node.rank is None
    if own in _LEAVES or (own == "data" and node.word.lower() not in _BATCHES):
        positions = False  # `x[0]` of an array is its first row
    if (node.unpacked or node.each is not None or positions) and "index" not in node.uses:
        return _sequence(node, inherited, classes, containers)
    if "index" in node.uses and own == "tokens":
        return unknown(node, "tokens")
    for use in ("key", "seed", "callable", "size", "index", "scanned"):
        if use in node.uses:
            return unknown(node, use)
    if node.values:
        return unknown(node, "string")
    if "flag" in node.uses:
        return unknown(node, "flag")
    if own in ("", "data") and hint == "parameter":
        own = "parameter"
    elif own in ("", "parameter", "like") and hint == "data":
        own = "data"
    if node.differentiated:
        own = "parameter"
    return unknown(node, own if own != "like" else hint or "parameter")


def unknown(node: Node, hint: str) -> Spec:
    """A leaf to be found."""
    form: Spec = {"kind": "unknown", "word": node.word, "hint": hint}
    if node.values:
        form["values"] = node.values
    if node.rank is not None:
        form["rank"] = node.rank
    return form


def _hint(node: Node) -> str:
    if node.differentiated:
        return "parameter"
    return hint_of(node.word)


def _object(node: Node, hint: str, classes: Classes, containers: bool) -> Spec:
    name = classes.holding(list(node.attributes))
    if name is None:
        shown = ", ".join(f".{attribute}" for attribute in list(node.attributes)[:3])
        return {
            "kind": "missing",
            "reason": f"it is an object (the body uses {shown} of it), which shapes alone do not make",
        }
    items = []
    for attribute in classes.fields[name]:
        child = node.attributes.get(attribute, Node(attribute))
        items.append([attribute, form_of(child, hint, classes, containers=containers)])
    return {"kind": "object", "type": name, "items": items}


def _sequence(node: Node, hint: str, classes: Classes, containers: bool) -> Spec:
    count = max([node.count, *(i + 1 if i >= 0 else -i for i in node.positions), 1])
    if node.each is not None and not node.unpacked:
        count = max(count, 2)
    items = []
    for index in range(count):
        child = node.positions.get(index) or node.positions.get(index - count)
        if node.each is not None and (child is None or not _known(child)):
            child = node.each
        items.append(form_of(child or Node(node.word), hint, classes, containers=containers))
    return {"kind": "list" if node.each is not None else "tuple", "items": items}


def _known(node: Node) -> bool:
    return bool(node.keys or node.positions or node.attributes or node.each or node.uses)


def spec_children(form: Mapping[str, Any]) -> list[Spec]:
    """Forms directly inside a container form."""
    if form["kind"] in ("dict", "object"):
        return [item for _, item in form["items"]]
    return list(form["items"]) if form["kind"] in ("tuple", "list") else []
