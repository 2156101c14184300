"""From a plan to the user's own file with the function changed where it stands, and nothing else touched."""

from __future__ import annotations

import ast
import dataclasses
import io
import shlex
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax_pmap.emit.adapted import (
    Adapted,
    Substitute,
    adapted_callees,
    intercepted,
    is_substituted,
    woven_target,
)
from jax_pmap.emit.circular import comes_back
from jax_pmap.emit.function import EmitUnit
from jax_pmap.emit.header import IN_PLACE, Header
from jax_pmap.emit.host_names import HostNames
from jax_pmap.emit.imports import merged
from jax_pmap.emit.lines import WIDTH, Change, as_written, indent_of, prefixed, shifted, split
from jax_pmap.emit.mark import LINE, marks
from jax_pmap.emit.names import Names, bindings
from jax_pmap.emit.remainder import remainder_of
from jax_pmap.emit.render import BODY, DOCSTRING, DROP_IN, Pieces, render_pieces
from jax_pmap.emit.source import assigned_names
from jax_pmap.emit.syntax import without_annotations
from jax_pmap.emit.undo import is_same, taken_back
from jax_pmap.emit.unit import (
    check_backend,
    check_classes,
    docstring_of,
    fitting,
    header_of,
    readable,
    returns_of,
)
from jax_pmap.emit.weave import name_node, renamed, source_of, with_first, written
from jax_pmap.model import Backend, Evidence, Plan, Request, Source, refused
from jax_pmap.notebook import is_notebook
from jax_pmap.reading.decorators import decorated
from jax_pmap.reading.target import Target
from jax_pmap.syntax.definitions import DEFINITIONS, find, statements
from jax_pmap.syntax.library import COMPILERS, MAPPERS
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.uses import made_of
from jax_pmap.worker.scopes import free_names, used_names

if TYPE_CHECKING:
    import libcst as cst

#: Decorators that say how the function is looked up, or check its arguments: they stay on the drop-in.
_OUTSIDE = (
    "builtins.staticmethod",
    "builtins.classmethod",
    "typing.",
    "typing_extensions.",
    "beartype.",
    "jaxtyping.",
)

#: What a compiled function has, and another one has not.
_OF_COMPILED = frozenset({"lower", "trace", "eval_shape", "clear_cache"})


@dataclass(frozen=True, slots=True)
class Edition:
    """The user's file with the function changed in it."""

    #: The whole text, line endings as in the file.
    text: str
    #: What is new in it, to be run where the function was defined; a method stands in its class.
    definitions: str
    #: The class of a method, or ``""``.
    owner: str
    #: Originals, as written, of adapted functions that stand in another function, and of what holds them.
    enclosed: tuple[str, ...]
    #: Whether the change can be taken back, so that `check` follows it.
    followed: bool = True


#: Said where `check` cannot follow a change.
NOT_FOLLOWED = (
    "`jax-pmap check` cannot follow this change, since it cannot take it back exactly; keep the file as it "
    "was, and `jax-pmap verify {file}::{name} --against OLD.py::{name}` proves the function again"
)


def is_parallel(source: Source, parsed: ParsedSource) -> bool:
    """Whether a function is the drop-in of a function that was changed where it stands."""
    return any(
        IN_PLACE in parsed.lines[number - 3]
        for number, line in enumerate(parsed.lines, start=1)
        if number > 2 and line.strip().startswith(f"# Source: {source.shown_path}::{source.qualname} ")
    )


