"""The user's functions that a function calls, found by the names it calls them by.

They stand in the same file, around the target, or in another module of the project. What is found here
is looked into, and carried by the emitted file where collectives go into it.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax_pmap.sources as sources
from jax_pmap.emit.stored import kin_of, may_store
from jax_pmap.emit.transformed import Transformed, transformed_around, transformed_at_top
from jax_pmap.locating.paths import folders_with
from jax_pmap.model import Callee, RefusalError, Source
from jax_pmap.reading.decorators import KEPT
from jax_pmap.reading.facts import FunctionFacts, ImportedName
from jax_pmap.reading.read import read
from jax_pmap.reading.target import Target, binds_its_class
from jax_pmap.syntax.definitions import find, statements
from jax_pmap.syntax.library import HOLDERS, MAPPERS, OF_MODULES, WRAPPERS
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.syntax.parse import ParsedSource, parse, resolver_of
from jax_pmap.syntax.resolve import Resolver
from jax_pmap.worker.scopes import (
    ALWAYS_THERE,
    attribute_of_itself,
    defaults,
    is_private,
    names_of_inner_scopes,
    names_of_its_own,
    own_nodes,
    used_names,
)

#: Names of files with tests, which replace methods for as long as they run.
TESTS = re.compile(r"test_|conftest\.py$|.*_test\.py$")
#: Modules a name is followed through, from one that only passes it on to the next.
PASSED_ON = 4


@dataclass(frozen=True, slots=True)
class UserFunction:
    """One of the user's functions."""

    parsed: ParsedSource
    facts: FunctionFacts
    #: What copies of it are called: its own name, or another where the target's file has that already.
    #: Of a method, its dotted name.
    name: str
    #: Whether it is a method that copies of are functions: it is found by its class or by an object.
    detached: bool = False
    #: Source of the class of a method that was found by running the function: its objects must have it.
    owner: str = ""
    #: The library that runs a method on modules, where the copy is put in its place for as long as they run.
    library: str = ""
    #: Whether it is a function that a value holds, as running has shown, or a static method of an object:
    #: the value must hold that very one.
    by_value: bool = False
    #: Whether code of the project may give an object, or its class, another method of that name.
    replaceable: bool = False
    #: The object of the top level that it makes anew, which a library made of functions of the user's.
    makes: str = ""

    @property
    def source(self) -> Source:
        """The file it stands in."""
        return self.parsed.source

    @property
    def method_of(self) -> str:
        """The class that it is a method of, or ``""``."""
        return self.name.rpartition(".")[0] if self.source.qualname == self.name else ""

    @property
    def is_apart(self) -> bool:
        """Whether copies of it have no name that a caller knows them by."""
        return self.is_method or self.by_value or bool(self.makes)

    def made(self, called: str, name: str) -> str:
        """What stands for ``solver.run`` where the copy of ``make_solver`` is called `name`."""
        return f"{name}(){called.removeprefix(self.makes)}"

    @property
    def is_method(self) -> bool:
        """Whether it stands in a class."""
        return self.detached or bool(self.method_of)

    @property
    def qualified(self) -> str:
        """What its file calls it: a method by its class."""
        return f"{self.owner}.{self.facts.name}" if self.owner else self.facts.name

    @property
    def is_of_calls(self) -> bool:
        """Whether it is what runs where an object of its class is called: ``model(x)``."""
        return bool(self.owner) and not self.library and self.facts.name == "__call__"

    @property
    def key(self) -> tuple[Path, str, bool, str]:
        """What one function has that no other has: a method looked up on objects asks for their class."""
        return self.source.path, self.source.qualname, self.by_value, self.owner

    def is_same(self, other: UserFunction) -> bool:
        """Whether both are one function."""
        return self.key == other.key


@dataclass(frozen=True, slots=True)
class Owner:
    """The class that a method is looked up in."""

    #: The file it stands in, and what names stand for there.
    source: Source
    names: Resolver
    definition: ast.ClassDef
    #: Whether it is looked up on an object of it.
    is_object: bool


