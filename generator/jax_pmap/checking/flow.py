"""Follow values through a mapped function: gradients, keys, masks, and what collectives do to them.

The function is evaluated with arguments of which only this is known: whether every device has a part of
them or the whole. Functions of the module are entered with what they are given, be they helpers, lambdas,
partials or arguments; what is in other modules is taken to be without collectives. Where nothing certain
can be said, a value is just what it is made of.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from jax_pmap.checking import known
from jax_pmap.checking.arguments import arguments
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.values import (
    UNKNOWN,
    Array,
    Batched,
    Closure,
    Constant,
    Either,
    Environment,
    Events,
    Fields,
    Gradient,
    GradientOf,
    Items,
    Method,
    Named,
    Partial,
    Same,
    Value,
    joined,
    mixed,
    part,
    stacked,
    unpacked,
)
from jax_pmap.syntax.resolve import Unknown

#: Expressions and statements that are evaluated at most, and calls inside calls.
_STEPS, _DEPTH = 30_000, 30
#: What the shape of an array tells.
_SHAPES = frozenset({"shape", "ndim", "size", "dtype"})


class _TooLongError(Exception):
    """The evaluation is given up."""


def events(mappings: Mappings, mapping: Mapping) -> Events:
    """What happens in a mapped function of this module, value by value; every rule reads the same."""
    if mapping not in mappings.events:
        function, known_arguments = mapping.function, arguments(mappings, mapping)
        found = Events()
        if function is not None and known_arguments is not None:
            flow = Flow(mappings.module, mapping.axis if isinstance(mapping.axis, str) else None)
            first = mapping.application.argument(0, "fun") or mapping.application.argument(0, "f")
            try:
                flow.start(Closure(function.node, None, function.bound), first, known_arguments)
                found = flow.events
            except (_TooLongError, RecursionError):
                pass  # it is too long to be followed
        mappings.events[mapping] = found
    return mappings.events[mapping]


class Flow:
    """One evaluation; `known` has the functions of jax that mean something here.

    Args:
        module: the module whose function is mapped.
        axis: the axis it is mapped over; None where it is not known, or is one of several.
    """

    def __init__(self, module: Module, axis: str | None) -> None:
        self.module = module
        self.axis = axis
        self.events = Events()
        self._steps = 0
        self._running: list[ast.AST] = []
        self._resolving: set[ast.AST] = set()

    def start(self, function: Closure, written: ast.AST | None, arguments: dict[str, Array]) -> None:
        """Run the mapped function, with what a `partial` that is `written` there has collected for it."""
        made = self._static(written) if isinstance(written, ast.expr) else UNKNOWN
        inner = made
        while isinstance(inner, Partial):
            inner = inner.function
        if isinstance(made, Partial) and isinstance(inner, Closure) and inner.node is function.node:
            partials: list[Partial] = []
            while isinstance(made, Partial):
                partials.append(made)
                made = made.function
            args = tuple(value for each in reversed(partials) for value in each.args)
            keywords = {name: value for each in reversed(partials) for name, value in each.keywords.items()}
            self.events.result = self.enter(inner, args, {**keywords, **arguments})
        else:
            self.events.result = self.enter(function, (), {**arguments})

    # --- functions ------------------------------------------------------------------------

    def call(
        self, function: Value, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
    ) -> Value:
        """The result of `function`, called at `node`."""
        if isinstance(function, Closure):
            return self.enter(function, args, keywords)
        if isinstance(function, Partial):
            return self.call(
                function.function, (*function.args, *args), {**function.keywords, **keywords}, node
            )
        if isinstance(function, GradientOf):
            return self._gradient(function, args, keywords, node)
        if isinstance(function, Batched):
            return stacked(self.call(function.function, args, keywords, node))
        if isinstance(function, Either):
            results = [self.call(each, args, keywords, node) for each in function.functions]
            found = results[0]
            for other in results[1:]:
                found = joined(found, other)
            return found
        if isinstance(function, Named):
            return known.call(self, function.name, args, keywords, node)
        if isinstance(function, Method):
            return known.method(self, function, args, keywords, node)
        return known.unknown(self, (function, *args), keywords, node)

    def enter(self, function: Closure, args: tuple[Value, ...], keywords: dict[str, Value]) -> Value:
        """Run the body of a function of this module."""
        node = function.node
        if len(self._running) > _DEPTH or self._running.count(node) > 1:
            return mixed((*args, *keywords.values()))
        names = self._bound(function, args, keywords)
        environment = Environment(names, function.environment)
        self._running.append(node)
        try:
            if isinstance(node, ast.Lambda):
                return self.evaluate(node.body, environment)
            returned: list[Value] = []
            self._run(node.body, environment, returned)
        finally:
            self._running.pop()
        if not returned:
            return Constant(None)
        found = returned[0]
        for other in returned[1:]:
            found = joined(found, other)
        return found

    def _bound(
        self, function: Closure, args: tuple[Value, ...], keywords: dict[str, Value]
    ) -> dict[str, Value]:
        spec = function.node.args
        positional = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        names: dict[str, Value] = dict.fromkeys(positional[: function.bound], UNKNOWN)
        free = positional[function.bound :]
        for name, default in zip(reversed(positional), reversed(spec.defaults), strict=False):
            names[name] = self.evaluate(default, function.environment or Environment({}))
        for only, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if value is not None:
                names[only.arg] = self.evaluate(value, function.environment or Environment({}))
        rest: list[Value] = []
        for index, value_ in enumerate(args):
            if isinstance(value_, Same):  # `*args` of unknown length may be any of what is left
                for name in free[index:]:
                    names[name] = value_.element
                rest.append(value_)
                break
            if index < len(free):
                names[free[index]] = value_
            else:
                rest.append(value_)
        if spec.vararg is not None:
            names[spec.vararg.arg] = Items(tuple(rest))
        known_names = {*positional, *(each.arg for each in spec.kwonlyargs)}
        others = {name: value for name, value in keywords.items() if name not in known_names}
        names |= {name: value for name, value in keywords.items() if name in known_names}
        if spec.kwarg is not None:
            names[spec.kwarg.arg] = Fields(tuple(others.items()))
        return {
            **{name: known.named(names.get(name, UNKNOWN), name) for name in known_names},
            **{name: value for name, value in names.items() if name not in known_names},
        }

    def _gradient(
        self, function: GradientOf, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
    ) -> Value:
        made = Gradient(node, 1 if function.with_value else 0 if function.has_aux else None)
        self.events.gradients.append(made)
        positions = function.argnums if function.argnums is not None else ()
        taken = [args[index] for index in positions if -len(args) <= index < len(args)]
        if taken and all(isinstance(value, Array) and value.whole for value in taken):
            made.of = frozenset().union(*(value.whole for value in taken if isinstance(value, Array)))
        before = len(self.events.reductions)
        result = self.call(function.function, args, keywords, node)
        made.local = len(self.events.reductions) == before
        loss, aux = unpacked(result, 2) if function.has_aux else (result, UNKNOWN)
        if self._is_read(function.function):
            made.loss = loss if isinstance(loss, Array) else mixed((loss,))
        made.shares = mixed((result,)).shares
        leaf = Array(shares=made.shares, gradients=frozenset({made}), is_gradient=True)
        gradient: Value = Items((leaf,) * len(positions)) if function.is_tuple else leaf
        if function.with_value:
            return Items((Items((loss, aux)) if function.has_aux else loss, gradient))
        return Items((gradient, aux)) if function.has_aux else gradient

    def _is_read(self, function: Value) -> bool:
        while isinstance(function, Partial | Batched):
            function = function.function
        if isinstance(function, Either):
            return all(self._is_read(each) for each in function.functions)
        return isinstance(function, Closure)

    # --- statements -----------------------------------------------------------------------

    def _run(self, body: list[ast.stmt], environment: Environment, returned: list[Value]) -> bool:
        """Run statements; True where what follows them is not reached."""
        return any(self._statement(statement, environment, returned) for statement in body)

    def _statement(self, node: ast.stmt, environment: Environment, returned: list[Value]) -> bool:
        self._step()
        if isinstance(node, ast.Return):
            returned.append(self.evaluate(node.value, environment) if node.value else Constant(None))
            return True
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Assign):
            value = self.evaluate(node.value, environment)
            for target in node.targets:
                self._assign(target, value, environment)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.evaluate(node.value, environment), environment)
        elif isinstance(node, ast.AugAssign):
            operation = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
            self._assign(node.target, self._operation(operation, environment), environment)
        elif isinstance(node, ast.Expr):
            self.evaluate(node.value, environment)
        elif isinstance(node, ast.FunctionDef):
            environment.names[node.name] = self._defined(node, environment)
        elif isinstance(node, ast.If):
            return self._branch(node, environment, returned)
        elif isinstance(node, ast.For | ast.While):
            if isinstance(node, ast.For):
                element = part(self.evaluate(node.iter, environment), UNKNOWN)
                self._assign(node.target, element, environment)
            else:
                self.evaluate(node.test, environment)
            self._run(node.body, environment, returned)
            self._run(node.orelse, environment, returned)
        elif isinstance(node, ast.With):
            for item in node.items:
                value = self.evaluate(item.context_expr, environment)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, mixed((value,)), environment)
            return self._run(node.body, environment, returned)
        elif isinstance(node, ast.Try):
            ended = self._run(node.body, environment, returned)
            for handler in node.handlers:
                self._run(handler.body, environment, returned)
            self._run(node.orelse, environment, returned)
            self._run(node.finalbody, environment, returned)
            return ended and not node.handlers
        return False

    def _branch(self, node: ast.If, environment: Environment, returned: list[Value]) -> bool:
        taken = self._truth(node.test, environment)
        if taken is not None:
            return self._run(node.body if taken else node.orelse, environment, returned)
        before = dict(environment.names)
        ends = self._run(node.body, environment, returned)
        after = environment.names
        environment.names = before
        other_ends = self._run(node.orelse, environment, returned)
        if ends and other_ends:
            return True
        if other_ends:
            environment.names = after
        elif not ends:
            for name, value in after.items():
                other = environment.names.get(name)
                environment.names[name] = value if other is None else joined(value, other)
        return False

    def _truth(self, test: ast.expr, environment: Environment) -> bool | None:
        """Whether a test of a literal, or for None, holds; None where that is not known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand, environment)
            return None if inner is None else not inner
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.Is | ast.IsNot)
            and isinstance(test.comparators[0], ast.Constant)
            and test.comparators[0].value is None
        ):
            value = self.evaluate(test.left, environment)
            if isinstance(value, Constant):
                return (value.value is None) is isinstance(test.ops[0], ast.Is)
            certain = not isinstance(value, Array) or bool(value.shares or value.whole or value.mask)
            return isinstance(test.ops[0], ast.IsNot) if certain else None
        value = self.evaluate(test, environment)
        return bool(value.value) if isinstance(value, Constant) else None

    def _assign(self, target: ast.expr, value: Value, environment: Environment) -> None:
        if isinstance(target, ast.Name):
            environment.names[target.id] = known.named(value, target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            starred = any(isinstance(each, ast.Starred) for each in target.elts)
            values = [mixed((value,))] * len(target.elts) if starred else unpacked(value, len(target.elts))
            for each, one in zip(target.elts, values, strict=True):
                self._assign(each.value if isinstance(each, ast.Starred) else each, one, environment)
        elif isinstance(target, ast.Subscript | ast.Attribute) and isinstance(target.value, ast.Name):
            holder = environment.get(target.value.id)
            if holder is not None:
                key = self._key(target) if isinstance(target, ast.Subscript) else None
                environment.names[target.value.id] = _with(holder, key, value)

    def _defined(self, node: ast.FunctionDef, environment: Environment) -> Value:
        """A function with its decorators applied."""
        value: Value = Closure(node, environment)
        for decorator in reversed(node.decorator_list):
            made = self.evaluate(decorator, environment)
            call = ast.copy_location(ast.Call(decorator, [], []), decorator)
            value = self.call(made, (value,), {}, call)
        return value

    # --- expressions ----------------------------------------------------------------------

    def evaluate(self, node: ast.expr, environment: Environment) -> Value:
        """What is known of the value of an expression."""
        self._step()
        if isinstance(node, ast.Name):
            found = environment.get(node.id)
            return found if found is not None else self._free(node)
        if isinstance(node, ast.Constant):
            return Constant(node.value)
        if isinstance(node, ast.Call):
            return self._call(node, environment)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, environment)
        if isinstance(node, ast.BinOp):
            return self._operation(node, environment)
        if isinstance(node, ast.Tuple | ast.List):
            return self._items(node, environment)
        if isinstance(node, ast.Subscript):
            owner = self.evaluate(node.value, environment)
            self.evaluate(node.slice, environment)
            key = self._key(node)
            found = part(owner, key)
            return known.named(found, key) if isinstance(key, str) else found
        if isinstance(node, ast.Dict):
            return self._dictionary(node, environment)
        if isinstance(node, ast.Lambda):
            return Closure(node, environment)
        if isinstance(node, ast.IfExp):
            taken = self._truth(node.test, environment)
            if taken is not None:
                return self.evaluate(node.body if taken else node.orelse, environment)
            return joined(self.evaluate(node.body, environment), self.evaluate(node.orelse, environment))
        if isinstance(node, ast.Compare):
            values = [self.evaluate(each, environment) for each in (node.left, *node.comparators)]
            found_ = mixed(values)
            return replace(found_, mask=ast.unparse(node)) if found_.shares else found_
        if isinstance(node, ast.UnaryOp):
            value = self.evaluate(node.operand, environment)
            return replace(value, key="", reduced=None) if isinstance(value, Array) else mixed((value,))
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            return self._comprehension(node, environment)
        if isinstance(node, ast.NamedExpr):
            value = self.evaluate(node.value, environment)
            self._assign(node.target, value, environment)
            return value
        if isinstance(node, ast.Starred):
            return self.evaluate(node.value, environment)
        return mixed(
            self.evaluate(child, environment)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        )

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _STEPS:
            raise _TooLongError

    def _free(self, node: ast.expr) -> Value:
        """A name of the module, or of a function around that is not running."""
        name = self.module.qualname(node)
        if name is not None:
            return Named(name)
        if node in self._resolving or not isinstance(node, ast.Name) or node not in self.module.scopes:
            return UNKNOWN
        self._resolving.add(node)
        try:
            values = self.module.values(node)
            found = [self._static(value) for value in values]
        finally:
            self._resolving.discard(node)
        known_values = [value for value in found if value != UNKNOWN]
        if not known_values or len(known_values) != len(found):
            return UNKNOWN
        key = known_values[0]
        if isinstance(key, Array) and key.key:
            return replace(key, key=node.id)
        return key if len(found) == 1 else Either(tuple(known_values))

    def _static(self, node: ast.AST) -> Value:
        """What an expression stands for that is evaluated before the mapped function runs."""
        if isinstance(node, ast.FunctionDef):
            return self._defined(node, Environment({}))
        if isinstance(node, ast.Lambda):
            return Closure(node)
        if isinstance(node, ast.Constant):
            return Constant(node.value)
        if isinstance(node, ast.Name | ast.Attribute | ast.Call):
            value = self.evaluate(node, Environment({}))
            if isinstance(value, Closure | Partial | GradientOf | Batched | Either | Named):
                return value
            if isinstance(value, Array) and value.key:
                return Array(key=value.key)
        return UNKNOWN

    def _call(self, node: ast.Call, environment: Environment) -> Value:
        function = self.evaluate(node.func, environment)
        args: list[Value] = []
        for argument in node.args:
            value = self.evaluate(argument, environment)
            if not isinstance(argument, ast.Starred):
                args.append(value)
            elif isinstance(value, Items):
                args += value.items
            else:
                args.append(Same(part(value, UNKNOWN)))
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, environment)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Fields):
                keywords |= {name: each for name, each in value.items if isinstance(name, str)}
        return self.call(function, tuple(args), keywords, node)

    def _attribute(self, node: ast.Attribute, environment: Environment) -> Value:
        base = node.value
        inside = isinstance(base, ast.Name) and environment.get(base.id) is not None
        name = None if inside else self.module.qualname(node)
        if name is not None:
            return Named(name)
        method = self.module.function(node)
        if method is not None:
            return Closure(method.node, None, method.bound)
        owner = self.evaluate(base, environment)
        if isinstance(owner, Named):
            return Named(f"{owner.name}.{node.attr}")
        parent = self.module.parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            return Method(owner, node.attr)
        if node.attr in _SHAPES:
            array = mixed((owner,))
            return Array(shapes=array.shares | array.shapes)
        return known.named(part(owner, node.attr), node.attr)

    def _operation(self, node: ast.BinOp, environment: Environment) -> Value:
        left, right = self.evaluate(node.left, environment), self.evaluate(node.right, environment)
        return known.operation(node, left, right)

    def _items(self, node: ast.Tuple | ast.List, environment: Environment) -> Value:
        items: list[Value] = []
        for element in node.elts:
            value = self.evaluate(element, environment)
            if not isinstance(element, ast.Starred):
                items.append(value)
            elif isinstance(value, Items):
                items += value.items
            else:
                rest = [self.evaluate(each, environment) for each in node.elts]
                return Same(mixed(rest))
        return Items(tuple(items))

    def _dictionary(self, node: ast.Dict, environment: Environment) -> Value:
        items: list[tuple[object, Value]] = []
        for key, value in zip(node.keys, node.values, strict=True):
            made = self.evaluate(value, environment)
            if key is None:
                items += made.items if isinstance(made, Fields) else [(object(), made)]
                continue
            literal = self.module.constant(key)
            items.append((object() if isinstance(literal, Unknown) else literal, made))
        return Fields(tuple(reversed(items)))

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp, environment: Environment
    ) -> Value:
        inner = Environment({}, environment)
        for generator in node.generators:
            element = part(self.evaluate(generator.iter, inner), UNKNOWN)
            self._assign(generator.target, element, inner)
            for test in generator.ifs:
                self.evaluate(test, inner)
        if isinstance(node, ast.DictComp):
            return mixed((self.evaluate(node.value, inner),))
        return Same(self.evaluate(node.elt, inner))

    def _key(self, node: ast.Subscript) -> object:
        literal = self.module.constant(node.slice)
        return UNKNOWN if isinstance(literal, Unknown) else literal


def _with(holder: Value, key: object, value: Value) -> Value:
    """A container after ``held[key] = value``."""
    if isinstance(holder, Fields) and isinstance(key, str | int):
        return Fields(((key, value), *(item for item in holder.items if item[0] != key)))
    return mixed((holder, value))