def emit_in_place(target: Target, plan: Plan, request: Request, evidence: Evidence | None) -> Edition:
    """The file of the target with `plan` in it, in the form `request` asks for.

    Raises:
        RefusalError: JP046 where the backend cannot express the plan, JP017 where the plan does not fit the
            source, JP018 for a notebook.
    """
    facts, source, backend = target.facts, target.source, request.backend
    if is_notebook(source.path):
        raise refused(
            "JP018",
            f"`{source.shown_path}` is a notebook, and --in-place edits Python files",
            "Write a file of its own: -o FILE",
            facts.span,
        )
    check_backend(target, backend)
    check_classes(target, plan)
    _check_callers(target)
    syncs = written(plan, backend)
    guards = () if backend is Backend.JIT else plan.guards
    file = _File(target)
    _check_compiled(target, file.taken())
    names = file.names.ours()
    adapted, renames = adapted_callees(target, syncs, guards, plan.callees, file.names.with_ours(names))
    # Methods of several classes may have one name.
    known = {o.name: o.name if o.function.detached else o.facts.name for o in adapted}
    copies = {name: file.names.own(f"p_{called}") for name, called in known.items()}
    renames = _for_copies(renames, copies)
    result = file.names.own("result") if "result" in facts.taken_names else "result"
    with fitting(target):
        body, woven = woven_target(target, plan, syncs, adapted, names, renames, result)
        made = [_copy_of(other, names, copies) for other in adapted]
    woven = renamed(woven, copies) if copies else woven
    at_top, late = _apart(file.names.brought(adapted), [woven, *made], adapted, source)
    woven, *made = (_with_imports(each, late) for each in (woven, *made))
    texts = [other.body.definition(each) for other, each in zip(adapted, made, strict=True)]
    unit = EmitUnit(
        name=facts.name,
        parameters=facts.parameters,
        returns=returns_of(target),
        docstring=docstring_of(target),
        body=body.body_source(woven),
        taken_names=frozenset(file.names.identifiers),
        helpers=request.helpers,
        remainder=remainder_of(plan, request.remainder, backend, facts.span),
        explicit=request.explicit,
        is_substituted=is_substituted(renames, adapted),
        intercepted=intercepted(adapted, copies),
        chosen_names=names,
    )
    command = request.command or f"jax-pmap gen {shlex.quote(request.target)} --in-place"
    header = header_of(
        unit, request, command, f"{source.shown_path}::{source.qualname}", made_of(target.parsed), evidence
    )
    width = WIDTH - len(file.base.expandtabs(4))
    pieces = render_pieces(unit, plan, backend, header, file.at, width)
    added = file.added(pieces, adapted, copies)
    edition = file.edition(pieces, unit, header, adapted, texts, renames, added, at_top)
    with fitting(target):
        _, plain = woven_target(target, plan, (), (), names, {}, result)
    if _can_be_taken_back(target, edition.text, body.definition(plain)):
        return edition
    # What is not taken back may have the assignments that make it easy to read.
    unit, texts = readable(unit, texts, backend, width)
    pieces = render_pieces(unit, plan, backend, header, file.at, width)
    edition = file.edition(pieces, unit, header, adapted, texts, renames, (), at_top)
    return dataclasses.replace(edition, followed=False)


def _check_callers(target: Target) -> None:
    """Refuse a function that another one, changed in this file before, runs on every device."""
    source, tree = target.source, target.parsed.tree
    scope, _, name = source.qualname.rpartition(".")
    chain = find(tree, scope) if scope else ()
    around = chain[-1] if chain else tree
    in_class = isinstance(around, ast.ClassDef)
    beside = {each.name: each for each, _ in statements(around.body) if isinstance(each, DEFINITIONS)}
    for mark in marks(source.text):
        place = mark.qualname.rpartition(".")[0]
        found = find(tree, f"{place}.{mark.mapped}" if place else mark.mapped)
        if (
            not found
            or (in_class and place != scope)
            or not f"{place}.".startswith(f"{scope}." if scope else "")
        ):
            continue
        mapped = found[-1]
        reached: set[str] = set()
        ahead: list[ast.AST] = [mapped]
        while ahead:
            node = ahead.pop()
            # A method is called on an object, whichever name that has.
            used = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            new = ((used if in_class else free_names(node)) & beside.keys()) - reached
            reached |= new
            ahead += [beside[each] for each in new]
        if name in reached:
            raise refused(
                "JP055",
                f"`{mark.mapped}` ({source.shown_path}:{mapped.lineno}) calls `{name}` on every device, "
                "which would then divide what is divided already",
                f"Name a function that calls it (def evaluate(…): return {name}(…)); that one is changed, "
                f"and `{name}` stays as it is",
                target.facts.span,
            )


def _check_compiled(target: Target, taken: Sequence[str]) -> None:
    """Refuse a function of which the file reads what the decorator made that goes: ``step.lower``."""
    name = target.source.qualname.rpartition(".")[2]
    for each in ast.walk(target.parsed.tree) if taken else ():
        if not isinstance(each, ast.Attribute) or each.attr not in _OF_COMPILED:
            continue
        of = each.value
        called = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
        if called == name:
            text = ast.unparse(of)
            raise refused(
                "JP042",
                f"`{text}.{each.attr}` ({target.source.shown_path}:{each.lineno}) is of what `{taken[0]}` "
                f"makes, and the new `{name}` is a function",
                f"Write `jax.jit({text}).{each.attr}` there",
                target.facts.span,
            )


