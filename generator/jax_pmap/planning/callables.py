"""Callables and objects among the arguments: which of them the emitted code may take any other of."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst
import libcst.matchers as m

from jax_pmap.emit.callees import CallGraph, UserFunction
from jax_pmap.emit.places import Body, Statement, inside, place
from jax_pmap.emit.syntax import names_in
from jax_pmap.model import ParameterKind, Refusal, Sync
from jax_pmap.planning.plan import is_literal, plain_constants
from jax_pmap.planning.roles import Described, Roles
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.session import Session
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.worker import protocol

if TYPE_CHECKING:
    from jax_pmap.planning.decide import Observation

#: What has names of its own, or is not run where it stands.
INNER = (cst.FunctionDef, cst.Lambda, cst.GeneratorExp, cst.ListComp, cst.SetComp, cst.DictComp)


def constant_source(argument: Mapping[str, Any], facts: FunctionFacts) -> str | None:
    """Source that the emitted file can compare a static argument with, or None.

    That is the value of a literal, or the parameter's default where the value is the default. An object whose
    attributes may be assigned to is itself with others, too.
    """
    if argument["none"]:
        return "None"
    given: str = argument["repr"]
    if is_literal(given):
        return given
    if argument["kept"]:
        return None
    parameter = next(p for p in facts.parameters if p.name == argument["name"])
    if parameter.default is None or not argument["default"]:
        return None
    tree = parsed_expression(parameter.default)
    reads = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    # Inside the drop-in, a parameter of the same name would hide what the default means.
    if reads & {p.name for p in facts.parameters}:
        return None
    named = isinstance(tree, ast.Name | ast.Attribute)
    return parameter.default if named or argument["default"] == "==" else None


def told_apart(session: Session, name: str, call_graph: CallGraph) -> tuple[tuple[str, str], ...] | None:
    """What is read of object `name`, as ``("config.rate", "0.1")``, where that alone decides what it does.

    Also in the user's functions that it is given to. None where the object itself is used (given to any other
    function, compared, iterated over), or where something that is read of it has no literal value. The
    emitted file can then not tell another object from it.
    """
    found = _Reads(session, name, call_graph).of(name, name, call_graph.origin)
    return tuple(found.items()) if found else None


@dataclass(frozen=True, slots=True)
class _Reads:
    """The reads of an object, argument `name` of the target."""

    session: Session
    name: str
    call_graph: CallGraph
    #: The functions that were looked into, each for one of its parameters and what is given there.
    seen: set[tuple[str, str, str, str]] = field(default_factory=set)

    def of(self, variable: str, given: str, function: UserFunction) -> dict[str, str] | None:
        """Values by what is read of `variable` in a function, where that is ``given`` of the target."""
        key = str(function.source.path), function.source.qualname, variable, given
        if key in self.seen:
            return {}
        self.seen.add(key)
        definition = function.parsed.definition
        parents = {child: node for node in ast.walk(definition) for child in ast.iter_child_nodes(node)}
        found: dict[str, str] = {}
        for node in ast.walk(definition):
            if isinstance(node, ast.Name) and node.id == variable:
                rows = self._of_name(node, given, parents, function)
                if rows is None:
                    return None
                found |= rows
        return found

    def _of_name(
        self, node: ast.Name, given: str, parents: Mapping[ast.AST, ast.AST], function: UserFunction
    ) -> dict[str, str] | None:
        expression, chain = parents[node], list[str]()
        read: ast.AST = node
        while (isinstance(expression, ast.Attribute) and isinstance(expression.ctx, ast.Load)) or _is_entry(
            expression, read
        ):
            chain.append(given + ast.unparse(expression).removeprefix(node.id))
            read, expression = expression, parents[expression]
        if not isinstance(node.ctx, ast.Load):
            return None
        answer = self.session.ask(protocol.Constants(self.name, tuple(chain)), "reading settings")
        # What a literal is asked for, `config.mode.upper()`, follows from it.
        literal = next((each for each in chain if (text := answer[each]) and is_literal(text)), None)
        if literal is not None:
            return {literal: str(answer[literal])}
        call = parents[expression] if isinstance(expression, ast.keyword) else expression
        if not isinstance(call, ast.Call) or read is call.func:
            return None
        callee = self.call_graph.find(ast.unparse(call.func), function)
        parameter = None if callee is None else _parameter(call, read, callee)
        if callee is None or parameter is None:
            return None
        return self.of(parameter, chain[-1] if chain else given, callee)


def _parameter(call: ast.Call, given: ast.AST, callee: UserFunction) -> str | None:
    """The parameter of a function that takes what is `given` in a call of it, as one value."""
    for keyword in call.keywords:
        if keyword.value is given:
            return keyword.arg
    before = call.args[: next(i for i, each in enumerate(call.args) if each is given)]
    kinds = (ParameterKind.POSITIONAL_ONLY, ParameterKind.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in callee.facts.parameters if each.kind in kinds]
    if callee.is_method or any(isinstance(each, ast.Starred) for each in before) or len(before) >= len(names):
        return None
    return names[len(before)]


def _is_entry(expression: ast.AST, read: ast.AST) -> bool:
    """Whether an expression is ``read["name"]``."""
    return (
        isinstance(expression, ast.Subscript)
        and isinstance(expression.ctx, ast.Load)
        and expression.value is read
        and isinstance(expression.slice, ast.Constant)
    )


def unknown(restricted: Mapping[str, str | None], facts: FunctionFacts, given: Sequence[str]) -> list[str]:
    """Static arguments that the emitted file cannot compare, and that nobody said may be any other.

    `restricted` are the sources of static arguments, `given` the names of ``--static``.
    """
    settled = {*given, *facts.bound_parameters, facts.receiver}
    return [name for name, source in restricted.items() if source is None and name not in settled]


def decides(
    names: Sequence[str], by_name: Mapping[str, Mapping[str, Any]], facts: FunctionFacts, receiver: str = ""
) -> Refusal:
    """The refusal of arguments that the reduction may depend on; the object of a method has no default."""
    first = by_name[names[0]]
    what = f"a {'callable' if first['callable'] else first['type']}"
    more = f" (and so may `{'`, `'.join(names[1:])}`)" if names[1:] else ""
    flags = " ".join(f"--static {name}" for name in names)
    each = "what is" if names[1:] else f"the {first['type']}"
    default = "" if receiver in names else "Make it the parameter's default, or "
    hint = f"{default}have the proof hold for {each} given here and no other: {flags}"
    return Refusal(
        "JP053",
        f"`{names[0]}` is {what}, on which the reduction may depend{more}, and the emitted file could not "
        "tell another one from it",
        hint[0].upper() + hint[1:],
        facts.span,
    )


def _constants(described: Sequence[Described], roles: Roles) -> Iterator[tuple[str, Described]]:
    """(argument, leaf) of callables and objects that stand beside arrays in an argument's containers."""
    for argument in described:
        if argument["name"] in {*roles.accepted, *roles.statics}:
            continue
        for index in sorted(plain_constants(argument)):
            leaf = argument["leaves"][index]
            if not is_literal(leaf["repr"]):
                yield argument["name"], leaf


