"""What calls run that no name in the source leads to, asked of the worker where it is to be looked into."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import libcst as cst

from jax_pmap.emit.callees import UserFunction, spot
from jax_pmap.emit.places import Body
from jax_pmap.emit.weave import RECORDER, woven_source
from jax_pmap.model import Callee, Say, Span
from jax_pmap.planning.bodies import Bodies
from jax_pmap.problems import shown_file
from jax_pmap.reading.runs import behind
from jax_pmap.session import Session
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.syntax.text import in_one_line
from jax_pmap.worker import protocol
from jax_pmap.worker.origins import is_users
from jax_pmap.worker.protocol import Problem


class Callees:
    """Finds what is called in bodies, by tracing the target once for all of them."""

    def __init__(
        self,
        bodies: Bodies,
        session: Session,
        say: Say,
        name: str,
        statics: Sequence[str],
        overrides: Mapping[str, str],
    ) -> None:
        """For the target `name`, with its constant arguments `statics`, some as in `overrides`."""
        self.bodies, self.session, self.say, self.name = bodies, session, say, name
        self.statics, self.overrides = tuple(statics), overrides
        #: Sources of what is called, as files have them, by the scope of the body and the source in one line.
        self.written: dict[tuple[int, str], str] = {}
        #: What was seen, by the scope of the body and the source of what is called in it.
        self.seen: dict[tuple[int, str], Sequence[protocol.Callee]] = {}
        #: Why something was not found, by the source of what is called.
        self.why: dict[str, str] = {}
        #: Where the name of the axis may be given, by the scope of the body and the source of what is called.
        self.axes: dict[tuple[int, str], str] | None = None
        #: The methods of modules that libraries ran, once they were asked for.
        self.run: Sequence[protocol.ModuleMethod] | None = None

    def scopes(self, called: str, caller: Body) -> list[int]:
        """The scopes of the functions that `called` runs in a body, where they can be looked into.

        A method is known to the call graph from now on, by the name that it is called by.
        """
        key = caller.scope.index, in_one_line(called)
        if key not in self.written:
            self._ask()
        called = self.written.setdefault(key, called)
        found = self.seen.get((caller.scope.index, called), [])
        if self._made(called, caller, found):
            scope = self.bodies.open(called, caller)
            return [] if scope is None else [scope]
        if found and all(each.kind == "method" for each in found):
            self._learn(called, caller, found)
            scope = self.bodies.open(called, caller)
            return [] if scope is None else [scope]
        scopes = [self._scope(each) for each in found if each.kind == "function" and not is_method(each)]
        known = list(dict.fromkeys(scope for scope in scopes if scope is not None))
        if not known and len(found) == 1 and found[0].kind == "function":
            self._learn_function(called, caller, found[0])
            scope = self.bodies.open(called, caller)
            return [] if scope is None else [scope]
        if len(known) < len(found):
            self.why[called] = self._reason(called, found)
        return known

    def axis_argument(self, called: str, caller: Body) -> str:
        """The parameter under which what is `called` in a body takes the name of the axis, or ``""``."""
        if self.axes is None:
            self._ask()
        return (self.axes or {}).get((caller.scope.index, called), "")

    def methods(self, span: Span, below: bool) -> list[int]:
        """The scopes of the methods of modules that a library runs for a call, where they can be looked into.

        With `below`, those that these run as well. Why others cannot is under ``""`` in `why`.
        """
        if self.run is None:
            try:
                asked_for = protocol.FindModuleMethods(self.statics)
                self.run = self.session.ask(asked_for, "finding out what is called")
            except Problem:
                self.run = ()
        call_graph, found = self.bodies.call_graph, list[int]()
        for row in self.run:
            if not self._runs(span, row.frames, below):
                continue
            method = row.method
            reference = f"{method.module}:{method.owner}.{method.name}"
            if self._in_another_script(method):
                self.why[""] = (
                    f"`{method.qualname.replace('.<locals>', '')}` ({shown(method, self.session.directory)}) "
                    "stands in the program that is run, and in no module that can be imported"
                )
                continue
            if not method.named:
                self.why[""] = (
                    f"the class of `{method.qualname.replace('.<locals>', '')}` "
                    f"({shown(method, self.session.directory)}) is not found in a module by its name"
                )
                continue
            known = call_graph.learn_of_module(reference, row.library)
            scope = self.bodies.open(known, self.bodies.body) if known else None
            if scope is not None:
                found.append(scope)
            elif reference in call_graph.why:
                self.why[""] = call_graph.why[reference]
        return found

    def open_run(self) -> None:
        """Take in what the target was seen to run and can be looked into: methods, functions in values."""
        for body in self.bodies.bodies:
            for called, is_known in self._called(body):
                if not is_known:
                    self.scopes(called, body)
            if body is self.bodies.body:
                self.methods(body.scope.span, below=True)

    def _runs(self, span: Span, frames: Sequence[protocol.Frame], below: bool) -> bool:
        """Whether the call at `span` leads by `frames` to something; maybe by more of the user's, `below`."""
        users = [
            (shown_file(file, self.session.directory), line)
            for file, line, _ in frames
            if is_users(file) and Path(file).is_file()
        ]
        ways = users if below else users[-1:]
        return any(
            file == span.file and span.line <= line <= max(span.end_line, span.line) for file, line in ways
        )

    # -- asking ------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Run the target with what is called tapped, but for functions that a name in the source leads to."""
        bodies, self.axes = self.bodies, {}
        table: dict[int, tuple[int, str]] = {}
        asked: dict[int, dict[str, int]] = {}
        for body in bodies.bodies:
            asked[body.scope.index] = {}
            for called, is_known in self._called(body):
                if not is_known:
                    self.seen.setdefault((body.scope.index, called), [])
                number = bodies.body.recorded((body.scope.index, called))
                asked[body.scope.index][in_one_line(called)] = number
                self.written[body.scope.index, in_one_line(called)] = called
                table[number] = body.scope.index, called

        def tapped(body: Body) -> str:
            name, renames = bodies.name_of(body), bodies.renames(body)
            return woven_source(body, name=name, renames=renames, asked=asked[body.scope.index])

        def noted(body: Body, name: str) -> list[str]:
            return [f"{RECORDER}.known({body.scope.index}, {name})"]

        self.say("finding out what is called")
        try:
            code, around = tapped(bodies.body), bodies.around(tapped, noted=noted)
            asked_for = protocol.FindCallees(
                self.statics, self.overrides, protocol.Tapped(self.name, code, around)
            )
            answer = self.session.ask(asked_for, "finding out what is called")
        except Problem:
            return
        for number, found in answer.items():
            if table[number] in self.seen:
                self.seen[table[number]] = found
            axes = {each.axis for each in found}
            self.axes[table[number]] = axes.pop() if len(axes) == 1 else ""

    def _called(self, body: Body) -> list[tuple[str, bool]]:
        """Sources of what a body calls, differentiates or maps, and whether a library has it."""
        home = self.bodies.homes[body.scope.index]
        facts = home.facts
        texts = dict.fromkeys(home.parsed.segment(n.func) for n in called_in(home.parsed.definition))
        made = [*(call.function for call in facts.gradient_calls), *(r.function for r in facts.function_runs)]
        for text in made:
            texts[behind(home.parsed, text) or text] = None
        names = {scope.name for scope in body.scopes.values()}
        call_graph = self.bodies.call_graph
        imported = {row.name for row in facts.imported if call_graph.is_installed(row.name, home)}
        return [
            (text, re.split(r"\W", text)[0] in imported)
            for text in texts
            if text not in names and (is_plain(text) or is_made(text))
        ]

    # -- what was found ----------------------------------------------------------------------

    def _learn(self, called: str, caller: Body, found: Sequence[protocol.Callee]) -> None:
        """Take a method for what `called` is, unless it is now one and now another."""
        first = found[0]
        methods = list(dict.fromkeys(f"{each.owner}.{each.name}" for each in found))
        where = shown(first, self.session.directory)
        if not where:
            return
        if len(methods) > 1:
            both = " and ".join(f"`{each}`" for each in methods)
            self.why[called] = f"it is {both}, one in one call and the other in another"
        elif not all(each.named for each in found) or self._in_another_script(first):
            self.why[called] = (
                f"its class `{first.owner}` ({where}) is not found in a module by its name, so a copy of "
                "the method could not tell whether it is given an object of that class"
            )
        else:
            self._take_method(called, caller, f"{first.module}:{methods[0]}", found)

    def _take_method(
        self,
        called: str,
        caller: Body,
        reference: str,
        found: Sequence[protocol.Callee],
        *,
        by_value: bool = False,
    ) -> None:
        """Take a method for what `called` is, unless code of the project may set another one in its place."""
        call_graph, first = self.bodies.call_graph, found[0]
        name = reference.partition(":")[2]
        owner = name.split(".")[-2]
        kept = all(each.frozen for each in found)
        file = "" if kept else call_graph.assigned(first.name, call_graph.target.source, owner)
        if file and not all(each.as_written for each in found):
            self.why[called] = (
                self.why.get(called)
                or call_graph.why.get(called)
                or (
                    f"{file} assigns `.{first.name}` (or calls `setattr`), so an object may "
                    f"have another one than `{name}` ({shown(first, self.session.directory)})"
                )
            )
        else:
            self._take(called, caller, reference, by_value=by_value, replaceable=bool(file))

    def _made(self, called: str, caller: Body, found: Sequence[protocol.Callee]) -> bool:
        """Whether what is `called` is an object of a library, or of one, that is made of functions, once."""
        home, call_graph = self.bodies.homes[caller.scope.index], self.bodies.call_graph
        if len(found) != 1 or is_users(found[0].path):
            return False
        if not call_graph.learn_made(called, home, found[0].kept, found[0].type):
            self.why |= {called: call_graph.why[called]} if called in call_graph.why else {}
            return False
        name = called.partition(".")[0]
        for each in call_graph.calls(home):
            if each.partition(".")[0] == name:
                self.bodies.open(each, caller)
        return True

    def _learn_function(self, called: str, caller: Body, found: protocol.Callee) -> None:
        """Take a function of a module for what `called` is, a value that holds it."""
        call_graph = self.bodies.call_graph
        where = shown(found, self.session.directory)
        nested = "<locals>" in found.qualname
        reference = f"{found.module}:{found.qualname.replace('.<locals>', '')}"
        if (
            found.alone
            and nested
            and where
            and call_graph.is_beside(reference, called, self.bodies.homes[caller.scope.index])
        ):
            self._take(called, caller, reference)
            return
        if not where or not found.importable or nested or self._in_another_script(found):
            self.why[called] = self._reason(called, [found])
            return
        if not call_graph.gives_back(reference, found.line):
            self.why[called] = f"`{found.qualname}` has a decorator that is not known ({where})"
            return
        if is_method(found):
            self._take_method(called, caller, reference, [found], by_value=True)
        else:
            self._take(called, caller, reference, unbound=True)

    def _take(
        self,
        called: str,
        caller: Body,
        reference: str,
        *,
        unbound: bool = False,
        by_value: bool = False,
        replaceable: bool = False,
    ) -> None:
        """Have `called` stand for a function from now on, where that can be read."""
        home, call_graph = self.bodies.homes[caller.scope.index], self.bodies.call_graph
        if call_graph.callees.get((spot(home), called)) is None:
            call_graph.learn(
                Callee(
                    spot(home),
                    called,
                    reference,
                    unbound=unbound,
                    by_value=by_value,
                    replaceable=replaceable,
                )
            )
            call_graph.find(called, home)
        if called in call_graph.why:
            self.why[called] = call_graph.why[called]

    def _in_another_script(self, found: protocol.Callee) -> bool:
        """Whether it stands in the program that is run, and that is not the target's file."""
        return found.module == "__main__" and found.path != str(self.bodies.call_graph.target.source.path)

    def _reason(self, called: str, found: Sequence[protocol.Callee]) -> str:
        """Why what is `called`, and was seen to be what was `found`, cannot be looked into."""
        return self.bodies.call_graph.why.get(called) or reason(found, self.session.directory)

    def _scope(self, found: protocol.Callee) -> int | None:
        """The scope of a function that was seen, taken into the tables where a name leads to it."""
        if found.scope is not None:
            return int(found.scope)
        outer, inner, _ = found.qualname.partition(".<locals>")
        body = self._open_named(found.path, outer)
        if body is None and inner:
            body = self._open_seen(found.path, outer)
        if body is None:
            return None
        return inner_scope(body, found) if inner else body.scope.index

    def _open_named(self, path: str, qualname: str) -> Body | None:
        """The body of a function that names lead to, through other functions, from what is looked into."""
        bodies, call_graph = self.bodies, self.bodies.call_graph
        ways: list[tuple[UserFunction, Body, tuple[str, ...]]]
        ways = [(bodies.homes[body.scope.index], body, ()) for body in bodies.bodies]
        met = {home.key for home, _, _ in ways}
        for caller, start, names in ways:  # grows while it is walked
            for called in call_graph.calls(caller):
                callee = call_graph.find(called, caller)
                if callee is None:
                    continue
                if (str(callee.source.path), callee.source.qualname) == (path, qualname):
                    return self._open_way(start, (*names, called))
                if callee.key not in met:
                    met.add(callee.key)
                    ways.append((callee, start, (*names, called)))
        return None

    def _open_seen(self, path: str, qualname: str) -> Body | None:
        """The body of a function that was seen where something is called: a value that holds it."""
        for (caller, called), found in list(self.seen.items()):
            if [(each.kind, each.path, each.qualname) for each in found] == [("function", path, qualname)]:
                by = next(body for body in self.bodies.bodies if body.scope.index == caller)
                opened = self.scopes(called, by)
                return next((body for body in self.bodies.bodies if body.scope.index in opened), None)
        return None

    def _open_way(self, body: Body, names: Sequence[str]) -> Body | None:
        """The body at the end of calls by these names, each looked into."""
        for called in names:
            scope = self.bodies.open(called, body)
            if scope is None:
                return None
            body = next(each for each in self.bodies.bodies if each.scope.index == scope)
        return body