def _can_be_taken_back(target: Target, text: str, definition: str) -> bool:
    """Whether an edited file leads back to the one it was made from, with `definition` as the function."""
    source, node = target.source, target.parsed.definition
    lines = list(target.parsed.lines)
    base = indent_of(lines[node.lineno - 1])
    lines[node.lineno - 1 : node.end_lineno] = shifted(definition, base)
    mark = next((each for each in marks(text) if each.qualname == source.qualname), None)
    back = taken_back(text, mark) if mark is not None else None
    return back is not None and is_same(back, "\n".join(lines), source.qualname)


def _copy_of(other: Adapted, names: Names, copies: Mapping[str, str]) -> cst.FunctionDef:
    """An adapted function under its new name, calling other adapted ones by theirs."""
    renames = _for_copies(other.renames, copies)
    copy = renamed(other.woven(names, renames), copies).with_changes(name=name_node(copies[other.name]))
    # A method's copy stands above the classes of the file, which its annotations may name.
    return without_annotations(copy) if other.function.detached else copy


def _apart(
    imports: Sequence[str], functions: Sequence[cst.FunctionDef], adapted: Sequence[Adapted], source: Source
) -> tuple[list[str], list[str]]:
    """Imports for the top of the file, and those for the functions, since they come back to the file."""
    ahead = {each.owner.partition(".")[0] for each in adapted if each.function.library}
    for each in functions:
        # These are evaluated when the file is imported.
        ahead |= used_names([_definition(each)]) - free_names(_definition(each))
    late = []
    for statement in imports:
        names = bindings(statement)
        modules = {name for what in names.values() for name in (what.module, what.dotted)}
        if not ahead & names.keys() and any(comes_back(module, source) for module in modules):
            late.append(statement)
    return [each for each in imports if each not in late], late


def _with_imports(function: cst.FunctionDef, imports: Sequence[str]) -> cst.FunctionDef:
    """A function with those of the imports ahead of its statements that it reads names of."""
    used = free_names(_definition(function)) if imports else set()
    for statement in reversed(merged(each for each in imports if bindings(each).keys() & used)):
        function = with_first(function, statement)
    return function


def _definition(function: cst.FunctionDef) -> ast.stmt:
    return ast.parse(source_of(function)).body[0]


def _for_copies(renames: Mapping[str, Substitute], copies: Mapping[str, str]) -> dict[str, Substitute]:
    """`renames` with methods called on the same object: ``self.loss`` becomes ``self.p_loss``."""
    return {
        called: Substitute(f"{called.rpartition('.')[0]}.{copies[substitute.name]}")
        if "." in substitute.name
        else substitute
        for called, substitute in renames.items()
    }


def _enclosed(other: Adapted) -> bool:
    """Whether an adapted function stands in another function."""
    return bool(other.function.parsed.enclosing) and not other.function.method_of