def constant_paths(described: Sequence[Described], roles: Roles) -> list[str]:
    """Paths of callables and objects that stand beside arrays in an argument's containers."""
    return [leaf["path"] for _, leaf in _constants(described, roles)]


def undecided_constants(
    described: Sequence[Described], roles: Roles, facts: FunctionFacts, same: Collection[str]
) -> Refusal | None:
    """The refusal of one of `constant_paths` that the emitted code cannot tell from others.

    It can those whose paths are among the `same`.
    """
    for name, leaf in _constants(described, roles):
        if leaf["path"] not in same:
            return Refusal(
                "JP053",
                f"`{leaf['path']}` is a {leaf['dtype']}, on which the reduction may depend, and the "
                "emitted file could not tell another one from it",
                f"Keep it outside the argument, or have the proof hold for the {leaf['dtype']} given "
                f"here and no other: --static {name}",
                facts.span,
            )
    return None


def function_paths(described: Sequence[Described], roles: Roles) -> dict[str, str]:
    """Paths of the functions that arguments hold beside their leaves, with the argument's name."""
    return {
        path: argument["name"]
        for argument in described
        if argument["name"] not in {*roles.accepted, *roles.statics}
        for path, _ in argument["functions"]
    }


def only_given_whole(name: str, body: Body, roles: Roles, found: Observation, folds: Sequence[Sync]) -> bool:
    """Whether all that is done with argument `name` is to call it with what every device has alike.

    An optimiser is the case in point: whichever it is, equal gradients and an equal state give the
    same update on every device, and that of one device on the whole batch. So another one needs no
    other collectives. Anything else done with it counts against it, and so do values that are not
    known, and calls that do not take arrays to arrays: a function or a number that comes of it may
    decide what is done with the batch, unless that meets nothing of it. Where each device has its own part of
    the gradients, none is such.
    """
    calls: list[tuple[cst.Call, bool]] = []
    if not _find(body.function.body, name, None, False, calls):
        return False
    functions = {scope.name for scope in body.scopes.values()}
    for call, again in calls:
        span = place(body.span(call))
        reads = names_in(call) - {name}
        known = _whole_names(body, roles, found, None if again else span[:2])
        given = reads & body.local_names
        if reads & functions or not given or not given <= known:
            return False
        result = body.expression_nodes.get(call)
        if result is None:
            return False
        if result.point not in found.arrays and (
            again or not _meets_whole_alone(body.statements[result.statement], body, roles, found)
        ):
            return False
        if any(inside(place(sync.span), span) for sync in folds):
            return False
    return True


