"""The function behind a name that is assigned or imported: compiled, partly applied, or made by another one.

``update = jax.jit(_update)``, ``update = partial(_update, cfg)``, ``self.update = jax.jit(self._update)``,
``train_step = make_train_step(model)``, ``update = jax.jit(agent.update)``, ``predict = lambda p, x: ...``:
what surely is one function of the project is found by reading; of everything else nothing is assumed.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax_pmap.locating.project import File, Project
from jax_pmap.model import Binding, RefusalError, Source, Span
from jax_pmap.syntax.definitions import FUNCTION, Definition, binding_of, find, statements
from jax_pmap.syntax.imports import Import, bound_name
from jax_pmap.syntax.library import COMPILERS, MAPPERS, SHARD_MAPS
from jax_pmap.worker.scopes import own_nodes, parameters

#: Names that are followed, from one to the next.
HOPS = 12


@dataclass(frozen=True, slots=True)
class Found:
    """A function, and what was passed on the way to it."""

    file: File
    qualname: str
    #: What compiles it, innermost first: see `Binding.calls`.
    calls: tuple[tuple[str, str, int], ...] = ()
    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()
    #: 1 where it is a method of an object, and bound to that.
    receiver: int = 0
    #: The lambda that it is.
    written: ast.Lambda | None = None


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where an expression stands: a file, and the definitions around the expression."""

    file: File
    chain: tuple[Definition, ...] = ()

    def named(self, *parts: str) -> str:
        return ".".join([*(each.name for each in self.chain), *parts])