def called_in(definition: ast.AST) -> Iterator[ast.Call]:
    """Every call in a function."""
    return (node for node in ast.walk(definition) if isinstance(node, ast.Call))


@functools.lru_cache(maxsize=1024)
def is_plain(text: str) -> bool:
    """Whether source is a name, with attributes and items of it, on one line: nothing is called in it."""
    if "\n" in text:
        return False
    node: ast.AST = parsed_expression(text)
    if isinstance(node, ast.Name):
        return True
    parts = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context, ast.UnaryOp, ast.USub)
    return isinstance(node, ast.Attribute | ast.Subscript) and all(
        isinstance(each, parts) for each in ast.walk(node)
    )


@functools.lru_cache(maxsize=1024)
def is_made(text: str) -> bool:
    """Whether source calls something plain, to make what is called: ``make_loss(batch)``, ``Loss(w).of``."""
    node: ast.AST = parsed_expression(text)
    made = node.value if isinstance(node, ast.Attribute) else node
    return isinstance(made, ast.Call) and is_plain(ast.unparse(made.func))


def inner_scope(body: Body, found: protocol.Callee) -> int | None:
    """The scope in a body of a function inside it that was seen; a lambda is known by its line alone."""
    is_lambda = found.name == "<lambda>"
    rows = [
        scope
        for node, scope in body.scope_nodes.items()
        if isinstance(node, cst.Lambda) == is_lambda and (is_lambda or scope.name == found.name)
    ]
    # Python counts the lines of a function from its decorators on.
    rows = [scope for scope in rows if scope.span.line >= found.line]
    first = [scope for scope in rows if scope.span.line == min(each.span.line for each in rows)]
    if len(first) != 1 or (is_lambda and first[0].span.line != found.line):
        return None
    return first[0].index


