"""What tells constants from others that no source is equal to: callables, configurations, objects."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence

from jax_pmap.emit.render import contents_source
from jax_pmap.model import Argument, Guard, Leaf, Role, refused
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.worker import protocol
from jax_pmap.worker.scopes import bound_names, parameters


def identities(session: Session, expressions: Collection[str]) -> dict[str, protocol.Identity]:
    """By expression, what the emitted code tells a constant from another one by.

    Those are left out that have no contents to be told by.
    """
    if not expressions:
        return {}
    asked = protocol.Identities(contents_source(), "contents", tuple(sorted(expressions)))
    answer = session.ask(asked, "reading constants")
    return {name: found for name, found in answer.items() if found is not None}


def captured_constants(
    session: Session, target: Target, arguments: Sequence[Argument], guards: Sequence[Guard]
) -> tuple[Leaf, ...]:
    """What a method reads of its object, and a function of those around it, that it may depend on.

    Of objects among the `arguments` that is the class, where their methods are called. In the places of the
    `guards` the emitted code raises, whatever is read there.

    Raises:
        RefusalError: JP053, for a function that nothing tells from others.
    """
    facts, parsed = target.facts, target.parsed
    objects = tuple(each.name for each in arguments if not each.static)
    if not facts.receiver and not facts.closure_names and not objects:
        return ()
    scopes = [each for each in parsed.enclosing if isinstance(each, ast.FunctionDef)]
    visible = {name for each in scopes for name in (*bound_names(each.body), *_given(each))}
    bound = Counter(name for each in scopes for name in _bindings(each))
    functions = {node.name for each in scopes for node in ast.walk(each) if isinstance(node, ast.FunctionDef)}
    asked = protocol.FindCaptured(
        contents_source(),
        "contents",
        parsed.text,
        parsed.definition.lineno,
        facts.receiver,
        ".".join(each.name for each in parsed.enclosing if isinstance(each, ast.ClassDef)),
        facts.closure_names,
        tuple(sorted(visible)),
        tuple(sorted(name for name in functions if bound[name] == 1)),
        tuple(p.name for p in facts.parameters),
        objects,
        tuple(
            (span.line, span.column, span.end_line, span.end_column)
            for span in (each.span for each in guards)
            if span.file == target.source.shown_path
        ),
    )
    found = session.ask(asked, "reading constants")
    for each in found:
        if not each.value and not each.digest:
            raise refused(
                "JP053",
                f"`{each.path}` is a {each.type}, on which the reduction may depend, and the emitted file "
                "could not tell another one from it, as it holds what has no contents to compare",
                f"Make it a method, or a function at the top of a file, that `{facts.name}` calls",
                facts.span,
            )
    return tuple(Leaf(each.path, Role.STATIC, None, (), each.type, each.value, each.digest) for each in found)


def _given(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in parameters(function.args)]


def _bindings(function: ast.FunctionDef) -> list[str]:
    """Names that a function binds, once for every place."""
    found = _given(function)
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef) and node is not function:
            found.append(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.append(node.id)
    return found