class Bindings:
    """Follows names of the project to the functions they stand for.

    With `mapped`, also to those that are mapped over devices on the way.
    """

    def __init__(self, project: Project, *, mapped: bool = False) -> None:
        self.project = project
        self.passed = COMPILERS | MAPPERS | SHARD_MAPS if mapped else COMPILERS
        #: Where the last name may stand for one of several functions: those.
        self.several: list[tuple[Path, str]] = []

    def behind(self, file: File, qualname: str) -> Source | None:
        """The source of the one function that the assignment or the import of `qualname` names, or None."""
        head, _, name = qualname.rpartition(".")
        chain = find(file.tree, head) if head else ()
        self.several.clear()
        if chain is None:
            return None
        scope = _Scope(file, chain)
        rows = list(self._assigned(scope, name))
        found = [self._value(row, where, value, HOPS) for row, where, value in rows]
        if not rows:
            return None if head else self._imported(scope, name)
        statement, _, _ = rows[-1]
        last = self._one(found)
        if last is None:
            return None
        return self._source(scope, qualname, statement, last)

    def _imported(self, scope: _Scope, name: str) -> Source | None:
        """The source of the function of the project that a file surely imports as `name`."""
        body = scope.file.tree.body
        bound = binding_of(body, name)
        # One of several branches may import another.
        certain = any(each is bound and not conditional for each, conditional in statements(body))
        if not isinstance(bound, ast.ImportFrom) or not certain:
            return None
        followed = self.follow(scope.file.path, bound, name)
        return self._source(scope, name, bound, Found(*followed)) if followed else None

    def statements_for(self, file: File, qualname: str) -> list[ast.stmt]:
        """The assignments of a name, or of an attribute of a class's objects."""
        head, _, name = qualname.rpartition(".")
        chain = find(file.tree, head) if head else ()
        return [row[0] for row in self._assigned(_Scope(file, chain), name)] if chain is not None else []

    # --- expressions ----------------------------------------------------------------------

    def _value(self, statement: ast.stmt, scope: _Scope, value: ast.expr, hops: int) -> Found | None:
        """What a value stands for; a lambda only where it is the whole of an assignment."""
        found = self._expression(scope, value, hops)
        if found is not None and found.written is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            target = targets[0] if len(targets) == 1 else getattr(statement, "target", None)
            inside = any(each is found.written for each in ast.walk(statement))
            if not inside or not isinstance(target, ast.Name) or found.positional or found.keywords:
                return None
            if not scope.file.names.is_static(statement):
                return None  # A definition needs lines of its own.
        return found

    def _expression(self, scope: _Scope, value: ast.expr, hops: int, item: int | None = None) -> Found | None:
        """What an expression stands for, or the element `item` of the tuple that it is."""
        if not hops:
            return None
        if isinstance(value, ast.Lambda) and item is None:
            return Found(scope.file, scope.named(), written=value)
        if isinstance(value, ast.Name | ast.Attribute):
            return self._named(scope, value, hops - 1) if item is None else None
        if isinstance(value, ast.Tuple) and item is not None and item < len(value.elts):
            return self._expression(scope, value.elts[item], hops - 1)
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Call) and item is None:
            index = getattr(value.slice, "value", None)
            return self._made(scope, value.value, hops, index) if type(index) is int else None
        if not isinstance(value, ast.Call):
            return None
        made = scope.file.names.applied(value)
        name = made.qualname if made is not None else ""
        if name in self.passed and item is None and value.args:
            found = self._expression(scope, value.args[0], hops - 1)
            if found is None:
                return None
            call = name, ast.unparse(value), found.receiver + len(found.positional)
            return dataclasses.replace(found, calls=(*found.calls, call))
        if name == "functools.partial" and value.args:
            return self._partial(scope, value, hops) if item is None else None
        return self._made(scope, value, hops, item)

    def _partial(self, scope: _Scope, value: ast.Call, hops: int) -> Found | None:
        found = self._expression(scope, value.args[0], hops - 1)
        starred = any(isinstance(each, ast.Starred) for each in value.args)
        if found is None or starred or any(each.arg is None for each in value.keywords):
            return None
        keywords = {**dict(found.keywords), **{str(k.arg): ast.unparse(k.value) for k in value.keywords}}
        positional = (*found.positional, *(ast.unparse(each) for each in value.args[1:]))
        return dataclasses.replace(found, positional=positional, keywords=tuple(keywords.items()))

    def _made(self, scope: _Scope, value: ast.Call, hops: int, item: int | None) -> Found | None:
        """What a function of the project returns: one of the functions defined in it."""
        factory = self._named(scope, value.func, hops - 1)
        if factory is None or factory.calls or factory.positional or factory.keywords or factory.written:
            return None
        chain = find(factory.file.tree, factory.qualname)
        if chain is None or not isinstance(chain[-1], ast.FunctionDef) or chain[-1].decorator_list:
            return None
        inside = _Scope(factory.file, chain)
        returned = [node.value for node in own_nodes(chain[-1].body) if isinstance(node, ast.Return)]
        found = [self._expression(inside, each, hops - 1, item) for each in returned if each is not None]
        one = self._one(found) if len(found) == len(returned) else None
        return one if one is not None and one.written is None else None

    def _one(self, found: Sequence[Found | None]) -> Found | None:
        """The one function that all of `found` are, by the last way to it; several are noted."""
        places = list(dict.fromkeys((each.file.path, each.qualname) for each in found if each is not None))
        if len(places) == 1 and None not in found:
            return found[-1]
        self.several += places
        return None

    # --- names ----------------------------------------------------------------------------

    def _named(self, scope: _Scope, value: ast.expr, hops: int) -> Found | None:
        """What a name, or an attribute of one, stands for."""
        if not hops:
            return None
        dotted = ast.unparse(value)
        if not all(part.isidentifier() for part in dotted.split(".")):
            return None
        head, _, rest = dotted.partition(".")
        if owner := _object_of(scope, head):
            return self._member(_Scope(scope.file, owner), rest, hops) if rest and "." not in rest else None
        for depth in range(len(scope.chain), -1, -1):
            outer = _Scope(scope.file, scope.chain[:depth])
            if outer.chain and isinstance(outer.chain[-1], ast.ClassDef) and depth != len(scope.chain):
                continue  # A class body is not seen from its methods.
            qualname = outer.named(dotted)
            chain = find(scope.file.tree, qualname)
            if chain is not None and rest and isinstance(chain[-2], FUNCTION):
                return None  # An attribute of a function is not what is defined in it.
            if chain is not None:
                return Found(scope.file, qualname) if isinstance(chain[-1], FUNCTION) else None
            around = outer.chain[-1] if outer.chain else None
            if isinstance(around, FUNCTION) and head in {each.arg for each in parameters(around.args)}:
                return None
            if (bound := self._bound(outer, head, rest, hops)) is not NOTHING:
                return bound
        return None

    def _bound(self, scope: _Scope, head: str, rest: str, hops: int) -> Found | None:
        """What an import or an assignment of `head` in one scope leads to; `NOTHING` where there is none."""
        body = scope.chain[-1].body if scope.chain else scope.file.tree.body
        statement = binding_of(body, head)
        if statement is None:
            return NOTHING
        if isinstance(statement, ast.Import | ast.ImportFrom):
            followed = self.follow(scope.file.path, statement, head, rest)
            return Found(followed[0], followed[1]) if followed else None
        rows = list(self._assigned(scope, head))
        if len(rows) != 1:
            return None
        _, where, value = rows[0]
        if not rest:
            return self._expression(where, value, hops - 1)
        # An attribute of an object that the file makes: `agent = Agent(...)`, `agent.update`.
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and "." not in rest:
            made = find(scope.file.tree, value.func.id)
            if made and isinstance(made[-1], ast.ClassDef):
                return self._member(_Scope(scope.file, made), rest, hops - 1)
        return None

    def _member(self, owner: _Scope, name: str, hops: int) -> Found | None:
        """A method of a class, of a base of it in the same file, or what a method of it assigns."""
        if not hops:
            return None
        found = find(owner.file.tree, owner.named(name))
        if found is not None:
            function = found[-1]
            if not isinstance(function, FUNCTION):
                return None
            static = any(getattr(each, "id", "") == "staticmethod" for each in function.decorator_list)
            return Found(owner.file, owner.named(name), receiver=0 if static else 1)
        rows = list(self._assigned(owner, name))
        if rows:
            return self._expression(rows[0][1], rows[0][2], hops - 1) if len(rows) == 1 else None
        definition = owner.chain[-1]
        for base in definition.bases if isinstance(definition, ast.ClassDef) else ():
            chain = find(owner.file.tree, base.id) if isinstance(base, ast.Name) else None
            if chain and isinstance(chain[-1], ast.ClassDef):
                found_there = self._member(_Scope(owner.file, chain), name, hops - 1)
                if found_there is not None:
                    return found_there
        return None

    def _assigned(self, scope: _Scope, name: str) -> Iterator[tuple[ast.stmt, _Scope, ast.expr]]:
        """(statement, scope of its value, value) of every assignment of a name, or attribute, that may hold.

        A value of another kind is an `ast.Constant`, which stands for no function.
        """
        owner = scope.chain[-1] if scope.chain else None
        if isinstance(owner, ast.ClassDef):
            for method in (each for each, _ in statements(owner.body) if isinstance(each, FUNCTION)):
                inside = _Scope(scope.file, (*scope.chain, method))
                first = next((each.arg for each in parameters(method.args)), None)
                for statement, _ in statements(method.body):
                    yield from _values(statement, inside, f"{first}.{name}")
        rows: list[tuple[ast.stmt, _Scope, ast.expr]] = []
        for statement, conditional in statements(owner.body if owner else scope.file.tree.body):
            found = list(_values(statement, scope, name))
            if found and not conditional:
                rows.clear()
            rows += found
        yield from rows

    # --- other files ----------------------------------------------------------------------

    def follow(
        self, path: Path, node: Import, name: str, rest: str = "", hops: int = 8
    ) -> tuple[File, str] | None:
        """The function that an imported name, with `rest` behind it, leads to."""
        alias = next(a for a in node.names if bound_name(a, node) == name)
        if isinstance(node, ast.Import):
            dotted = alias.name if alias.asname else f"{name}.{rest.rpartition('.')[0]}".rstrip(".")
            tries = [(dotted, rest.rpartition(".")[2] if not alias.asname else rest)]
        else:
            inner = f"{alias.name}.{rest}".rstrip(".")
            module = node.module or ""
            tries = [(module, inner), (f"{module}.{alias.name}".lstrip("."), rest)]
        for dotted, qualname in tries:
            found = self.project.imported_file(path, dotted, getattr(node, "level", 0))
            if found is None or not qualname:
                continue
            try:
                file = self.project.read(found)
            except RefusalError:
                continue
            chain = find(file.tree, qualname)
            if chain and isinstance(chain[-1], FUNCTION):
                return file, qualname
            head, _, tail = qualname.partition(".")
            again = binding_of(file.tree.body, head)
            if hops and isinstance(again, ast.Import | ast.ImportFrom):
                return self.follow(found, again, head, tail, hops - 1)
        return None

    # --- the answer -----------------------------------------------------------------------

    def _source(self, scope: _Scope, qualname: str, statement: ast.stmt, found: Found) -> Source:
        value = getattr(statement, "value", None)
        away = found.file.path != scope.file.path
        # What a factory of another file makes needs what it was made with.
        enclosed = self._is_nested(found) and not found.positional and not found.keywords
        binding = Binding(
            qualname=qualname,
            text=ast.unparse(value) if isinstance(value, ast.expr) else _imported_name(statement, qualname),
            span=Span(self.project.shown(scope.file.path), statement.lineno, statement.col_offset),
            calls=found.calls,
            positional=found.positional,
            keywords=found.keywords,
            live=not scope.chain and (enclosed or not away),
            is_lambda=found.written is not None,
            of_object=bool(found.receiver),
            file=self.project.source(scope.file, qualname) if away and enclosed and not scope.chain else None,
        )
        name, rewritten = found.qualname, None
        if found.written is not None:
            name = qualname.rpartition(".")[2]
            name, rewritten = qualname, as_def(found.file, statement, found.written, name)
        source = dataclasses.replace(self.project.source(found.file, name), binding=binding)
        if rewritten is None:
            return source
        return dataclasses.replace(source, text=rewritten, written=source.text)

    def _is_nested(self, found: Found) -> bool:
        """Whether a function stands in another one."""
        chain = find(found.file.tree, found.qualname)
        return isinstance(chain[-2], FUNCTION) if chain and len(chain) > 1 else False


