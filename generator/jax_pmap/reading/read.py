"""Reads the target's source: everything later stages want to know that needs no running."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence

from jax_pmap.model import ParameterKind, Source
from jax_pmap.reading.calls import body_calls, collectives, gradient_calls, gradient_facts, mapped_axes
from jax_pmap.reading.decorators import (
    donations,
    named_by_options,
    options_in,
    pmap_hints,
    read_decorators,
    receiver_of,
    transformations,
)
from jax_pmap.reading.facts import Decorator, FunctionFacts, ImportedName, Parameter
from jax_pmap.reading.runs import function_runs, host_functions
from jax_pmap.syntax.library import MAPPERS
from jax_pmap.syntax.parse import ParsedSource, parse
from jax_pmap.syntax.resolve import UNKNOWN, TopLevel
from jax_pmap.worker.scopes import (
    ALWAYS_THERE,
    defaults,
    free_names,
    names_in,
    own_nodes,
    parameters,
    quoted_names,
    used_names,
    written_annotations,
)

_KEY_NAME = re.compile(r"(?:.*_)?(?:rngs?|prng|keys?|prngkey)", re.ASCII)


def read(source: Source, parsed: ParsedSource | None = None, *, given_back: bool = False) -> FunctionFacts:
    """Read the target. `parsed` saves a second parse where the caller has it already.

    With `given_back`, running has shown that its decorators give back what they are given.

    Raises:
        RefusalError: as `parse`.
    """
    parsed = parsed or parse(source)
    function = parsed.definition
    names = parsed.top
    decorators = read_decorators(parsed, given_back=given_back)
    used = _free(parsed, decorators)
    around = _around(parsed)
    closure = sorted(used & around)
    used -= around

    static: set[str] = set()
    donated, elsewhere = donations(parsed)
    axis_name: str | None = None
    in_axes: tuple[tuple[str, int | None], ...] = ()
    compilers: set[str] = set()
    for made, bound in transformations(parsed):
        compilers.add(made.qualname)
        static |= named_by_options(parsed, made.keywords, bound)
        if made.qualname in MAPPERS:
            found_name, found_axes = pmap_hints(parsed, made)
            axis_name, in_axes = axis_name or found_name, in_axes or found_axes

    binding = source.binding
    for name, text, bound in binding.calls if binding else ():
        compilers.add(name)
        options = options_in(parsed, text)
        static |= named_by_options(parsed, options, bound)
        given = named_by_options(parsed, options, bound, donated=True)
        elsewhere |= {(each, binding.qualname) for each in given} if binding else set()

    order = [parameter.arg for parameter in parameters(function.args)]
    receiver = receiver_of(parsed)
    # Of ``agent.update`` the object is bound ahead of these; of ``Agent.update`` the class is one of them.
    first = bool(receiver) and binding is not None and not binding.of_class
    bound_names = order[first:][: len(binding.positional)] if binding else []
    bound_names += [name for name, _ in binding.keywords if name in order] if binding else []
    inner_axes = mapped_axes(parsed, body_calls(parsed))
    own = list(own_nodes(function.body))
    everything = [node for statement in function.body for node in ast.walk(statement)]
    owner = parsed.enclosing[-1] if parsed.enclosing else None
    return FunctionFacts(
        name=function.name,
        span=parsed.span(function),
        parameters=tuple(_parameters(parsed)),
        decorators=decorators,
        docstring=ast.get_docstring(function),
        is_async=isinstance(function, ast.AsyncFunctionDef),
        is_generator=any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own),
        global_names=tuple(
            dict.fromkeys(
                name
                for node in everything
                if isinstance(node, ast.Global | ast.Nonlocal)
                for name in node.names
                # A variable of the function's own that a nested one assigns is not outside it.
                if isinstance(node, ast.Global) or name in {*closure, *used}
            )
        ),
        imported=tuple(_imported(used, names, function)),
        module_names=tuple(sorted(used & names.defined)),
        unknown_names=tuple(sorted(used - names.defined - names.imported.keys() - ALWAYS_THERE)),
        taken_names=frozenset(names.defined)
        | names.imported.keys()
        | used
        | set(order)
        | {node.id for node in everything if isinstance(node, ast.Name)}
        | {node.name for node in everything if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        | around,
        gradient_calls=tuple(gradient_facts(parsed, found) for found in gradient_calls(parsed)),
        function_runs=function_runs(parsed),
        host_functions=host_functions(parsed),
        collectives=collectives(parsed, inner_axes),
        inner_axes=inner_axes,
        mapped_axes=mapped_axes(parsed, parsed.all_calls),
        static_parameters=tuple(name for name in order if name in static),
        donated_parameters=tuple(name for name in order if name in donated),
        donated_elsewhere=tuple(sorted(elsewhere)),
        pmap_axis_name=axis_name,
        pmap_in_axes=in_axes,
        returned_names=_returned(own, order),
        looked_up_parameters=tuple(dict.fromkeys(_tables(everything, order))),
        compared=tuple(dict.fromkeys(_compared(everything, order, parsed))),
        called_parameters=_called(everything, order),
        key_parameters=_keys(parsed, order),
        closure_names=tuple(closure),
        receiver=receiver,
        bound_parameters=tuple(bound_names),
        changes_seen=all(name.startswith("flax.nnx.") for name in compilers),
        owner="" if owner is None else "class" if isinstance(owner, ast.ClassDef) else "function",
        star_imports=names.stars,
        future_annotations=any(
            row.qualified == "__future__.annotations" for row in names.imported.get("annotations", ())
        ),
    )


def _parameters(parsed: ParsedSource) -> Iterator[Parameter]:
    arguments = parsed.definition.args
    defaults: dict[str, ast.expr] = {}
    positional = [*arguments.posonlyargs, *arguments.args]
    if arguments.defaults:
        with_default = positional[-len(arguments.defaults) :]
        defaults.update(zip((item.arg for item in with_default), arguments.defaults, strict=True))
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            defaults[item.arg] = default
    kinds = {id(item): ParameterKind.POSITIONAL_ONLY for item in arguments.posonlyargs}
    kinds |= {id(item): ParameterKind.KEYWORD_ONLY for item in arguments.kwonlyargs}
    if arguments.vararg:
        kinds[id(arguments.vararg)] = ParameterKind.VAR_POSITIONAL
    if arguments.kwarg:
        kinds[id(arguments.kwarg)] = ParameterKind.VAR_KEYWORD
    for item in parameters(arguments):
        default = defaults.get(item.arg)
        yield Parameter(
            item.arg,
            kinds.get(id(item), ParameterKind.POSITIONAL_OR_KEYWORD),
            parsed.segment(item.annotation) if item.annotation else None,
            parsed.segment(default) if default else None,
        )


def _free(parsed: ParsedSource, decorators: Sequence[Decorator]) -> set[str]:
    """Names the emitted function needs from outside: of body, defaults, annotations, kept decorators."""
    function = parsed.definition
    used = free_names(function) | used_names(defaults(function.args))
    # A quoted name counts when the file knows it; else it is a shape or a literal.
    known = parsed.top.defined | parsed.top.imported.keys()
    for annotation in written_annotations(function):
        used |= used_names([annotation]) | (quoted_names(annotation) & known)
    for decorator, written in zip(decorators, function.decorator_list, strict=True):
        if not decorator.set_aside:
            used |= used_names([written])
    return used


def _around(parsed: ParsedSource) -> set[str]:
    """Names bound by the functions around the target; a class body is not seen from inside."""
    functions = (each for each in parsed.enclosing if not isinstance(each, ast.ClassDef))
    return {name for each in functions for name in parsed.scope_in(each).bindings}


def _imported(used: set[str], names: TopLevel, function: ast.AST) -> Iterator[ImportedName]:
    chains = {chain for node in ast.walk(function) for chain in _chain(node)}
    for name in sorted(used & names.imported.keys()):
        rows = names.imported[name]
        # Of `import a`, `import a.b` and `import a.c`, those whose module the function spells out.
        needed = [row for row in rows if row.statement.removeprefix("import ") in chains]
        for row in needed or rows[:1]:
            yield ImportedName(name, row.statement, row.typing_only)


def _chain(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        for base in _chain(node.value):
            yield f"{base}.{node.attr}"


def _returned(own: list[ast.AST], order: list[str]) -> tuple[str, ...]:
    """Parameters among the returned values; the longest of several returns tells most."""
    best: tuple[str, ...] = ()
    for node in own:
        if isinstance(node, ast.Return) and node.value is not None:
            items = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            row = tuple(item.id if isinstance(item, ast.Name) and item.id in order else "" for item in items)
            if len(row) > len(best) or (len(row) == len(best) and row.count("") < best.count("")):
                best = row
    return best


def _tables(nodes: list[ast.AST], order: list[str]) -> Iterator[str]:
    """Parameters that others are indices of the rows of: ``table[ids]``, ``table.at[ids].add(…)``.

    So they are of one after the other: ``for ids in minibatches``.
    """
    over = [(node.target, node.iter) for node in nodes if isinstance(node, ast.For | ast.comprehension)]
    parts = {
        part.id: each.id
        for part, each in over
        if isinstance(part, ast.Name) and isinstance(each, ast.Name) and each.id in order
    }
    for node in nodes:
        if not isinstance(node, ast.Subscript):
            continue
        index, *others = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        table = node.value
        if isinstance(table, ast.Attribute) and table.attr == "at":
            table = table.value
        if not (isinstance(table, ast.Name) and isinstance(index, ast.Name)):
            continue
        # Of `logits[rows, labels]` each row has one.
        rows = parts.get(index.id, index.id)
        picked = table.id != rows and all(isinstance(other, ast.Slice) for other in others)
        if picked and {table.id, rows} <= {*order}:
            yield table.id


def _compared(nodes: list[ast.AST], order: list[str], parsed: ParsedSource) -> Iterator[tuple[str, str]]:
    """Parameters that decide branches or are looked up, with the literal values they are held against."""
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, right in itertools.pairwise(sides):
                for one, other in ((left, right), (right, left)):
                    if isinstance(one, ast.Name) and one.id in order:
                        value = parsed.constant(other)
                        values = value if isinstance(value, tuple) else (value,)
                        yield from ((one.id, repr(item)) for item in values if item is not UNKNOWN)
        elif isinstance(node, ast.Match) and isinstance(node.subject, ast.Name) and node.subject.id in order:
            for pattern in (inner for case in node.cases for inner in ast.walk(case.pattern)):
                if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant):
                    yield node.subject.id, repr(pattern.value.value)
                elif isinstance(pattern, ast.MatchSingleton):
                    yield node.subject.id, repr(pattern.value)
        elif (
            (table := _looked_up(node)) is not None
            and isinstance(table[1], ast.Name)
            and table[1].id in order
        ):
            keys = parsed.assigned(table[0])
            found = [parsed.constant(key) for key in keys.keys] if isinstance(keys, ast.Dict) else []
            yield from ((table[1].id, repr(value)) for value in found if value is not UNKNOWN)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            for name in _flags(node.test):
                if name in order:
                    yield name, "True"
                    yield name, "False"


def _looked_up(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The table and the key of ``table[key]`` and ``table.get(key)``."""
    if isinstance(node, ast.Subscript):
        return node.value, node.slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return (node.func.value, node.args[0]) if node.args else None
    return None


