"""Questions about pieces of the user's code, as libcst has them."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst


def is_linear(node: cst.CSTNode) -> bool:
    """Whether partial values in a node make it partial in the same way, whatever their numbers are."""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Add | cst.Subtract)
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus | cst.Plus)
    return isinstance(node, cst.Tuple | cst.List | cst.Dict | cst.ListComp | cst.DictComp | cst.Subscript)


def is_product(node: cst.CSTNode) -> bool:
    """Whether a node is partial as its one partial factor is, whatever the numbers are."""
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply | cst.Divide)


def is_quotient(node: cst.CSTNode) -> bool:
    """Whether a node is one expression divided by another."""
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)


def accumulated(node: cst.BaseSmallStatement) -> str | None:
    """The name, or the item, that a statement does nothing to but add to it or subtract from it, or None.

    Of an item, ``found["n"]`` or ``totals.count``, it is the source.
    """
    if isinstance(node, cst.AugAssign):
        text = _added_to(node.target)
        adds = isinstance(node.operator, cst.AddAssign | cst.SubtractAssign)
        return text if adds and root_name(node.target) not in names_in(node.value) else None
    if not isinstance(node, cst.Assign) or len(node.targets) != 1:
        return None
    target, value = node.targets[0].target, node.value
    if isinstance(value, cst.IfExp):
        # `total = x if total is None else total + x`
        sides = [side for side in (value.body, value.orelse) if root_name(target) in names_in(side)]
        if len(sides) != 1:
            return None
        value = sides[0]
    text, terms = _added_to(target), sum_terms(value)
    if text is None or len(terms) == 1:
        return None
    with_name = [term for term in terms if root_name(target) in names_in(term)]
    return text if len(with_name) == 1 and _added_to(with_name[0]) == text else None


def _added_to(target: cst.CSTNode) -> str | None:
    """Source of a name, or of a part of what one stands for."""
    return cst.Module([]).code_for_node(target) if root_name(target) is not None else None


def sum_terms(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a sum adds up; the right of a minus is not looked into."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return [*sum_terms(node.left), *sum_terms(node.right)]
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Subtract):
        return [*sum_terms(node.left), node.right]
    if isinstance(node, cst.Call) and _adds_trees(node):
        return [term for each in node.args[1:] for term in sum_terms(each.value)]
    return [node]


def _adds_trees(node: cst.Call) -> bool:
    """Whether a call adds trees leaf by leaf: ``jax.tree.map(jnp.add, total, grads)``, or with a lambda."""
    code = cst.Module([]).code_for_node
    if not code(node.func).endswith(("tree.map", "tree_map")) or len(node.args) != 3:
        return False
    add = node.args[0].value
    if not isinstance(add, cst.Lambda):
        return code(add).endswith(".add")
    names = {each.name.value for each in add.params.params}
    return {code(each) for each in sum_terms(add.body)} == names and len(names) == 2


def lines_of(suite: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The lines of a suite; a one-line suite is its own."""
    return suite.body if isinstance(suite, cst.IndentedBlock) else [suite]


def _only(lines: Sequence[cst.CSTNode], kinds: tuple[type[cst.CSTNode], ...]) -> bool:
    return all(
        isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite)
        and all(isinstance(small, kinds) for small in line.body)
        for line in lines
    )


def harmless(lines: Sequence[cst.CSTNode]) -> bool:
    """Whether lines compute nothing."""
    return _only(lines, (cst.Raise, cst.Pass, cst.Assert, cst.Continue))


def never_falls_through(suite: cst.BaseSuite) -> bool:
    """Whether a suite ends by leaving the one around it, so that what follows is its else."""
    last = lines_of(suite)[-1]
    return isinstance(last, cst.SimpleStatementLine | cst.SimpleStatementSuite) and isinstance(
        last.body[-1], cst.Return | cst.Raise | cst.Continue | cst.Break
    )


def is_check(suite: cst.BaseSuite) -> bool:
    """Whether a suite does nothing but raise."""
    return _only(lines_of(suite), (cst.Raise, cst.Pass, cst.Assert))


def is_constant(node: cst.CSTNode) -> bool:
    """Whether a node is a literal, or a literal with a sign."""
    if isinstance(node, cst.UnaryOperation):
        return is_constant(node.expression)
    if isinstance(node, cst.Name):
        return node.value in ("None", "True", "False")
    return isinstance(node, cst.BaseNumber | cst.SimpleString | cst.ConcatenatedString | cst.Ellipsis)


class _Leaving(cst.CSTVisitor):
    """Looks for statements that leave the suite a compound statement stands in."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        self.loops = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_Return(self, node: cst.Return) -> None:
        self.found = True

    def visit_Raise(self, node: cst.Raise) -> None:
        self.found = True

    def visit_Break(self, node: cst.Break) -> None:
        self.found |= not self.loops

    def visit_Continue(self, node: cst.Continue) -> None:
        self.found |= not self.loops

    def visit_For_body(self, node: cst.For) -> None:
        self.loops += 1

    def leave_For_body(self, node: cst.For) -> None:
        self.loops -= 1

    def visit_While_body(self, node: cst.While) -> None:
        self.loops += 1

    def leave_While_body(self, node: cst.While) -> None:
        self.loops -= 1


def leaves(line: cst.CSTNode) -> bool:
    """Whether a compound statement may leave its suite, so that what follows is not run."""
    visitor = _Leaving()
    line.visit(visitor)
    return visitor.found


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


def binds_anew(target: cst.CSTNode) -> bool:
    """Whether a target has a name of its own in it, and not only parts of what names stand for."""
    if isinstance(target, cst.Tuple | cst.List):
        return any(binds_anew(element.value) for element in target.elements)
    return not isinstance(target, cst.Subscript | cst.Attribute)


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

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        bound = _Bindings()
        node.params.visit(bound)
        defaults = (each.default for each in (*node.params.params, *node.params.kwonly_params))
        self.names |= names_in(node.body) - bound.names
        self.names = self.names.union(*(names_in(each) for each in defaults if each is not None))
        return False


def names_in(node: cst.CSTNode) -> frozenset[str]:
    """Every name in an expression, also inside nested functions, but for the parameters of lambdas."""
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


def without_annotations(function: cst.FunctionDef) -> cst.FunctionDef:
    """A function whose signature says nothing of types."""
    parameters = function.params

    def bare(each: cst.Param) -> cst.Param:
        bound: cst.AssignEqual | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
        if each.default is not None:
            none = cst.SimpleWhitespace("")
            bound = cst.AssignEqual(whitespace_before=none, whitespace_after=none)
        return each.with_changes(annotation=None, equal=bound)

    changes: dict[str, object] = {
        "params": [bare(each) for each in parameters.params],
        "posonly_params": [bare(each) for each in parameters.posonly_params],
        "kwonly_params": [bare(each) for each in parameters.kwonly_params],
    }
    if isinstance(parameters.star_arg, cst.Param):
        changes["star_arg"] = bare(parameters.star_arg)
    if parameters.star_kwarg is not None:
        changes["star_kwarg"] = bare(parameters.star_kwarg)
    return function.with_changes(params=parameters.with_changes(**changes), returns=None)