class CallGraph:
    """Finds the user's functions by the names that other functions call them by."""

    def __init__(self, target: Target, callees: Iterable[Callee] = ()) -> None:
        """Look for them from `target` on; `callees` are methods that running it has shown."""
        self.target = target
        self.origin = UserFunction(target.parsed, target.facts, target.facts.name)
        self._found: dict[tuple[str, str, str], UserFunction | None] = {}
        self._transformed: dict[tuple[str, str, str], Transformed | None] = {}
        #: Why a method that running has shown cannot be carried, by the source of the call.
        self.why: dict[str, str] = {}
        self.callees: dict[tuple[str, str], Callee] = {}
        for callee in callees:
            self.learn(callee)

    def learn(self, callee: Callee) -> None:
        """Take what was seen to be called somewhere for what is called there."""
        self.callees[callee.caller, callee.called] = callee
        begins = f"{callee.called}."
        self._found = {key: f for key, f in self._found.items() if not f"{key[2]}.".startswith(begins)}

    def calls(self, caller: UserFunction) -> list[str]:
        """Sources of all that a function calls, or may call, and that `find` may find."""
        seen = [called for at, called in self.callees if at == spot(caller)]
        entries = [
            caller.parsed.segment(node)
            for node in ast.walk(caller.parsed.definition)
            if isinstance(node, ast.Subscript)
            and getattr(node.value, "id", "") in caller.facts.module_names
            and isinstance(node.slice, ast.Constant)
        ]
        return list(dict.fromkeys([*names_called(caller.parsed.definition), *entries, *seen]))

    def find(self, called: str, caller: UserFunction) -> UserFunction | None:
        """The function that `caller` names ``called``, or ``module.called``; None if it cannot be carried."""
        key = str(caller.source.path), caller.source.qualname, called
        if key not in self._found:
            name = called.partition(".")[0]
            seen = self.callees.get((spot(caller), name))
            if seen is not None and seen.made:
                found = self._maker(name, caller)
            else:
                found = self._find(called, caller) or self._seen(called, caller)
            if found is not None and not found.library and self._of_library(found.source):
                found = None
            self._found[key] = found
        return self._found[key]

    def gives_back(self, reference: str, line: int) -> bool:
        """Whether the decorators of a function give it back: what has its name is defined from `line` on."""
        source = self._source(reference)
        chain = find(resolver_of(source).tree, source.qualname) if source is not None else None
        above = getattr(chain[-1], "decorator_list", ()) if chain else ()
        # Python counts the lines of a function from its decorators on.
        return not above or above[0].lineno == line

    def learn_of_module(self, reference: str, library: str) -> str:
        """Take a method for one that a library runs; what the target calls it then, or ``""``.

        One that a name leads to is called by that.
        """
        source = self._source(reference)
        known = [each.source for each in self._found.values() if each is not None and not each.library]
        if source is None or any((e.path, e.qualname) == (source.path, source.qualname) for e in known):
            return ""
        if (spot(self.origin), reference) not in self.callees:
            self.learn(Callee(spot(self.origin), reference, reference, library=library))
        return reference

    def _of_library(self, source: Source) -> bool:
        """Whether a method is one that a library runs."""
        run = [self._source(each.function) for each in self.callees.values() if each.library]
        return any((e.path, e.qualname) == (source.path, source.qualname) for e in run if e is not None)

    def seen_as(self, called: str, caller: UserFunction) -> tuple[str, str]:
        """Module and name of the function that ``called`` was seen to be in a caller."""
        seen = self.callees.get((spot(caller), called))
        if seen is None:
            found = self.find(called, caller)
            return (found.source.module, found.source.qualname) if found is not None else ("", "")
        module, _, name = seen.function.partition(":")
        return module, name

    def _seen(self, called: str, caller: UserFunction) -> UserFunction | None:
        """The method that running the function has shown, unless it means another thing elsewhere."""
        callee = self.callees.get((spot(caller), called))
        if callee is None:
            return None
        source = self._source(callee.function)
        if source is None:
            return None
        if self.is_beside(callee.function, called, caller):
            return self._function(source, called)
        if "." not in source.qualname:
            inner = names_of_inner_scopes(caller.parsed.definition)
            if source.qualname in own_names(caller) | inner:
                # The copy is told from what else a caller may give by the original's name.
                where = f"`{source.qualname}` ({source.shown_path})"
                self.why[called] = f"{where} has the name of a variable there: give that another name"
                return None
            named = self._in_file(called, caller) or self._in_module(called, caller)
            if named is not None and (named.path, named.qualname) == (source.path, source.qualname):
                return self._function(source, called, is_itself=True)
            return self._by_value(source, called)
        parsed = parse(source)
        facts, owner = read(source, parsed), source.qualname.rpartition(".")[0]
        if callee.library:
            # The library does with the copy what it does with the method.
            own = tuple(each for each in facts.decorators if each.name not in OF_MODULES)
            facts = dataclasses.replace(facts, decorators=own)
        in_class = bool(parsed.enclosing) and isinstance(parsed.enclosing[-1], ast.ClassDef)
        if not in_class or not movable(facts, parsed):
            self.why[called] = (
                f"`{source.qualname}` ({source.shown_path}:{facts.span.line}) would not do the same outside "
                "its class: it uses `super()`, private names or names around the class, or has a decorator "
                "that is not known"
            )
            return None
        found = self._as_function(parsed, with_class(facts, owner))
        if found is None:
            self.why[called] = self._names_meant_twice(parsed, facts)
            return None
        # Looked up on its class, it is that method whatever the object is.
        alone = callee.unbound and facts.receiver
        if alone:
            return found
        found = dataclasses.replace(found, replaceable=callee.replaceable)
        if callee.by_value:
            return dataclasses.replace(found, owner=owner, by_value=True)
        return self._bound_method(found, owner, callee.library)

    def learn_made(
        self, called: str, caller: UserFunction, attributes: Sequence[str] | None, its_class: str
    ) -> bool:
        """Have what ``called`` begins with be made anew where that is an object made of the user's functions.

        It is of a library's class. No file may set one of its `attributes`, or of what it is made with; they
        are None where the class may set them by itself.
        """
        name = called.partition(".")[0]
        maker = self._maker(name, caller)
        if maker is None or not self._leads(maker):
            return False
        if attributes is None:
            self.why[called] = (
                f"its class `{its_class}` changes its objects, and one made anew may be another"
            )
            return False
        nodes = [*ast.walk(maker.parsed.definition)]
        own = [e.attr for e in nodes if isinstance(e, ast.Attribute) and not self._of_import(e, maker)]
        settable = [*((each, its_class) for each in attributes), *((each, "") for each in own)]
        for attribute, owner in settable:
            if file := self.assigned(attribute, maker.source, owner):
                self.why[called] = f"{file} sets `.{attribute}`, and `{name}` may be another one for that"
                return False
        for table in (ast.unparse(each.value) for each in nodes if isinstance(each, ast.Subscript)):
            if self._changes(table, maker.source):
                self.why[called] = f"`{table}` may change, of which `{name}` is made"
                return False
        self.learn(Callee(spot(caller), name, f"{maker.source.module}:{name}", made=True))
        return True

    def _of_import(self, attribute: ast.Attribute, caller: UserFunction) -> bool:
        """Whether an attribute is one of an installed package, or of what that has: ``optax.losses.l2``."""
        node: ast.expr = attribute
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and self.is_installed(node.id, caller)

    def _leads(self, maker: UserFunction) -> bool:
        """Whether an object is made of functions that can be found, or of what is made of such."""
        for called in self.calls(maker):
            made = self._maker(called, maker)
            if self.find(called, maker) is not None or (made is not None and self._leads(made)):
                return True
        return False

    def _maker(self, name: str, caller: UserFunction) -> UserFunction | None:
        """``def make_solver(): return LBFGS(loss)`` of an object that the top level makes by a call."""
        source = self._assigning(name, caller) if name.isidentifier() else None
        value = self._value_of(source) if source is not None else None
        if source is None or value is None or name in own_names(caller):
            return None
        made, names = f"make_{source.qualname}", resolver_of(source)
        while made in names.scope_in(names.tree).bindings:
            made += "_"
        source = with_definition(source, value, f"{made}()")
        found = self._function(dataclasses.replace(source, qualname=made), made) if source else None
        return None if found is None else dataclasses.replace(found, makes=name)

    def _assigning(self, name: str, caller: UserFunction) -> Source | None:
        """The file whose top level gives an object the name that a function has for it."""
        facts, source = caller.facts, caller.source
        for _ in range(PASSED_ON if name in {*facts.module_names, *names_of(facts)} else 0):
            if name in resolver_of(source).top.values:
                return dataclasses.replace(source, qualname=name)
            imported = imported_as(source, name)
            located = self._located(":".join(imported), source) if imported is not None else None
            if imported is None or located is None:
                return None
            source, name = located[0] if isinstance(located, tuple) else located, imported[1]
        return None

    def _by_value(self, source: Source, called: str) -> UserFunction | None:
        """A function of a module that a value holds, to be carried beside the original."""
        found = self._function(source, source.qualname, ((), (source.qualname,)), is_itself=True)
        if found is None:
            self.why[called] = self.why.get(source.qualname) or (
                f"`{source.qualname}` ({source.shown_path}) has a decorator that is not known"
            )
            return None
        return dataclasses.replace(found, name=f"p_{source.qualname.lstrip('_')}", by_value=True)

    def is_installed(self, name: str, caller: UserFunction) -> bool:
        """Whether a name is imported by a function's file from what is no file of the project."""
        statements_ = [row.statement for row in caller.facts.imported if row.name == name]
        for statement in statements_:
            top = re.match(r"(?:from|import) (\w+)", statement)
            if top and folders_with(top[1], caller.source):
                return False
        return bool(statements_)

    def _source(self, reference: str) -> Source | None:
        """Where the function or method that ``module:Class.method`` names stands."""
        module, _, qualname = reference.partition(":")
        own = self.target.source
        if module in (own.module, "__main__"):
            if own.forwards and qualname == own.qualname:
                # A copy of what stands in its place would call itself.
                own = dataclasses.replace(own, text=own.file_text, written=None, forwards="")
            return dataclasses.replace(own, qualname=qualname, binding=None)
        found = self._located(reference, own)
        return found if isinstance(found, Source) else None

    def _find(self, called: str, caller: UserFunction) -> UserFunction | None:
        if caller is self.origin and (spot(caller), called) in self.callees and ":" in called:
            return None  # A method that a library runs, which no name leads to.
        if not called:
            return None
        if not all(part.isidentifier() for part in called.split(".")):
            return self._entry(called, caller)
        if called.partition(".")[0] in own_names(caller) and not self._bound_class(called, caller):
            return None
        method = method_called(called, caller.parsed, caller.facts.receiver)
        if method and caller.library:
            return None  # The library runs that, too.
        if method:
            return self._method(dataclasses.replace(caller.source, qualname=method), caller)
        owner = self._owner(called, caller)
        if owner is not None:
            found = self._detached(owner, called.rpartition(".")[2], caller)
            if found is None or not (bound := self._bound_class(called, caller)):
                return found
            return self._bound_method(dataclasses.replace(found, facts=with_class(found.facts, bound)), bound)
        transformed = self.transformed(called, caller)
        if transformed is not None:
            return self._behind(transformed, caller)
        source = self._in_file(called, caller) or self._in_module(called, caller)
        return None if source is None else self._function(source, called)

    def _function(
        self,
        source: Source,
        called: str,
        names: tuple[tuple[ImportedName, ...], tuple[str, ...]] | None = None,
        *,
        is_itself: bool = False,
    ) -> UserFunction | None:
        """A function that is found by its name, or is held by an object that these `names` make.

        With `is_itself`, running has shown that its decorators give it back as it is, as those do that enter
        it into a table.
        """
        source = self._valued(source) or source
        try:
            parsed = parse(source)
        except RefusalError:
            return None
        facts = read(source, parsed)
        if names is not None:
            decorators = tuple(each for each in facts.decorators if each.name not in HOLDERS)
            every = tuple(dict.fromkeys((*facts.imported, *names[0])))
            own = tuple(sorted({*facts.module_names, *names[1]}))
            facts = dataclasses.replace(facts, decorators=decorators, imported=every, module_names=own)
        if is_itself:
            known = tuple(each for each in facts.decorators if each.set_aside or each.name in KEPT)
            facts = dataclasses.replace(facts, decorators=known)
        if facts.is_async or facts.is_generator or not plain(facts):
            return None
        if line := bound_again(parsed, source.qualname):
            self.why[called] = (
                f"`{facts.name}` ({source.shown_path}:{facts.span.line}) is another one from line {line} "
                "on, which binds its name again: give what is made there a name of its own"
            )
            return None
        if again := rebound_defaults(parsed):
            self.why[called] = (
                f"a default of `{facts.name}` ({source.shown_path}:{facts.span.line}) reads `{again[0]}`, "
                "which the file binds more than once: a copy would have another default"
            )
            return None
        if attribute := attribute_of_itself(parsed.definition):
            where = f"`{facts.name}` ({source.shown_path}:{attribute.lineno})"
            self.why[called] = f"{where} uses `{ast.unparse(attribute)}`, which a copy of it would not have"
            return None
        if why := self._names_meant_twice(parsed, facts):
            self.why[called] = why
            return None
        is_here = source.path == self.target.source.path
        # One inside another function may be called by a second name, which is bound to it there.
        by_own = bool(parsed.enclosing) or ("." in called and not is_here)
        return UserFunction(parsed, facts, facts.name if by_own else called)

    def transformed(self, called: str, caller: UserFunction) -> Transformed | None:
        """The function that an object named ``called`` up to its last part holds, and runs when called so."""
        key = str(caller.source.path), caller.source.qualname, called
        if key not in self._transformed:
            self._transformed[key] = self._transformed_by_name(called, caller)
        return self._transformed[key]

    def _transformed_by_name(self, called: str, caller: UserFunction) -> Transformed | None:
        name, _, method = called.rpartition(".")
        if not all(part.isidentifier() for part in called.split(".")):
            return None
        return (self._run_by_object(name, method, caller) if name else None) or self._run_by_object(
            called, "", caller
        )

    def _run_by_object(self, name: str, method: str, caller: UserFunction) -> Transformed | None:
        """The function that the object called ``name`` runs in this method, or when it is called itself."""
        root = name.partition(".")[0]
        if root in own_names(caller):
            return None
        if caller is self.origin and name in caller.facts.closure_names:
            return transformed_around(name, method, self.target.parsed)
        if root not in {*caller.facts.module_names, *names_of(caller.facts)}:
            return None
        source = caller.source
        for _ in range(PASSED_ON):
            found = transformed_at_top(name, method, source) if "." not in name else None
            imported = imported_as(source, name) if found is None else None
            if imported is None:
                return found
            located = self._located(":".join(imported), source)
            if located is None:
                return None
            source, name = located[0] if isinstance(located, tuple) else located, imported[1]
        return None

    def _behind(self, transformed: Transformed, caller: UserFunction) -> UserFunction | None:
        """The function that an object holds, to be carried with the names that make the object anew."""
        names = resolver_of(transformed.source)
        tops = {each.name for each in names.tree.body if isinstance(each, ast.FunctionDef)}
        around = caller is self.origin and transformed.source.path == caller.source.path
        name = enclosed(self.target.parsed, transformed.function) if around else transformed.function
        source: Source | None = dataclasses.replace(transformed.source, qualname=name, binding=None)
        if name == transformed.function and name not in tops:
            source = self._imported(name, transformed.source)
        if source is None:
            return None
        rows = [row for each in transformed.names for row in names.top.imported.get(each, ())]
        imported = tuple(ImportedName(row.name, row.statement, row.typing_only) for row in rows)
        own = tuple(sorted(transformed.names - names.top.imported.keys() - ALWAYS_THERE))
        if own and source.path != transformed.source.path:
            return None
        return self._function(source, transformed.function, (imported, own))

    def receiver(self, called: str, caller: UserFunction) -> str:
        """Source of what a method is bound to that `caller` names ``called``, or ``""``."""
        found = self.find(called, caller)
        head, _, name = called.rpartition(".")
        seen = self.callees.get((spot(caller), called))
        if found is None or not found.is_method or not found.facts.receiver or (seen and seen.unbound):
            return ""
        if found.is_of_calls and name != found.facts.name:
            return called
        if found.owner:
            return head
        owner = self._owner(called, caller) if found.detached else None
        if owner is None:
            return head
        if found.facts.is_class_method:
            return f"type({head})" if owner.is_object else head
        return head if owner.is_object else ""

    def _owner(self, called: str, caller: UserFunction) -> Owner | None:
        """The class that the head of ``head.name`` is, or the one that the module made that object of."""
        head, _, name = called.partition(".")
        bound = self._bound_class(called, caller)
        known = bound or head in {*caller.facts.module_names, *names_of(caller.facts)}
        found = self._class(bound or head, caller.source) if known and name.isidentifier() else None
        where = self.assigned(name, found.source, found.definition.name) if found is not None else ""
        if where:
            self.why[called] = (
                f"{where} assigns `.{name}` (or calls `setattr`), so `{head}` may have "
                "another method of that name when it is called"
            )
            return None
        return found

    def _bound_class(self, called: str, caller: UserFunction) -> str:
        """The class that `cls` of ``cls.name`` is, where the target is a class method; else ``""``."""
        first = next(iter(caller.facts.parameters), None)
        if caller is not self.origin or first is None or not binds_its_class(caller.source):
            return ""
        return caller.source.qualname.rpartition(".")[0] if called.partition(".")[0] == first.name else ""

    def assigned(self, name: str, source: Source, owner: str = "") -> str:
        """The file of the user's that may give an object, or a class, another method of this name, or ``""``.

        Of objects that have the methods of class `owner`, where that is known.
        """
        assigned = re.compile(rb"\.\s*" + re.escape(name.encode()) + rb"\b[^=\n]*=(?!=)|\bsetattr\(")
        try:
            every = {
                path: data for path in self._files(source) if (data := sources.read_bytes(path)) is not None
            }
        except sources.TooManyFilesError:
            return "some file of the project"
        found = [path for path, data in every.items() if assigned.search(data)]
        if not found:
            return ""
        text = {path: data.decode(errors="replace") for path, data in every.items()}
        kin = kin_of(owner, [*text.values()]) if owner else None
        stores = next((path for path in found if may_store(text[path], name, kin)), None)
        return source.shown(stores) if stores is not None else ""

    def _files(self, source: Source) -> Iterator[Path]:
        """Every Python file of the user's that may change what a file imports; other tests do for themselves.

        Raises:
            TooManyFilesError: one of the folders has more files than are looked at.
        """
        folders = source.folders
        tops = [each for each in folders if not any(other in each.parents for other in folders)]
        for path in itertools.chain.from_iterable(map(sources.python_files, tops)):
            if path == self.target.source.path or not TESTS.match(path.name):
                yield path

    def _class(self, name: str, source: Source) -> Owner | None:
        """The class of this name in a file, or that an object of this name is made of there."""
        is_object = False
        for _ in range(PASSED_ON):
            names = resolver_of(source)
            only = names.bound_once(names.tree, name)
            if only not in names.tree.body:
                return None
            if isinstance(only, ast.ClassDef):
                return Owner(source, names, only, is_object)
            if isinstance(only, ast.ImportFrom | ast.Import):
                imported = imported_as(source, name)
                found = self._located(":".join(imported), source) if imported else None
                if found is None or imported is None:
                    return None
                source, name = found[0] if isinstance(found, tuple) else found, imported[1]
                continue
            made = only.value if isinstance(only, ast.Assign) and len(only.targets) == 1 else None
            if is_object or not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
                return None
            if not isinstance(only.targets[0], ast.Name):  # type: ignore[attr-defined]
                return None
            name, is_object = made.func.id, True
        return None

    def _detached(self, owner: Owner, name: str, caller: UserFunction) -> UserFunction | None:
        """A method of a class whose objects are known to be of that very class."""
        pending, seen = [owner], set[str]()
        while pending:
            each = pending.pop(0)
            at = f"{each.source.path}:{each.definition.name}"
            if at in seen:
                continue
            seen.add(at)
            inside = [node for node, _ in statements(each.definition.body)]
            if any(getattr(node, "name", "") in ("__new__", "__getattribute__") for node in inside):
                return None
            if name in each.names.scope_in(each.definition).bindings:
                if not isinstance(each.names.bound_once(each.definition, name), ast.FunctionDef):
                    return None
                source = dataclasses.replace(
                    each.source, qualname=f"{each.definition.name}.{name}", binding=None
                )
                parsed = parse(source)
                facts = read(source, parsed)
                return self._as_function(parsed, facts) if movable(facts, parsed) else None
            for base in each.definition.bases:
                above = self._class(base.id, each.source) if isinstance(base, ast.Name) else None
                pending += [above] if above is not None and not above.is_object else []
        return None

    def _method(self, source: Source, caller: UserFunction) -> UserFunction | None:
        """A method on the caller's own object, unless it may be another one for another object."""
        parsed = parse(source)
        facts = read(source, parsed)
        of_object = facts.receiver and not facts.is_class_method
        if not movable(facts, parsed) or (of_object and caller.facts.is_class_method):
            return None  # Looked up on a class, a method has its object among the arguments.
        if facts.is_class_method and caller.detached and not caller.facts.is_class_method:
            return None  # The copy would be given the caller's object.
        owner, _, name = source.qualname.rpartition(".")
        if overridden(owner, name, parsed.tree) or self._overridden_elsewhere(owner, name, source):
            return None
        if not caller.detached:
            own = source.path == self.target.source.path
            return UserFunction(parsed, facts, source.qualname) if own else None
        if self.assigned(name, source):
            return None
        if not caller.owner or caller.library:
            return self._as_function(parsed, facts)
        # Objects of a class that is derived elsewhere, or later, may have another one.
        found = self._as_function(parsed, with_class(facts, owner))
        return None if found is None else self._bound_method(found, owner)

    def _bound_method(self, found: UserFunction, owner: str, library: str = "") -> UserFunction:
        """A method that objects of class `owner` must have.

        A static one has no object among its arguments to tell by, and is told by itself.
        """
        by_value = not found.facts.receiver
        return dataclasses.replace(found, owner=owner, library=library, by_value=by_value)

    def _as_function(self, parsed: ParsedSource, facts: FunctionFacts) -> UserFunction | None:
        """A method that copies of are functions."""
        source = parsed.source
        owner, _, name = source.qualname.rpartition(".")
        if self._names_meant_twice(parsed, facts):
            return None
        copied = f"{snake(owner.rpartition('.')[2])}_{name.strip('_')}"
        return UserFunction(parsed, facts, copied, detached=True)

    def _overridden_elsewhere(self, owner: str, name: str, source: Source) -> bool:
        """Whether another file of the project derives from a class and defines its method anew."""
        derived = re.compile(rb"\bclass\s+\w+\s*\([^)]*\b" + re.escape(owner.encode()) + rb"\b")
        defined = re.compile(rb"\bdef\s+" + re.escape(name.encode()) + rb"\b")
        try:
            for path in self._files(source):
                data = sources.read_bytes(path) if path != source.path else None
                if data is not None and derived.search(data) and defined.search(data):
                    return True
        except sources.TooManyFilesError:
            return True
        return False

    def _in_file(self, called: str, caller: UserFunction) -> Source | None:
        """Where a function of the caller's own file stands."""
        if "." in called:
            return None
        around = self._around(called, caller)
        tops = {node.name for node in caller.parsed.tree.body if isinstance(node, ast.FunctionDef)}
        if called in caller.facts.closure_names and not around:
            return None  # The function around may be given it.
        if not around and called not in caller.facts.module_names and called not in tops:
            return None
        return dataclasses.replace(caller.source, qualname=around or called)

    def is_beside(self, reference: str, called: str, caller: UserFunction) -> bool:
        """Whether what a caller names ``called`` is defined once, in the function that made the target."""
        source, parsed = self._source(reference), self.target.parsed
        maker, _, name = source.qualname.rpartition(".") if source is not None else ("", "", "")
        if source is None or called not in caller.facts.closure_names or source.path != parsed.source.path:
            return False
        if not maker or maker != parsed.source.qualname.rpartition(".")[0]:
            return False
        around = parsed.enclosing[-1]
        definitions = parsed.scope_in(around).bindings.get(name, ())
        return isinstance(around, ast.FunctionDef) and [each.kind for each in definitions] == ["def"]

    def _around(self, called: str, caller: UserFunction) -> str:
        """Dotted name of the function beside the target that it and a caller know by a name, or ``""``."""
        if called not in caller.facts.closure_names or caller.source.path != self.target.source.path:
            return ""
        name = enclosed(self.target.parsed, called)
        is_same = caller is self.origin or name == enclosed(caller.parsed, called)
        return name if is_same and "." in name else ""

    def _in_module(self, called: str, caller: UserFunction) -> Source | None:
        """Where a function that the caller's file imports, or whose module it imports, stands."""
        if called.partition(".")[0] in caller.facts.closure_names:
            return None
        return self._imported(called, caller.source)

    def _imported(self, name: str, source: Source) -> Source | None:
        """Where a function that a file imports, or whose module it imports, stands."""
        for _ in range(PASSED_ON):
            imported = imported_as(source, name)
            if imported is None:
                return None
            module, name = imported
            found = self._located(f"{module}:{name}", source)
            if found is None:
                return None
            if isinstance(found, Source):
                return found
            source = found[0]
            if name in resolver_of(source).top.values:
                return dataclasses.replace(source, qualname=name)
        return None

    def _entry(self, called: str, caller: UserFunction) -> UserFunction | None:
        """The function that ``losses["mse"]`` is, of a dict in the caller's file that nothing changes."""
        node = parsed_expression(called)
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            return None
        table = node.value.id
        value = caller.parsed.top.values.get(table)
        if table not in caller.facts.module_names or not isinstance(value, ast.Dict):
            return None
        if not isinstance(node.slice, ast.Constant) or not all(
            isinstance(k, ast.Constant) for k in value.keys
        ):
            return None
        rows = [v for k, v in zip(value.keys, value.values, strict=True) if k.value == node.slice.value]  # type: ignore[union-attr]
        if len(rows) != 1 or not isinstance(rows[0], ast.Name) or self._changes(table, caller.source):
            return None
        name = rows[0].id
        if name in own_names(caller) or name in caller.facts.closure_names:
            return None
        facts = dataclasses.replace(caller.facts, module_names=(*caller.facts.module_names, name))
        return self.find(name, dataclasses.replace(caller, facts=facts))

    def _changes(self, table: str, source: Source) -> bool:
        """Whether some file of the project may put another entry into a dict, or hand it on."""
        named = re.compile(rb"\b" + re.escape(table.encode()) + rb"\b")
        try:
            for path in self._files(source):
                data = sources.read_bytes(path)
                if (
                    data is not None
                    and named.search(data)
                    and not only_read(table, data, path == source.path)
                ):
                    return True
        except sources.TooManyFilesError:
            return True
        return False

    def _valued(self, source: Source) -> Source | None:
        """The file with a definition in place of the assignment that makes a function, or None.

        ``loss = partial(_loss, power=2)``, or what a factory makes, is a function that calls that.
        """
        value = self._value_of(source)
        if value is None:
            return None
        by = resolver_of(source).qualname(value.func)
        if by != "functools.partial" and by not in WRAPPERS and not self._makes_functions(value.func, source):
            return None
        return with_definition(source, value, f"{source.qualname}(*args, **kwargs)", "(*args, **kwargs)")

    def _value_of(self, source: Source) -> ast.Call | None:
        """The call by which the top level gives a name what it has, if that is the same at any time."""
        names, name = resolver_of(source), source.qualname
        value = names.top.values.get(name)
        body = names.tree.body
        made = [each for each in body if isinstance(each, ast.Assign) and each.value is value]
        if not isinstance(value, ast.Call) or not made or name in names.rebound:
            return None
        if made[0].col_offset or len(made[0].targets) > 1:
            return None  # Something else stands in the line.
        definitions = [each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        once = {
            each.name: each for each in definitions if [d.name for d in definitions].count(each.name) == 1
        }
        settled = names.top.values.keys() | names.top.imported.keys() | ALWAYS_THERE | once.keys()
        # Others may mean another thing by now.
        return value if used_names([value]) <= settled - names.rebound else None

    def _makes_functions(self, called: ast.expr, source: Source) -> bool:
        """Whether a function of the user's, as a file calls it, returns nothing but functions it defines."""
        name = ast.unparse(called)
        imported = imported_as(source, name)
        found = self._located(":".join(imported), source) if imported else None
        if isinstance(found, Source):
            source, name = found, found.qualname
        chain = find(resolver_of(source).tree, name)
        return chain is not None and makes_functions(chain[-1])

    def _located(self, reference: str, source: Source) -> Source | tuple[Source] | None:
        """The function a reference names; in a tuple, the file of another object, or that only imports it."""
        from jax_pmap.locate import locate, locate_class, locate_object

        for folder in folders_with(reference.partition(".")[0].partition(":")[0], source):
            for locating in (locate, locate_object, locate_class):
                try:
                    found = locating(reference, folder, hints=False)
                except RefusalError:
                    continue
                bound = found.binding if locating is locate else None
                if bound is not None and (bound.positional or bound.keywords or "." in found.qualname):
                    continue  # It is the function with something bound to it.
                if not found.path.is_relative_to(folder) or "site-packages" in found.path.parts:
                    return None
                others = (*source.folders, *found.others)
                found = dataclasses.replace(found, shown_path=source.shown(found.path), others=others)
                return found if locating is locate else (found,)
        return None

    def _names_meant_twice(self, parsed: ParsedSource, facts: FunctionFacts) -> str:
        """Why names that a function uses would mean something else in a copy of it, or ``""``."""
        source, own = parsed.source, self.target.facts
        used = {*facts.found_in_module, *names_of(facts)}
        where = f"`{source.qualname}` ({source.shown_path}:{facts.span.line})"
        if source.path != self.target.source.path:
            # They may get other names, which only what is the module's may be put under.
            twice = sorted(used & names_of_its_own(parsed.definition))
            return (
                f"`{twice[0]}` is the module's in {where}, and a variable of its own as well" if twice else ""
            )
        around = sorted(used & set(own.closure_names)) if source.qualname == facts.name else ()
        return f"`{around[0]}`, which {where} uses, is a variable around `{own.name}`" if around else ""


def with_definition(source: Source, value: ast.Call, signature: str, arguments: str = "") -> Source | None:
    """The file with a definition that returns the `value` of an assignment, called with `arguments`."""
    lines = source.text.removeprefix("\ufeff").split("\n")
    first, last = value.lineno - 1, (value.end_lineno or value.lineno) - 1
    end = lines[last].encode()[value.end_col_offset :].decode()
    if end.strip() and not end.lstrip().startswith("#"):
        return None  # Something else stands in the line.
    lines[last] = lines[last].removesuffix(end) + arguments + end
    lines[first] = f"def {signature}: return {lines[first].encode()[value.col_offset :].decode()}"
    return dataclasses.replace(source, text="\n".join(lines), binding=None)


def renamed(called: str, receiver: str) -> str:
    """The source that a copy stands in for: ``called``, or ``called()`` where it stands for calls alone.

    An object that is called is itself where it is handed on.
    """
    return f"{called}()" if receiver == called else called


def bound_again(parsed: ParsedSource, name: str) -> int:
    """The line at which a module makes another function of one, under the same name, or 0.

    ``step = jax.jit(step)`` computes what that did; ``step = partial(step, scale=2)`` or
    ``jax.vmap(step)`` does not, and neither is what a copy of the definition is.
    """
    for binding in parsed.scopes[parsed.tree].bindings.get(name, ()):
        value = binding.value
        if not isinstance(value, ast.Call) or value.lineno < parsed.definition.lineno:
            continue
        compiled = [value.func, *(value.func.args[:1] if isinstance(value.func, ast.Call) else ())]
        named = {parsed.qualname(each) for each in compiled}
        if name in used_names([value]) and named.isdisjoint(WRAPPERS):
            return value.lineno
    return 0


def rebound_defaults(parsed: ParsedSource) -> list[str]:
    """Names in the defaults of a function that its module binds more than once."""
    used = used_names(defaults(parsed.definition.args))
    bindings = parsed.scopes[parsed.tree].bindings
    return sorted(name for name in used if len(bindings.get(name, ())) > 1)


def only_read(table: str, data: bytes, is_own: bool) -> bool:
    """Whether a file does nothing with a dict, its own or one that it may import, but look entries up."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return False
    froms = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    imported = [alias for alias in froms if alias.name in (table, "*")]
    if any(alias.asname not in (None, table) for alias in imported):
        return False
    read = {
        id(node.value)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Attribute) and node.attr in ("get", "items", "keys", "values"))
    }
    uses = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == table)
        or (isinstance(node, ast.Name) and node.id == table and (is_own or imported))
    ]
    stores = [node for node in uses if not isinstance(node.ctx, ast.Load)]
    allowed = 1 if is_own else 0
    return len(stores) <= allowed and all(id(node) in read for node in uses if node not in stores)


def makes_functions(factory: ast.AST) -> bool:
    """Whether a function returns nothing but functions that it defines."""
    if not isinstance(factory, ast.FunctionDef) or factory.decorator_list:
        return False
    inside = {each.name for each in ast.walk(factory) if isinstance(each, ast.FunctionDef)}
    returned = [each.value for each in own_nodes(factory.body) if isinstance(each, ast.Return)]
    return bool(returned) and all(
        isinstance(each, ast.Lambda) or (isinstance(each, ast.Name) and each.id in inside)
        for each in returned
    )


def plain(facts: FunctionFacts) -> bool:
    """Whether a copy of a function needs none of its decorators, or has them as well."""
    return all(
        each.name in KEPT or (each.set_aside and each.name not in MAPPERS) for each in facts.decorators
    )


def with_class(facts: FunctionFacts, owner: str) -> FunctionFacts:
    """What is read of a method, with the name of its class among those it uses."""
    names = tuple(sorted({*facts.module_names, owner.partition(".")[0]}))
    return dataclasses.replace(facts, module_names=names)


def movable(facts: FunctionFacts, parsed: ParsedSource) -> bool:
    """Whether a method does the same outside its class."""
    if facts.is_async or facts.is_generator or not plain(facts):
        return False
    unknown = facts.unknown_names and not facts.star_imports
    # There, neither `super()` nor private names mean the same.
    return not (facts.closure_names or unknown or facts.global_names or is_private(parsed.definition))


def own_names(caller: UserFunction) -> set[str]:
    """Names that mean something of a function's own where it reads them, but for the object of a method."""
    parsed = caller.parsed
    return parsed.scope_in(parsed.definition).bindings.keys() - {caller.facts.receiver}


def spot(caller: UserFunction) -> str:
    """The function that calls stand in: ``"critic.py::update_critic"``."""
    return f"{caller.source.shown_path}::{caller.source.qualname}"


def snake(name: str) -> str:
    """``DQNAgent`` as a function's name begins: ``dqn_agent``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def method_called(called: str, parsed: ParsedSource, receiver: str) -> str:
    """Dotted name of the method that ``self.name`` is in a method of the file, or ``""``.

    It stands in the class around the method or, by the bases that the file defines, above it.
    """
    head, _, name = called.partition(".")
    if not receiver or head != receiver or not name.isidentifier():
        return ""
    if any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == called and isinstance(node.ctx, ast.Store)
        for node in ast.walk(parsed.tree)
    ):
        return ""  # An object may have another one.
    pending, seen = [".".join(each.name for each in parsed.enclosing)], set()
    while pending:
        owner = pending.pop(0)
        chain = find(parsed.tree, owner)
        if owner in seen or not chain or not isinstance(chain[-1], ast.ClassDef):
            continue
        seen.add(owner)
        if any(not isinstance(each, ast.ClassDef) for each in chain):
            return ""
        found = find(parsed.tree, f"{owner}.{name}")
        if found:
            return f"{owner}.{name}" if isinstance(found[-1], ast.FunctionDef) else ""
        pending += [ast.unparse(base) for base in chain[-1].bases]
    return ""


def overridden(owner: str, name: str, tree: ast.Module) -> bool:
    """Whether a class that a file derives from `owner` defines the method anew."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    derived, before = {owner.rpartition(".")[2]}, 0
    while len(derived) > before:
        before = len(derived)
        derived |= {
            c.name for c in classes if any(ast.unparse(b).rpartition(".")[2] in derived for b in c.bases)
        }
    others = [c for c in classes if c.name in derived and c.name != owner.rpartition(".")[2]]
    return any(getattr(each, "name", "") == name for c in others for each, _ in statements(c.body))


def names_called(definition: ast.AST) -> list[str]:
    """Every ``name`` and ``module.name`` that a function reads, in the order of the source.

    Its own decorators are not of it: what they do with it is known. Nor are its own defaults, for which
    parameters stand in it, nor what functions inside it bind.
    """
    found: dict[str, None] = {}
    bound = names_of_inner_scopes(definition)
    outside = list(getattr(definition, "decorator_list", ()))
    if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        outside += defaults(definition.args)
    inner = {id(node) for each in outside for node in ast.walk(each)}
    for node in ast.walk(definition):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner:
            text = ast.unparse(node)
            if isinstance(node.ctx, ast.Load) and all(part.isidentifier() for part in text.split(".")):
                if text.partition(".")[0] not in bound:
                    found[text] = None
                inner |= {id(each) for each in ast.walk(node)}
    return list(found)


def imported_as(source: Source, called: str) -> tuple[str, str] | None:
    """(module, name in it) of ``called`` or ``alias.called`` by the imports at the top of a file."""
    module, _, name = (resolver_of(source).imported_as(called) or "").rpartition(".")
    return (module, name) if module else None


def enclosed(parsed: ParsedSource, name: str) -> str:
    """Dotted name of the function that the nearest scope around another one knows by a `name`.

    It is defined there, or the name is bound there once, to another such: ``update_fn = update_step``.
    """
    parts = parsed.source.qualname.split(".")
    for depth in range(len(parsed.enclosing), 0, -1):
        scope = parsed.enclosing[depth - 1]
        if isinstance(scope, ast.ClassDef):
            continue
        inside = [statement for statement, _ in statements(scope.body)]
        wanted = name
        for _ in range(PASSED_ON):
            if any(getattr(each, "name", "") == wanted for each in inside):
                return ".".join([*parts[:depth], wanted])
            bound = parsed.scope_in(scope).bindings.get(wanted, ())
            value = bound[0].value if len(bound) == 1 else None
            if not isinstance(value, ast.Name):
                break
            wanted = value.id
    return name


def names_of(facts: FunctionFacts) -> set[str]:
    """Names that imports give to a function."""
    return {row.name for row in facts.imported}