class _File:
    """The user's file: its names, its way of indenting, and the changes to it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.parsed = target.parsed
        self.node = target.parsed.definition
        self.raw: list[str] = LINE.findall(target.source.text)
        first = target.parsed.lines[self.node.lineno - 1]
        self.base = indent_of(first)
        self.unit = self._unit()
        enclosing = target.parsed.enclosing
        self.owner = enclosing[-1].name if enclosing and isinstance(enclosing[-1], ast.ClassDef) else ""
        classes: list[str] = []
        for each in reversed(enclosing):
            if not isinstance(each, ast.ClassDef):
                break
            classes.insert(0, each.name)
        self.at = ".".join([*classes, ""])
        self.names = HostNames(target)

    def _unit(self) -> str:
        """One step of indentation, as the function itself has it."""
        line = self.parsed.lines[self.node.body[0].lineno - 1]
        indent = indent_of(line)
        if self.node.body[0].lineno > self.node.lineno and indent.startswith(self.base):
            return indent[len(self.base) :] or "    "
        return "\t" if any(each.startswith("\t") for each in self.parsed.lines) else "    "

    # --- the edit -------------------------------------------------------------------------

    def added(self, pieces: Pieces, adapted: Sequence[Adapted], copies: Mapping[str, str]) -> tuple[str, ...]:
        """Dotted names of what the edit brings besides the mapped function."""
        helpers = sorted(assigned_names(pieces.helpers), key=lambda name: (pieces.helpers.index(name), name))
        imports_below = [
            ".".join([*(node.name for node in other.function.parsed.enclosing), copies[other.name]])
            if self.is_own(other)
            else copies[other.name]
            for other in adapted
        ]
        return (*helpers, *imports_below)

    def edition(
        self,
        pieces: Pieces,
        unit: EmitUnit,
        header: Header,
        adapted: Sequence[Adapted],
        made: Sequence[str],
        renames: Mapping[str, Substitute],
        added: Sequence[str],
        brought: Sequence[str],
    ) -> Edition:
        """The file with everything in its place; the mark above the function names what was `added`.

        `brought` are imports that copies need.
        """
        imports = merged({*self.names.missing(pieces, unit.names), *brought})
        helpers = tuple(self.our_lines(pieces.helpers))
        own = [(o, text) for o, text in zip(adapted, made, strict=True) if self.is_own(o)]
        # What stands in another file is not changed there, where others call it.
        for other, text in zip(adapted, made, strict=True):
            if not self.is_own(other):
                helpers = (*helpers, "", "", *self._copied(other, text, "").split("\n"))
        at = self.names.behind
        changes = self.names.changes(imports)
        changes.append(Change(at, at, ("", *helpers, *[""] * (2 - self._blank_after(at)))))
        changes += [self._copy(other, text) for other, text in own]
        first = min([self.node.lineno, *(each.lineno for each in self.node.decorator_list)]) - 1
        taken = self.taken()
        mark = header.mark(self.at + unit.names.mapped, self.target.source.qualname, taken, added)
        lines = [*prefixed(split(mark), self.base), *self.function(pieces, unit, self.base, True)]
        end = self.node.end_lineno or first + 1
        if self.target.source.written is not None and end < len(self.raw):
            # A lambda has its neighbours closer than a definition.
            lines += [""] * ((1 if self.base else 2) - self._blank_after(end))
        changes.append(Change(first, end, tuple(lines)))
        base = "    " if self.owner else ""
        function = "\n".join(self.function(pieces, unit, base, False))
        methods = [self._copied(other, text, base) for other, text in own if other.function.method_of]
        if self.owner:
            function = "\n\n".join([f"class {self.owner}:", *methods, function])
        copies = [self._copied(other, text, "") for other, text in own if not other.function.method_of]
        future = ["from __future__ import annotations"] if self.target.facts.future_annotations else []
        # Of a file that is loaded in part, what the function itself does not need may be missing.
        modules = dict.fromkeys([*imports, *self.names.used(pieces, unit.names)])
        definitions = [*future, *modules, "\n".join(helpers), *copies, function]
        enclosed = tuple(
            "\n".join([*decorated(other.facts), other.body.text.text]) for other, _ in own if _enclosed(other)
        )
        enclosed += tuple(
            f"{called.rpartition('.')[0]} = {substitute.made.rpartition('.')[0]}"
            for called, substitute in renames.items()
            if substitute.made and called.partition(".")[0] in self.target.facts.closure_names
        )
        return Edition(self._applied(changes), "\n\n".join(definitions) + "\n", self.owner, enclosed)

    def function(self, pieces: Pieces, unit: EmitUnit, base: str, verbatim: bool) -> list[str]:
        """Lines of the mapped function and the drop-in, indented by `base`."""
        inside, outside, rest, _ = self._decorators()
        out = [*(prefixed(rest, base))]
        header = self._header()
        for line in self.our_lines(pieces.function, nested=bool(base)):
            text, indent = line.strip(), indent_of(line)
            if text == BODY:
                body = shifted(pieces.body, base + indent)
                out += (
                    as_written(self.parsed, body, self.unit)
                    if verbatim and base + indent == self.base + self.unit
                    else body
                )
            elif text == f'"""{DOCSTRING}"""':
                assert unit.docstring is not None
                first, *more = unit.docstring.split("\n")
                out += [base + indent + first, *more]
            elif text == f"def {DROP_IN}():":
                out += [*prefixed(outside, base), base + header[0], *header[1:]]
            elif text.startswith(f"def {unit.names.mapped}(") and not indent:
                out += [*prefixed(inside, base), base + line]
            else:
                out.append(base + line if line else "")
        return out

    def our_lines(self, text: str, nested: bool = False) -> list[str]:
        """Formatted lines of ours with the file's own indentation, closer together inside a block."""
        if nested:
            text = text.replace("\n\n\n", "\n\n")
        out = []
        for line in text.rstrip("\n").split("\n"):
            depth, rest = divmod(len(line) - len(line.lstrip(" ")), 4)
            out.append(self.unit * depth + " " * rest + line.lstrip(" "))
        return out

    def _header(self) -> list[str]:
        """The lines of the original's ``def``, up to its colon and a comment behind that, without indent."""
        lines = list(self.parsed.lines[self.node.lineno - 1 : self.node.end_lineno])
        depth = 0
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            if token.type != tokenize.OP:
                continue
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == ":" and not depth:
                row, column = token.end
                rest = lines[row - 1][column:]
                behind = rest.rstrip() if rest.lstrip().startswith("#") else ""
                found = [*lines[: row - 1], lines[row - 1][:column] + behind]
                return [found[0][len(self.base) :], *found[1:]]
        raise AssertionError("a definition without a colon")

    def taken(self) -> list[str]:
        """Decorators that go."""
        return self._decorators()[3]

    def _decorators(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Decorators of the mapped function and of the drop-in, comments between them, decorators that go."""
        taken: list[str] = []
        inside: list[str] = []
        outside: list[str] = []
        rest: list[str] = []
        nodes = self.node.decorator_list
        number = min((each.lineno for each in nodes), default=self.node.lineno)
        rows = list(zip(nodes, self.target.facts.decorators, strict=True))
        while number < self.node.lineno:
            row = next(((e, d) for e, d in rows if e.lineno <= number <= (e.end_lineno or 0)), None)
            if row is None:
                line = self.parsed.lines[number - 1].strip()
                rest += [line] if line.startswith("#") else []
                number += 1
                continue
            expression, decorator = row
            if decorator.name not in COMPILERS | MAPPERS:
                # What times or logs does so where it did: around what is compiled, or while it is traced.
                above = decorator.passes_on and not taken
                kept = outside if above or decorator.name.startswith(_OUTSIDE) else inside
                kept.append(f"@{ast.unparse(expression)}")
            else:
                taken.append(f"@{ast.unparse(expression)}")
            number = (expression.end_lineno or number) + 1
        return inside, outside, rest, taken

    def _copy(self, other: Adapted, text: str) -> Change:
        """The adapted copy of a function, behind the original."""
        node = other.function.parsed.definition
        first = other.function.parsed.lines[node.lineno - 1]
        base = indent_of(first)
        end = node.end_lineno or node.lineno
        return Change(end, end, ("", *([] if base else [""]), *self._copied(other, text, base).split("\n")))

    def is_own(self, other: Adapted) -> bool:
        """Whether an adapted function stands in the file that is changed."""
        return other.source.path == self.target.source.path and not other.function.detached

    def _copied(self, other: Adapted, text: str, base: str) -> str:
        name = other.facts.name
        first = other.function.parsed.lines[other.function.parsed.definition.lineno - 1]
        name += "" if self.is_own(other) else f"` of `{other.source.shown_path}"
        note = f"# `{name}` on one device's share, for `{self.target.facts.name}`."
        lines = shifted(text, base)
        of_object = other.facts.receiver and not other.facts.is_class_method
        kind = "" if of_object else "@classmethod" if other.facts.receiver else "@staticmethod"
        above = [kind] if kind and other.function.method_of else []
        above = [f"{base}{line}" for each in (*above, *other.decorators) for line in each.split("\n")]
        if self.is_own(other) and base == indent_of(first):
            lines = as_written(other.function.parsed, lines, self.unit)
        return "\n".join([base + note, *above, *lines])

    def _blank_after(self, line: int) -> int:
        count = 0
        while line + count < len(self.parsed.lines) and not self.parsed.lines[line + count].strip():
            count += 1
        return min(count, 2)

    def _applied(self, changes: Sequence[Change]) -> str:
        """The text with the changes made, the last one first."""
        newline = self.target.source.newline
        raw = list(self.raw)
        last = raw[-1] if raw else ""
        ends = last.endswith(("\n", "\r"))
        if raw and not ends:
            raw[-1] += newline
        for _, change in sorted(enumerate(changes), key=lambda each: (each[1].first, each[0]), reverse=True):
            raw[change.first : change.end] = [line + newline for line in change.lines]
        text = "".join(raw)
        return text if ends or not raw else text.removesuffix(newline)
