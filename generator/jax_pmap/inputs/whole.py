"""A target that is called as it is: its parameters come from the object that importing its file makes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jax_pmap.inputs.module import as_imported, module_of
from jax_pmap.locate import as_others_import, locate, locate_object
from jax_pmap.model import RefusalError, Request, Source
from jax_pmap.notebook import is_notebook
from jax_pmap.reading.forwarding import forwarding, statement_of
from jax_pmap.reading.target import Target, read_target
from jax_pmap.session import Session
from jax_pmap.syntax.parse import parse, resolver_of
from jax_pmap.syntax.slice import Module
from jax_pmap.syntax.text import function_text
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import unless


@dataclass(frozen=True, slots=True)
class CalledObject:
    """An object at the top of a file that may be called as it is."""

    source: Source
    tree: ast.Module
    #: What gives it its name.
    statement: ast.stmt

    def forwarding(self, rows: Sequence[protocol.Parameter]) -> Source:
        """The source with a function of these parameters in its place: see `forwarding`."""
        return forwarding(self.source, self.tree, self.statement, rows)


def called_object(request: Request) -> CalledObject | None:
    """What `request` names, where that may be called as it is.

    That is any object that importing a file makes, a class left out.
    """
    source = as_others_import(locate_object(request.target, request.directory), request)
    if not _is_importable(source):
        return None
    tree = ast.parse(source.text.removeprefix("\ufeff"))
    statement = statement_of(tree, source.qualname)
    if statement is None or not resolver_of(source).is_static(statement):
        return None
    return CalledObject(source, tree, statement)


def opened(session: Session, request: Request) -> Target | None:
    """The target, where importing its file shows that its decorators change nothing.

    They give back what they are given, as those do that enter a function in a table, or stand in a file that
    lies outside the project and can be read.
    """
    if request.run is not None or request.in_place:
        return None  # What is edited is read anew.
    source = as_others_import(locate(request.target, request.directory), request)
    if source.binding is not None or not _is_importable(source):
        return None
    parsed = parse(source)
    if parsed.enclosing or Module(parsed).work() is not None:
        return None
    node, text = parsed.definition, function_text(parsed)
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    made = protocol.Object(module_of(source), source.qualname)
    definition = protocol.Definition(text.text, str(source.path), text.line, node.name)
    asked = protocol.IsDefinition(made, definition, protocol.Written(first, 0))
    given_back = unless(("import",), session.ask, asked, f"importing `{source.shown_path}`")
    if given_back is None:
        return None
    try:
        return read_target(as_imported(source, session), request, given_back=given_back)
    except RefusalError:
        if given_back:
            raise
        return None  # What its decorators do is known no more than it was.


def _is_importable(source: Source) -> bool:
    return not is_notebook(source.path) and all(part.isidentifier() for part in source.module.split("."))


def called_whole(session: Session, request: Request) -> Target | None:
    """The target as a function that calls what its module has by its name, or None where there is none.

    A program that is run, or a file that is edited, has to be given the function itself.
    """
    found = called_object(request) if request.run is None and not request.in_place else None
    if found is None or Module(parse(found.forwarding(()))).work() is not None:
        return None
    source = found.source
    asked = protocol.FindParameters(protocol.Object(module_of(source), source.qualname))
    rows = unless(("import",), session.ask, asked, f"importing `{source.shown_path}`")
    if rows is None:
        return None
    return read_target(found.forwarding(rows), request)
