"""The target's file, parsed once for every question asked of it.

Questions go to `ast`, which answers for a 1,000-line file in the time LibCST's scope metadata takes for
thirty; LibCST is for rewriting. Spans are the same either way (a test holds them equal).
"""

from __future__ import annotations

import ast
import functools

import jax_pmap.sources as sources
from jax_pmap.model import Refusal, RefusalError, Source, Span, refused
from jax_pmap.syntax.definitions import Definition, Function, find
from jax_pmap.syntax.lines import Lines
from jax_pmap.syntax.resolve import Resolver


class ParsedSource(Resolver):
    """The file of a target: what its names stand for, and the target in it."""

    def __init__(
        self, source: Source, tree: ast.Module, definition: Function, enclosing: tuple[Definition, ...] = ()
    ) -> None:
        """Look at the `definition` in the `tree` of a file, and those around it, outermost first."""
        # The ends of lines differ between files; what is cut out of one has Python's.
        text = source.text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        super().__init__(text, source.shown_path, tree, source.module, package=source.is_package)
        self.source = source
        self.definition = definition
        self.enclosing = enclosing

    def inside(self, text: str) -> ast.expr:
        """The tree of an expression, to be understood as if it stood in the target."""
        return self.expression(text, self.definition)


#: In the place of a target, for files that have none.
_NOTHING = ast.FunctionDef(
    name="", args=ast.arguments([], [], None, [], [], None, []), body=[], decorator_list=[]
)


def parse(source: Source) -> ParsedSource:
    """Parse the target's file and find the target in it.

    Raises:
        RefusalError: JP005 for a file that does not parse, JP002 / JP004 where no function has the name.
    """
    text = source.text.removeprefix("\ufeff")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        span = Span(source.shown_path, error.lineno or 1, max((error.offset or 1) - 1, 0))
        raise RefusalError(_syntax_refusal(error.msg, span)) from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting beyond the parser
        raise RefusalError(_syntax_refusal(str(error), Span(source.shown_path, 1))) from error

    chain = find(tree, source.qualname)
    if chain is None:
        raise refused(
            "JP002",
            f"`{source.qualname}` is not defined in `{source.shown_path}`.",
            "Name a function as FILE::FUNC, with dots for nested ones (`Class.method`, `outer.inner`).",
            Span(source.shown_path, 1),
        )
    *enclosing, definition = chain
    if isinstance(definition, ast.ClassDef):
        raise refused(
            "JP004",
            f"`{source.qualname}` is a class.",
            f"Name one of its functions: `{source.shown_path}::{source.qualname}.NAME`.",
            Lines(text, source.shown_path).span(definition),
        )
    return ParsedSource(source, tree, definition, tuple(enclosing))


def _syntax_refusal(message: str, span: Span) -> Refusal:
    return Refusal(
        "JP005",
        f"`{span.file}` does not parse: {message}.",
        "Correct the file. Syntax newer than the Python that runs jax-pmap needs a newer Python for it.",
        span,
    )


def parse_file(source: Source) -> ParsedSource:
    """Parse a file in which no function is the target.

    Raises:
        RefusalError: JP005, the file does not parse.
    """
    text = source.text.removeprefix("\ufeff")
    return ParsedSource(source, sources.parse(text, source.shown_path), _NOTHING)


def resolver_of(source: Source) -> Resolver:
    """What names stand for in the file of a `source`, parsed once however many are looked up."""
    return _resolver(source.text.removeprefix("\ufeff"), source.shown_path, source.module, source.is_package)


@functools.lru_cache(maxsize=32)
def _resolver(text: str, shown: str, module: str, package: bool) -> Resolver:
    return Resolver(text, shown, ast.parse(text), module, package=package)
