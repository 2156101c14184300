"""What the body says its arguments contain: subscripts, unpacking, loops, and what uses the leaves.

An abstract run over the syntax tree. Parameters are `Node` trees that grow as the body takes them
apart; names that are assigned from them are aliases of the same nodes, and a function of the same
file that gets a node as an argument is walked with its parameter bound to that very node.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from jax_pmap.inputs.hints import hint_of
from jax_pmap.inputs.nodes import Function, Items, ModuleExpression, Node, Value
from jax_pmap.syntax.library import GRADIENTS, WRAPPERS
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.worker.scopes import parameters

#: Attributes of arrays; any other attribute makes its owner an object.
ARRAY_ATTRIBUTES = frozenset(
    {"T", "mT", "shape", "ndim", "size", "dtype", "at", "real", "imag", "nbytes", "itemsize", "sharding"}
    | {"sum", "mean", "max", "min", "std", "var", "prod", "any", "all", "argmax", "argmin", "ptp"}
    | {"reshape", "ravel", "flatten", "transpose", "squeeze", "swapaxes", "diagonal", "view", "repeat"}
    | {"astype", "copy", "clip", "round", "conj", "dot", "trace", "take", "sort", "argsort", "cumsum"}
    | {"cumprod", "item", "tolist", "block_until_ready"}
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
    "builtins.range": (0, 1, 2),
    "jax.lax.fori_loop": (1,),
    "jax.numpy.array_split": (1,),
    "jax.numpy.split": (1,),
}
_SIZE_KEYWORDS = frozenset({"axis", "num_classes", "keepdims", "length", "num_segments", "num"})
_DEPTH = 8


def read_structure(parsed: ParsedSource) -> dict[str, Node]:
    """Nodes of the target's parameters by name."""
    nodes = {
        parameter.arg: Node(parameter.arg, parameter.arg) for parameter in parameters(parsed.definition.args)
    }
    scope: dict[str, Value] = {}
    for outer in (parsed.tree, *parsed.enclosing):
        if not isinstance(outer, ast.ClassDef):
            _define(outer.body, scope)
    walker = _Walker(parsed)
    walker.body(parsed.definition.body, {**scope, **nodes}, 0)
    for taken in walker.taken.values():
        if any(node.differentiated or hint_of(node.word) == "parameter" for node in taken):
            for node in taken:
                node.parameter = True
    return nodes


def _define(body: Sequence[ast.stmt], scope: dict[str, Value]) -> None:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            scope[statement.name] = Function(statement, scope)