def _meets_whole_alone(made: Statement, body: Body, roles: Roles, found: Observation) -> bool:
    """Whether what a call in a statement gives goes into nothing but what every device has alike, with such.

    As an update does that is a module: it goes into the model, and the model to the caller.
    """
    if len(made.blocks) > 1 or made.keeps or made.kind == "other":
        return False
    start, names = place(made.span)[:2], set[str]()
    functions = {scope.name for scope in body.scopes.values()}
    for statement in sorted(body.statements.values(), key=lambda each: place(each.span)):
        if statement is made or (place(statement.span)[:2] > start and statement.reads & names):
            whole = _whole_names(body, roles, found, place(statement.span)[:2])
            if statement.reads & functions or not (statement.reads & body.local_names) - names <= whole:
                return False
            names |= {name for name, _ in statement.names}
    apart = m.OneOf(*(getattr(m, each.__name__)() for each in INNER))
    rest = [
        node
        for node in body.function.body.body
        if isinstance(node, cst.BaseCompoundStatement) and place(body.span(node))[:2] > start
    ]
    return not any(names_in(node) & names for node in (*rest, *m.findall(body.function.body, apart)))


def _whole_names(body: Body, roles: Roles, found: Observation, before: tuple[int, int] | None) -> set[str]:
    """Local names that hold the same on every device wherever they are bound (before a place), and no key."""
    bound: dict[str, set[int]] = {}
    changed: set[str] = set()
    for statement in body.statements.values():
        if before is not None and place(statement.span)[2:] > before:
            continue
        for name, point in statement.names:
            bound.setdefault(name, set()).add(point)
        if statement.kind == "other":
            # A call whose result is dropped may be there for what it does to a container.
            changed |= statement.reads
    split = {argument for argument, leaves in roles.axes.items() if leaves}
    split |= {argument for argument, _ in roles.keys}
    passed = {name: points & found.seen for name, points in bound.items()}
    whole = {name for name, points in passed.items() if points and points <= found.whole}
    return (whole | (body.parameters - bound.keys())) - split - changed


def _find(
    node: cst.CSTNode, name: str, call: cst.Call | None, again: bool, calls: list[tuple[cst.Call, bool]]
) -> bool:
    """Collect the innermost call around every use of `name`, and whether it stands in a loop.

    False for a use that is in no call, or in a function or comprehension.
    """
    if isinstance(node, INNER):
        return name not in names_in(node)
    if isinstance(node, cst.Name):
        if node.value == name and call is not None:
            calls.append((call, again))
        return node.value != name or call is not None
    if isinstance(node, cst.Attribute | cst.Arg):
        return _find(node.value, name, call, again, calls)
    inner = node if isinstance(node, cst.Call) else call
    again = again or isinstance(node, cst.For | cst.While)
    return all(_find(child, name, inner, again, calls) for child in node.children)