def is_method(found: protocol.Callee) -> bool:
    """Whether it is a method that a value holds with its object, and not a copy of one."""
    return found.bound and found.scope is None and "." in found.qualname.rpartition("<locals>.")[2]


def shown(found: protocol.Callee, directory: Path) -> str:
    """``losses.py:3`` of a function of the user's; ``""`` of an installed one."""
    if not (is_users(found.path) and Path(found.path).is_file()):
        return ""
    return f"{shown_file(found.path, directory)}:{found.line}"


def reason(found: Sequence[protocol.Callee], directory: Path) -> str:
    """Why what was seen cannot be looked into; ``""`` where none of it is the user's."""
    several = dict.fromkeys(each.qualname for each in found if each.importable and shown(each, directory))
    if len(several) > 1:
        return f"it is {' and '.join(f'`{each}`' for each in several)}, in one call and the next"
    for each in found:
        if each.kind == "other" and each.path and not is_users(each.path):
            continue
        if each.kind == "other":
            what = f"a `{each.type}`"
            return f"it is {what}" + (f" around `{each.wrapped}` and may do more" if each.wrapped else "")
        where = shown(each, directory)
        if where:
            name = each.qualname.replace(".<locals>", "")
            if name.endswith("<lambda>"):
                return f"it is a lambda ({where}); written with `def` it could be copied"
            return f"it is `{name}` ({where}), which no module or class holds under that name"
    return ""
