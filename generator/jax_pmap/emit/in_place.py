"""From a plan to the user's own file with the function changed where it stands, and nothing else touched."""

from __future__ import annotations

import ast
import difflib
import io
import re
import shlex
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax_pmap
from jax_pmap.emit.adapted import Adapted, adapted_beside
from jax_pmap.emit.header import IN_PLACE, Header
from jax_pmap.emit.names import ALIASES, Names, bindings
from jax_pmap.emit.places import Body
from jax_pmap.emit.remainder import remainder_of
from jax_pmap.emit.render import BODY, DOCSTRING, DROP_IN, EmitUnit, Pieces, render_pieces, tidy
from jax_pmap.emit.unit import check_backend, docstring_of
from jax_pmap.emit.weave import name_node, renamed, weave
from jax_pmap.model import Backend, Evidence, Plan, Request, Source, refused
from jax_pmap.notebook import is_notebook
from jax_pmap.reading.decorators import COMPILERS, MAPPERS
from jax_pmap.reading.parse import ParsedSource
from jax_pmap.reading.target import Target
from jax_pmap.reading.text import function_text

if TYPE_CHECKING:
    import libcst as cst

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
#: Decorators that say how the function is looked up, or check its arguments: they stay on the drop-in.
_OUTSIDE = ("staticmethod", "classmethod", "typing.", "typing_extensions.", "beartype.", "jaxtyping.")
#: Nodes that bind their `name`.
_NAMED = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
)
#: Columns black gives a line.
WIDTH = 88


@dataclass(frozen=True, slots=True)
class Edition:
    """The user's file with the function changed in it."""

    #: The whole text, line endings as in the file.
    text: str
    #: What is new in it, to be run where the function was defined; a method stands in its class.
    definitions: str
    #: The class of a method, or ``""``.
    owner: str
    #: Originals, as written, of adapted functions that stand in another function.
    enclosed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """Lines of the file, counted from 0, and what comes in their place."""

    first: int
    end: int
    lines: tuple[str, ...]


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
    facts, source, parsed, backend = target.facts, target.source, target.parsed, request.backend
    if is_notebook(source.path):
        raise refused(
            "JP018",
            f"`{source.shown_path}` is a notebook, and --in-place edits Python files",
            "Write a file of its own: -o FILE",
            facts.span,
        )
    check_backend(target, backend)
    syncs = () if backend is Backend.JIT else plan.syncs
    adapted, renames = adapted_beside(target, syncs)
    file = _File(target)
    names = file.names()
    copies = {other.name: file.own(f"p_{other.name}") for other in adapted}
    body = Body(function_text(parsed))
    result = file.own("result") if "result" in facts.taken_names else "result"
    elsewhere = {sync for other in adapted for sync in other.syncs}
    try:
        here = [sync for sync in syncs if sync not in elsewhere]
        woven = weave(body, here, plan.guards, axis=names.axis, result=result, jax=names.jax, renames=renames)
        made = [other.body.definition(_copy_of(other, names, copies)) for other in adapted]
    except LookupError as error:
        raise refused(
            "JP017", f"the plan does not fit the source: {error}", "Make the plan again", facts.span
        ) from None
    unit = EmitUnit(
        name=facts.name,
        parameters=facts.parameters,
        returns=parsed.segment(parsed.definition.returns) if parsed.definition.returns else None,
        docstring=docstring_of(target),
        body=body.body_source(renamed(woven, copies) if copies else woven),
        taken_names=frozenset(file.identifiers),
        helpers=request.helpers,
        remainder=remainder_of(plan, request.remainder, backend, facts.span),
        chosen_names=names,
    )
    header = Header(
        jax_pmap.__version__,
        request.command or f"jax-pmap gen {shlex.quote(request.target)} --in-place",
        f"{source.shown_path}::{source.qualname}",
        body.text.digest,
        evidence,
        remainder=unit.remainder.said() if unit.remainder else "",
        **({"unproved": "the proof is still to come"} if evidence is None and request.proof else {}),
    )
    pieces = render_pieces(unit, plan, backend, header, file.at, WIDTH - len(file.base.expandtabs(4)))
    return file.edition(pieces, unit, header, adapted, made)