def _flags(test: ast.expr) -> Iterator[str]:
    if isinstance(test, ast.Name):
        yield test.id
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _flags(test.operand)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _flags(value)


def _called(nodes: list[ast.AST], order: list[str]) -> tuple[str, ...]:
    called = {
        node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return tuple(name for name in order if name in called)


def _keys(parsed: ParsedSource, order: list[str]) -> tuple[str, ...]:
    """Parameters handed to `jax.random` as the key, or named like one and not annotated otherwise."""
    found: set[str] = set()
    for call in body_calls(parsed):
        if (parsed.qualname(call.func) or "").startswith("jax.random.") and call.args:
            first = call.args[0]
            while isinstance(first, ast.Subscript):
                first = first.value
            if isinstance(first, ast.Name):
                found.add(first.id)
    found -= _made_from_seed(parsed)
    plain = {
        item.arg
        for item in parameters(parsed.definition.args)
        if isinstance(item.annotation, ast.Name) and item.annotation.id in ("str", "int", "float", "bool")
    }
    return tuple(
        name for name in order if name not in plain and (name in found or _KEY_NAME.fullmatch(name.lower()))
    )


def _made_from_seed(parsed: ParsedSource) -> set[str]:
    """Names only ever handed to ``jax.random.key(seed)``: integers, not keys."""
    seeds: set[str] = set()
    for call in body_calls(parsed):
        if parsed.qualname(call.func) in ("jax.random.key", "jax.random.PRNGKey") and call.args:
            seeds |= names_in(call.args[0])
    return seeds