class _Walker:
    def __init__(self, parsed: ParsedSource) -> None:
        self.parsed = parsed
        self.active: list[ast.AST] = []
        #: What functions are given, by function and parameter.
        self.taken: dict[tuple[ast.AST, str], list[Node]] = {}

    # --- statements ---

    def body(self, statements: Sequence[ast.stmt], scope: dict[str, Value], depth: int) -> Value:
        """Walk statements; the value of the last ``return``."""
        returned: Value = None
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                scope[statement.name] = Function(statement, scope)
            elif isinstance(statement, ast.Assign):
                value = self.value(statement.value, scope, depth)
                if value is None and self.is_of_module(statement.value):
                    value = ModuleExpression(ast.unparse(statement.value))
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
                            _compare(subject, self.parsed.constant(pattern.value))
                    self.body(case.body, scope, depth)
            elif isinstance(statement, ast.Expr | ast.Assert):
                self.value(
                    statement.value if isinstance(statement, ast.Expr) else statement.test, scope, depth
                )
        return returned

    def is_of_module(self, expression: ast.expr) -> bool:
        """Whether a call is made of names of the module alone."""
        names = [node for node in ast.walk(expression) if isinstance(node, ast.Name)]
        return isinstance(expression, ast.Call) and all(map(self.parsed.is_global, names))

    def bind(self, target: ast.expr, value: Value, scope: dict[str, Value], depth: int) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
            if isinstance(value, Node) and value.word != target.id and not hint_of(value.word):
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
        else:
            self.value(target, scope, depth)

    def shape(self, statement: ast.Assign, scope: dict[str, Value]) -> None:
        """Number of dims from ``b, t, d = x.shape``."""
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Attribute) and value.attr == "shape":
            owner = scope.get(value.value.id) if isinstance(value.value, ast.Name) else None
            if isinstance(owner, Node) and not any(isinstance(item, ast.Starred) for item in target.elts):
                owner.rank = len(target.elts)

    def loop(self, target: ast.expr, iterable: ast.expr, scope: dict[str, Value], depth: int) -> None:
        element = self.elements(iterable, scope, depth)
        if isinstance(target, ast.Name) and isinstance(element, Node):
            element.word = target.id
        self.bind(target, element, scope, depth)

    def elements(self, iterable: ast.expr, scope: dict[str, Value], depth: int) -> Value:
        """What one round of a loop over `iterable` gets."""
        if isinstance(iterable, ast.Call):
            name = self.name(iterable.func, scope)
            if name == "builtins.zip":
                return Items(tuple(self.elements(item, scope, depth) for item in iterable.args))
            if name == "builtins.enumerate" and iterable.args:
                return Items((None, self.elements(iterable.args[0], scope, depth)))
            if name in ("builtins.reversed", "builtins.list", "builtins.tuple") and iterable.args:
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
            if isinstance(test, ast.Name):
                _use(value, "flag")

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
                if (
                    isinstance(expression, ast.BinOp)
                    and child is expression.right
                    and isinstance(value, Node)
                ):
                    value.rank = value.rank or (2 if isinstance(expression.op, ast.MatMult) else None)
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
        literal = self.parsed.constant(place)
        if isinstance(owner, Items):
            if type(literal) is int and -len(owner.items) <= literal < len(owner.items):
                return owner.items[literal]
            return owner
        if not isinstance(owner, Node):
            for part in place.elts if isinstance(place, ast.Tuple) else [place]:
                _use(self.value(part, scope, depth), "index")
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
            _use(self.value(part, scope, depth), "index")
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
                _compare(value, self.parsed.constant(side))

    def name(self, function: ast.expr, scope: Mapping[str, Value]) -> str:
        if isinstance(function, ast.Name) and isinstance(scope.get(function.id), Node):
            return ""
        return self.parsed.qualname(function) or (function.id if isinstance(function, ast.Name) else "")

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
        self.note_uses(call, name, positional, named, scope)
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
        if name not in GRADIENTS | WRAPPERS | {"functools.partial", "jax.named_call", "jax.vmap"}:
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
                inner.valued,
            )
        argnums, valued = inner.argnums, inner.valued
        if name in GRADIENTS:
            valued = name.endswith("value_and_grad")
            given = next((item.value for item in call.keywords if item.arg == "argnums"), None)
            given = given or (call.args[1] if len(call.args) > 1 else None)
            literal = self.parsed.constant(given) if given is not None else 0
            argnums = tuple(
                i for i in (literal if isinstance(literal, tuple) else (literal,)) if type(i) is int
            )
        return Function(inner.definition, inner.scope, inner.filled, inner.named, argnums, valued)

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
        for name in (item.arg for item in parameters(arguments)):
            if isinstance(value := scope[name], Node):
                self.taken.setdefault((definition, name), []).append(value)
        self.active.append(definition)
        if isinstance(definition, ast.Lambda):
            result = self.value(definition.body, scope, depth + 1)
        else:
            result = self.body(definition.body, scope, depth + 1)
        self.active.pop()
        return function.gradient(positional) if function.argnums else result

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
        roots = [tree.form_of or tree for tree in trees]
        if not roots:
            return None
        # What a gradient is taken of comes first: the others go with it.
        first = next((root for root in roots if root.differentiated), roots[0])
        for root in roots:
            if root.alike is None and root is not first:
                root.alike = first
        return Node(first.word, form_of=first)

    def note_uses(
        self,
        call: ast.Call,
        name: str,
        positional: Sequence[Value],
        named: Mapping[str | None, Value],
        scope: Mapping[str, Value],
    ) -> None:
        last = name.rpartition(".")[2] or _last(call.func)
        subscripts = self.parsed.constant(call.args[0]) if name == "jax.numpy.einsum" and call.args else None
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
        if method in ("reshape", "split") or name == "jax.numpy.reshape":
            for value in positional if method != "split" else positional[1:]:
                for item in value.items if isinstance(value, Items) else (value,):
                    if not (name == "jax.numpy.reshape" and item is positional[0]):
                        _use(item, "size")
        if not isinstance(call.func, ast.Attribute):
            return
        made = scope.get(call.func.value.id) if isinstance(call.func.value, ast.Name) else None
        if not isinstance(made, ModuleExpression) and not self.parsed.is_global(call.func.value):
            return
        receiver = made.text if isinstance(made, ModuleExpression) else ast.unparse(call.func.value)
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