def _copy_of(other: Adapted, names: Names, copies: Mapping[str, str]) -> cst.FunctionDef:
    """An adapted function under its new name, calling other adapted ones by theirs."""
    woven = weave(other.body, other.syncs, axis=names.axis, jax=names.jax, renames=other.renames)
    return renamed(woven.with_changes(name=name_node(other.name)), copies)


class _File:
    """The user's file: its names, its way of indenting, and the changes to it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.parsed = target.parsed
        self.node = target.parsed.definition
        self.raw: list[str] = _LINE.findall(target.source.text)
        first = target.parsed.lines[self.node.lineno - 1]
        self.base = first[: len(first) - len(first.lstrip())]
        self.unit = self._unit()
        enclosing = target.parsed.enclosing
        self.owner = enclosing[-1].name if enclosing and isinstance(enclosing[-1], ast.ClassDef) else ""
        classes: list[str] = []
        for each in reversed(enclosing):
            if not isinstance(each, ast.ClassDef):
                break
            classes.insert(0, each.name)
        self.at = ".".join([*classes, ""])
        self.tops = target.parsed.tree.body
        #: The statements among which imports stand.
        self.leading = self._leading()
        self.identifiers = _identifiers(target.parsed.tree)

    def _unit(self) -> str:
        """One step of indentation, as the function itself has it."""
        line = self.parsed.lines[self.node.body[0].lineno - 1]
        indent = line[: len(line) - len(line.lstrip())]
        if self.node.body[0].lineno > self.node.lineno and indent.startswith(self.base):
            return indent[len(self.base) :] or "    "
        indents = [re.match(r"[ \t]*", each)[0] for each in self.parsed.lines]  # type: ignore[index]
        return "\t" if any(each.startswith("\t") for each in indents) else "    "

    # --- names ----------------------------------------------------------------------------

    def own(self, wanted: str) -> str:
        """A name that nothing in the file has."""
        while wanted in self.identifiers:
            wanted += "_"
        self.identifiers.add(wanted)
        return wanted

    def names(self) -> Names:
        """Names of ours that are not in the file; modules by the names it gives them."""
        imported = {
            name: what
            for statement in self.leading
            if isinstance(statement, ast.Import | ast.ImportFrom)
            for name, what in bindings(ast.unparse(statement)).items()
        }
        otherwise = _bound_otherwise(self.parsed.tree)
        known = {what: name for name, what in imported.items() if otherwise.get(name, {what}) == {what}}
        aliases = {}
        for alias, what in ALIASES.items():
            name = known.get(what, alias)
            while otherwise.get(name, {what}) != {what}:
                name += "_"
            aliases[alias] = name
        self.imported = set(known.items())
        name = self.target.facts.name
        own = ("shard", "unshard", "place", "devices_in_use", "mesh", "compiled", "changed", "partition")
        return Names(
            axis=self.own("AXIS"),
            mapped=self.own(f"p_{name}"),
            **{each: self.own(each) for each in (*own, "combine", "fit", "cut")},
            **aliases,
        )

    # --- imports --------------------------------------------------------------------------

    def _leading(self) -> list[ast.stmt]:
        """The top of the file down to the last import before its first definition, or the target."""
        leading: list[ast.stmt] = []
        for index, statement in enumerate(self.tops):
            if statement.lineno <= self.node.lineno <= (statement.end_lineno or 0):
                break
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                break
            holds = isinstance(statement, ast.Import | ast.ImportFrom) or (
                isinstance(statement, ast.Try | ast.If)
                and any(isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(statement))
                and not any(isinstance(each, ast.FunctionDef) for each in ast.walk(statement))
            )
            docstring = (
                not index and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            )
            if holds or docstring:
                leading = self.tops[: index + 1]
        return leading

    def import_changes(self, statements: Iterable[str]) -> list[_Change]:
        """New imports, each where isort would put it among those that are there."""
        rows: dict[int, list[str]] = {}
        plain = [s for s in self.leading if isinstance(s, ast.Import | ast.ImportFrom)]
        plain = [s for s in plain if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")]
        start = self.after(self.leading[0]) if self.leading else self._top()
        futures = [s for s in self.leading if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        if futures:
            start = self.after(futures[-1])
        alone: list[str] = []
        for statement in statements:
            section, key = _order(ast.parse(statement).body[0])
            same = [s for s in plain if _order(s)[0] == section]
            later = [s for s in same if _order(s)[1] > key]
            if later and self.starts_line(later[0]):
                rows.setdefault(later[0].lineno - 1, []).append(statement)
            elif same:
                rows.setdefault(self.after(same[-1]), []).append(statement)
            elif plain and section < _order(plain[0])[0]:
                rows.setdefault(plain[0].lineno - 1, []).append(statement + "\n")
            elif plain:
                rows.setdefault(self.after(plain[-1]), []).append("\n" + statement)
            else:
                alone.append(statement)
        changes = [_Change(at, at, _split("\n".join(lines))) for at, lines in rows.items()]
        if alone:
            gap = "\n" if start and self.leading else ""
            changes.append(_Change(start, start, _split(gap + "\n".join(alone))))
        return changes

    def after(self, statement: ast.stmt) -> int:
        """The line behind a statement, counted from 0."""
        return statement.end_lineno or statement.lineno

    def starts_line(self, statement: ast.stmt) -> bool:
        """Whether nothing stands before a statement in its line."""
        return not self.parsed.lines[statement.lineno - 1][: statement.col_offset].strip()

    def _top(self) -> int:
        """The line behind the comments that a file begins with (``#!``, the encoding, a licence)."""
        number = 0
        while number < len(self.parsed.lines) and self.parsed.lines[number].startswith("#"):
            number += 1
        return number

    # --- the edit -------------------------------------------------------------------------

    def edition(
        self, pieces: Pieces, unit: EmitUnit, header: Header, adapted: Sequence[Adapted], made: Sequence[str]
    ) -> Edition:
        """The file with everything in its place."""
        imports = _merged({*self._missing(pieces, unit.names), *self._brought(adapted)})
        helpers = tuple(self.our_lines(pieces.helpers))
        own = [(o, text) for o, text in zip(adapted, made, strict=True) if self.is_own(o)]
        # What stands in another file is not changed there, where others call it.
        for other, text in zip(adapted, made, strict=True):
            if not self.is_own(other):
                helpers = (*helpers, "", "", *self._copied(other, text, "").split("\n"))
        at = max([self._top(), *(self.after(each) for each in self.leading)])
        changes = self.import_changes(imports)
        changes.append(_Change(at, at, ("", *helpers, *[""] * (2 - self._blank_after(at)))))
        changes += [self._copy(other, text) for other, text in own]
        first = min([self.node.lineno, *(each.lineno for each in self.node.decorator_list)]) - 1
        mark = header.mark(self.at + unit.names.mapped, self.target.source.qualname)
        lines = [*_prefixed(_split(mark), self.base), *self.function(pieces, unit, self.base, True)]
        changes.append(_Change(first, self.node.end_lineno or first + 1, tuple(lines)))
        base = "    " if self.owner else ""
        function = "\n".join(self.function(pieces, unit, base, False))
        if self.owner:
            function = f"class {self.owner}:\n{function}"
        copies = [self._copied(other, text, "") for other, text in own]
        future = ["from __future__ import annotations"] if self.target.facts.future_annotations else []
        definitions = [*future, *imports, "\n".join(helpers), *copies, function]
        enclosed = tuple(other.body.text.text for other, _ in own if other.beside.parsed.enclosing)
        return Edition(self._applied(changes), "\n\n".join(definitions) + "\n", self.owner, enclosed)

    def function(self, pieces: Pieces, unit: EmitUnit, base: str, verbatim: bool) -> list[str]:
        """Lines of the mapped function and the drop-in, indented by `base`."""
        inside, outside, rest = self._decorators()
        out = [*(_prefixed(rest, base))]
        header = self._header()
        for line in self.our_lines(pieces.function, nested=bool(base)):
            text, indent = line.strip(), line[: len(line) - len(line.lstrip())]
            if text == BODY:
                body = _shifted(pieces.body, base + indent)
                out += (
                    _as_written(self.parsed, body, self.unit)
                    if verbatim and base + indent == self.base + self.unit
                    else body
                )
            elif text == f'"""{DOCSTRING}"""':
                assert unit.docstring is not None
                first, *more = unit.docstring.split("\n")
                out += [base + indent + first, *more]
            elif text == f"def {DROP_IN}():":
                out += [*_prefixed(outside, base), base + header[0], *header[1:]]
            elif text.startswith(f"def {unit.names.mapped}(") and not indent:
                out += [*_prefixed(inside, base), base + line]
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

    def _decorators(self) -> tuple[list[str], list[str], list[str]]:
        """Decorators that go to the mapped function and to the drop-in, and the comments between them."""
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
                kept = outside if decorator.name.startswith(_OUTSIDE) else inside
                kept.append(f"@{ast.unparse(expression)}")
            number = (expression.end_lineno or number) + 1
        return inside, outside, rest

    def _copy(self, other: Adapted, text: str) -> _Change:
        """The adapted copy of a function, behind the original."""
        node = other.beside.parsed.definition
        first = other.beside.parsed.lines[node.lineno - 1]
        base = first[: len(first) - len(first.lstrip())]
        end = node.end_lineno or node.lineno
        return _Change(end, end, ("", *([] if base else [""]), *self._copied(other, text, base).split("\n")))

    def is_own(self, other: Adapted) -> bool:
        """Whether an adapted function stands in the file that is changed."""
        return other.source.path == self.target.source.path

    def _brought(self, adapted: Sequence[Adapted]) -> list[str]:
        """Import statements that functions of other files need in this one.

        Raises:
            RefusalError: JP018 where a name they need is another thing here.
        """
        out = []
        here = _bound_otherwise(self.parsed.tree)
        carried = {other.name for other in adapted}
        for other in adapted:
            if self.is_own(other):
                continue
            module = other.source.module
            needed = {row.name: row.statement for row in other.facts.imported if not row.typing_only}
            needed |= {name: f"from {module} import {name}" for name in other.facts.module_names}
            for name, statement in needed.items():
                meant = bindings(statement)[name]
                if here.get(name, {meant}) != {meant}:
                    raise refused(
                        "JP018",
                        f"`--in-place` puts a copy of `{other.facts.name}` of `{other.source.shown_path}` "
                        f"into `{self.target.source.shown_path}`, where `{name}` means something else",
                        "Rename one of the two; or write a file of its own: -o FILE",
                        self.target.facts.span,
                    )
                if name not in carried and (meant, name) not in self.imported:
                    out.append(statement)
        return out

    def _copied(self, other: Adapted, text: str, base: str) -> str:
        name = other.facts.name
        first = other.beside.parsed.lines[other.beside.parsed.definition.lineno - 1]
        name += "" if self.is_own(other) else f"` of `{other.source.shown_path}"
        note = f"# `{name}` on one device's share, for `{self.target.facts.name}`."
        lines = _shifted(text, base)
        if self.is_own(other) and base == first[: len(first) - len(first.lstrip())]:
            lines = _as_written(other.beside.parsed, lines, self.unit)
        return "\n".join([base + note, *lines])

    def _blank_after(self, line: int) -> int:
        count = 0
        while line + count < len(self.parsed.lines) and not self.parsed.lines[line + count].strip():
            count += 1
        return min(count, 2)

    def _missing(self, pieces: Pieces, names: Names) -> list[str]:
        """Import statements of what the new code uses and the file does not import yet."""
        out: set[str] = set()
        for alias in pieces.needed:
            what, name = ALIASES[alias], getattr(names, alias)
            if (what, name) not in self.imported:
                out.add(_import(what, name))
        own = {self.target.source.module, f"{self.target.source.module}_", "__main__"}
        for module, name in pieces.types:
            if module not in own and name not in _bound_otherwise(self.parsed.tree):
                out.add(_import((module, name), name))
        return sorted(out)

    def _applied(self, changes: Sequence[_Change]) -> str:
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


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n"))


def _prefixed(lines: Iterable[str], base: str) -> list[str]:
    return [base + line if line else "" for line in lines]


def _shifted(text: str, base: str) -> list[str]:
    """Lines moved to the right, but not those inside strings."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        ):
            inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return [
        line if number in inside or not line.strip() else base + line
        for number, line in enumerate(text.rstrip("\n").split("\n"), start=1)
    ]


def _as_written(parsed: ParsedSource, woven: list[str], unit: str) -> list[str]:
    """The lines of a woven definition; those that were there are character for character the user's."""
    old = parsed.lines[parsed.definition.lineno - 1 : parsed.definition.end_lineno]
    matcher = difflib.SequenceMatcher(None, [each.strip() for each in old], [e.strip() for e in woven], False)
    out: list[str] = []
    for kind, first, end, start, stop in matcher.get_opcodes():
        out += old[first:end] if kind == "equal" else _fitted(woven[start:stop], unit)
    return out


def _fitted(lines: list[str], unit: str) -> list[str]:
    """New lines of a body, broken as black does where one is too long."""
    out: list[str] = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        columns = len(indent.expandtabs(4))
        made = [line]
        if len(line.expandtabs(4)) > WIDTH:
            try:
                made = tidy(line.strip(), WIDTH - columns).rstrip("\n").split("\n")
            except Exception:  # a part of a statement stays as it is
                made = [line]
            else:
                made = [
                    indent + unit * ((len(e) - len(e.lstrip())) // 4) + e.lstrip() if e else "" for e in made
                ]
        out += made
    return out


def _identifiers(tree: ast.AST) -> set[str]:
    """Every name in a file, whatever it stands for."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in ("id", "name", "arg", "asname", "attr", "rest"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found |= set(value.split("."))
        if isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
    return found


def _bound_otherwise(tree: ast.AST) -> dict[str, set[tuple[str, str | None]]]:
    """What every bound name of a file stands for, in any scope; ``("", name)`` is no import."""
    found: dict[str, set[tuple[str, str | None]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any(item.name == "*" for item in node.names):
                continue
            for bound, what in bindings(ast.unparse(node)).items():
                found.setdefault(bound, set()).add(what)
            continue
        name: str | None = None
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, _NAMED):
            name = node.name
        if name:
            found.setdefault(name, set()).add(("", name))
    return found


def _import(what: tuple[str, str | None], name: str) -> str:
    module, attribute = what
    if attribute is None:
        return f"import {module}" if module == name else f"import {module} as {name}"
    return f"from {module} import {attribute}" + ("" if attribute == name else f" as {name}")


def _merged(statements: Iterable[str]) -> list[str]:
    """Imports in isort's order, those of plain members of one module in one statement."""
    members: dict[str, list[str]] = {}
    out = []
    for statement in statements:
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.ImportFrom) and node.names[0].asname is None:
            members.setdefault(node.module or "", []).append(node.names[0].name)
        else:
            out.append(statement)
    out += [f"from {module} import {', '.join(sorted(names))}" for module, names in members.items()]
    # isort puts a renamed member behind the others of its module.
    return sorted(out, key=lambda each: (_order(ast.parse(each).body[0]), " as " in each))


def _order(statement: ast.stmt) -> tuple[int, tuple[bool, str]]:
    """Section and place of an import, as isort orders them."""
    if isinstance(statement, ast.ImportFrom):
        module, plain = "." * statement.level + (statement.module or ""), False
    else:
        assert isinstance(statement, ast.Import)
        module, plain = statement.names[0].name, True
    root = module.partition(".")[0]
    section = 0 if root == "__future__" else 1 if root in sys.stdlib_module_names else 2 if root else 3
    return section, (not plain, module.lower())