def _imported_name(statement: ast.stmt, name: str) -> str:
    """``package.module.f`` of what an import binds as `name`."""
    assert isinstance(statement, ast.ImportFrom)
    alias = next(each for each in statement.names if bound_name(each, statement) == name)
    return f"{'.' * statement.level}{statement.module or ''}.{alias.name}"


#: A name that a scope does not bind.
NOTHING = Found(File(Path(), None, None), "")  # type: ignore[arg-type]


def _object_of(scope: _Scope, name: str) -> tuple[Definition, ...] | None:
    """The class whose object `name` stands for: the first parameter of a method around."""
    for depth in range(len(scope.chain) - 1, 0, -1):
        outer, inner = scope.chain[depth - 1], scope.chain[depth]
        if isinstance(inner, ast.ClassDef):
            continue
        names = [each.arg for each in parameters(inner.args)]
        if name in names:
            plain = not any(getattr(each, "id", "") == "staticmethod" for each in inner.decorator_list)
            first = isinstance(outer, ast.ClassDef) and names[0] == name and plain
            return scope.chain[:depth] if first else None
    return None


def _values(statement: ast.stmt, scope: _Scope, dotted: str) -> Iterator[tuple[ast.stmt, _Scope, ast.expr]]:
    """The value that a statement gives to ``name`` or ``self.name``."""
    other = ast.Constant(None, lineno=statement.lineno, col_offset=statement.col_offset)
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        if ast.unparse(statement.target) == dotted:
            yield statement, scope, statement.value
        return
    if not isinstance(statement, ast.Assign):
        names: Sequence[ast.AST] = ()
        if isinstance(statement, ast.AugAssign | ast.For | ast.AsyncFor):
            names = [statement.target]
        elif isinstance(statement, ast.With | ast.AsyncWith):
            names = [item.optional_vars for item in statement.items if item.optional_vars]
        if any(isinstance(n, ast.expr) and ast.unparse(n) == dotted for t in names for n in ast.walk(t)):
            yield statement, scope, other
        return
    for target in statement.targets:
        if ast.unparse(target) == dotted:
            yield statement, scope, statement.value
        elif isinstance(target, ast.Tuple | ast.List):
            for position, element in enumerate(target.elts):
                if ast.unparse(element) == dotted:
                    yield statement, scope, _element(statement.value, position) or other


def _element(value: ast.expr, position: int) -> ast.expr | None:
    """The element of a tuple that is written, or that a call returns."""
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts[position] if position < len(value.elts) else None
    if isinstance(value, ast.Call):
        index = ast.Constant(position, lineno=value.lineno, col_offset=value.col_offset)
        return ast.copy_location(ast.Subscript(value, index, ast.Load()), value)
    return None


def as_def(file: File, statement: ast.stmt, written: ast.Lambda, name: str) -> str:
    """The text of a file with ``name = lambda x: y`` as ``def name(x): return y``, line for line."""
    text, newline = file.source.text, file.source.newline
    start, end = file.names.bounds(statement)
    opened, last = file.names.bounds(written)
    first, _ = file.names.bounds(written.body)
    # Brackets around the body are no part of its node.
    colon = text.rindex(":", opened, first)
    body = text[colon + 1 : last].strip()
    before, after = text[start : colon + 1].count("\n"), text[last:end].count("\n")
    bracketed = body.startswith("(") and first > text.index("(", colon)
    if before or after or "\n" in body:
        inner = body[1:-1] if bracketed else body
        body = f"({newline * before}{inner}{newline * after})"
    return f"{text[:start]}def {name}({ast.unparse(written.args)}): return {body}{text[end:]}"
