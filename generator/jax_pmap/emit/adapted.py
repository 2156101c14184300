"""The user's functions that an emitted file carries, with collectives in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from jax_pmap.emit.function import Intercepted
from jax_pmap.emit.names import Names
from jax_pmap.emit.namespace import Bound, Namespace, bound_by_target, brought
from jax_pmap.emit.places import Body, inside, place
from jax_pmap.emit.source import wrapped_f_string
from jax_pmap.emit.weave import aliased, inside_of, name_node, weave, with_first
from jax_pmap.model import Callee, Guard, Plan, Source, Sync
from jax_pmap.reading.decorators import decorated
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.target import Target
from jax_pmap.syntax.text import function_text

if TYPE_CHECKING:
    import libcst as cst

    from jax_pmap.emit.callees import UserFunction


@dataclass(frozen=True, slots=True)
class Substitute:
    """What stands in a copy for a carried function."""

    name: str
    #: Source of the object that is its first argument: of a method that became a function.
    receiver: str = ""
    #: Source of what stands there in place of its name: ``hk.transform(loss).apply``.
    made: str = ""
    #: Of a function that a value holds: source of the value, and the original's name.
    given: str = ""
    original: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is the name of the copy, and nothing else."""
        return not (self.receiver or self.made or self.given)

    def within(self, aliases: Mapping[str, str]) -> Substitute:
        """What stands in a copy that has other names for what its function reads."""
        return replace(self, receiver=aliased(self.receiver, aliases), given=aliased(self.given, aliases))

    def source(self, names: Names) -> str:
        """As an expression, in a file that has these names."""
        if self.made:
            return self.made
        if self.given:
            return f"{names.in_place_of}({self.given}, {self.original}, {self.name})"
        return f"{names.functools}.partial({self.name}, {self.receiver})" if self.receiver else self.name


@dataclass(frozen=True, slots=True)
class Adapted:
    """A function of the user's that the emitted file carries."""

    function: UserFunction
    body: Body
    syncs: tuple[Sync, ...]
    #: Branches of it that no input took.
    guards: tuple[Guard, ...]
    #: What stands for carried functions it calls by other names than those of the copies.
    renames: Mapping[str, Substitute]
    #: Names of what it reads of its module, where the file that carries it has another thing under these.
    aliases: Mapping[str, str]
    #: Import statements for what it reads of its module, in the file that carries it.
    imports: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the copy is called."""
        return self.function.name

    @property
    def facts(self) -> FunctionFacts:
        """What was read of it."""
        return self.function.facts

    @property
    def source(self) -> Source:
        """The file it stands in."""
        return self.function.source

    def woven(self, names: Names, renames: Mapping[str, Substitute]) -> cst.FunctionDef:
        """The copy, still under its own name, with `renames` for carried functions it calls."""
        own = {called: substitute.within(self.aliases) for called, substitute in renames.items()}
        # A copy is meant where its name is not called, too.
        copies = {
            called: substitute.name
            for called, substitute in own.items()
            if called.isidentifier() and substitute.is_plain
        }
        aliases = {**self.aliases, **copies}
        made = woven_with(names, self.body, self.syncs, own, self.guards, aliases=aliases)
        of_objects = not self.function.by_value or self.function.replaceable
        checked = self.function.owner and not self.function.library and of_objects
        if self.function.makes:
            made = with_first(made, f'"""`{self.function.makes}` anew, of the functions of this file."""')
        return with_first(made, self._check()) if checked else made

    @property
    def owner(self) -> str:
        """Source of the class of a method that running has shown, in the file that carries it."""
        return aliased(self.function.owner, self.aliases)

    @property
    def decorators(self) -> list[str]:
        """The lines of the decorators that the copy keeps."""
        return [f"@{aliased(each[1:], self.aliases)}" for each in decorated(self.facts)]

    def _check(self) -> str:
        """The statement that rejects objects whose method is another one."""
        name, receiver = f".{self.facts.name}", self.facts.receiver
        method = f"{self.owner}{name}"
        # Of a class method each look-up makes an object of its own.
        function = ".__func__" if self.facts.is_class_method else ""
        its_class = receiver if self.facts.is_class_method else f"type({receiver})"
        as_written = " as its class defines it" if self.function.replaceable else ""
        said = f"`{{{its_class}.__name__}}{name}` is not `{method}`{as_written}, which this code was proved "
        said += "with; to allow it, generate again with inputs that use it"
        lines = re.sub(r'" (?=f?")', '"\n        ', wrapped_f_string(said))
        test = f"if {its_class}{name}{function} is not {method}{function}:"
        if self.function.replaceable:
            # An object may have one of its own, which is not asked for where Python itself calls a method.
            quoted, special = f'"{self.facts.name}"', self.facts.name.startswith("__")
            own = "" if special else f'{quoted} in getattr({receiver}, "__dict__", ())'
            compiled = [each.name for each in self.facts.decorators] == ["jax.jit"]
            plain = f"{method}.__wrapped__" if compiled else method
            found = f"({plain}.__module__, {plain}.__qualname__, {plain}.__code__.co_name)"
            written = f'({self.owner}.__module__, f"{{{self.owner}.__qualname__}}{name}", {quoted})'
            # What merely says that it wraps the method may do something else.
            wrapped = f'type({method}).__name__ != "PjitFunction"' if compiled else ""
            tests = [f"{its_class}{name} is not {method}", own, wrapped, f"{found} != {written}"]
            test = f"if {' or '.join(filter(None, tests))}:"
        return f"{test}\n    raise TypeError(\n        {lines}\n    )"

    def definition(self, names: Names) -> str:
        """Source of the copy, in a file that has these names."""
        woven = self.woven(names, self.renames)
        made = self.body.definition(woven.with_changes(name=name_node(self.name)))
        return "\n".join([*self.decorators, made])


def is_substituted(renames: Mapping[str, Substitute], adapted: Sequence[Adapted]) -> bool:
    """Whether a copy stands in for a function that a value holds."""
    every = [renames, *(other.renames for other in adapted)]
    return any(substitute.given for each in every for substitute in each.values())


def intercepted(
    adapted: Sequence[Adapted], copies: Mapping[str, str] | None = None
) -> tuple[Intercepted, ...]:
    """The methods of modules that have copies, under their own names or those of `copies`."""
    return tuple(
        Intercepted(
            each.function.library,
            f"{each.owner}.{each.facts.name}",
            each.name if copies is None else copies[each.name],
        )
        for each in adapted
        if each.function.library
    )


def woven_with(
    names: Names,
    body: Body,
    syncs: Sequence[Sync],
    renames: Mapping[str, Substitute],
    guards: Sequence[Guard] = (),
    result: str = "result",
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> cst.FunctionDef:
    """A function with collectives in it, for a file that has these names; see `weave`."""
    return weave(
        body,
        syncs,
        guards,
        names,
        result=result,
        renames={called: substitute.source(names) for called, substitute in renames.items()},
        aliases=aliases,
    )


def woven_target(
    target: Target,
    plan: Plan,
    syncs: Sequence[Sync],
    adapted: Sequence[Adapted],
    names: Names,
    renames: Mapping[str, Substitute],
    result: str,
) -> tuple[Body, cst.FunctionDef]:
    """The target's body, and the target with those of the syncs in it that no adapted function has."""
    body = Body(function_text(target.parsed))
    elsewhere = {sync for other in adapted for sync in other.syncs}
    here = [sync for sync in syncs if sync not in elsewhere]
    return body, woven_with(names, body, here, renames, inside_of(body, plan.guards), result)


def adapted_callees(
    target: Target,
    syncs: Sequence[Sync],
    guards: Sequence[Guard] = (),
    callees: Sequence[Callee] = (),
    bound: Bound | None = None,
) -> tuple[list[Adapted], Mapping[str, Substitute]]:
    """The functions that syncs or guards outside the target stand in, and those that call them.

    `callees` are methods that running the target has shown; `bound` is what names stand for in the file that
    the copies go into, which is one of the target's own where that is None. A function comes before its
    callers. With them, what stands for those that the target calls by other names.
    """
    outermost = Body(function_text(target.parsed))
    here = place(outermost.scope.span)
    own = target.source.shown_path
    spans = [*(sync.span for sync in syncs), *(guard.span for guard in guards)]
    if all(span.file == own and inside(place(span), here) for span in spans):
        return [], {}
    # Most functions need none of it.
    from jax_pmap.emit.callees import CallGraph, renamed

    call_graph = CallGraph(target, callees)
    namespace = Namespace(bound_by_target(target) if bound is None else bound)
    out: list[Adapted] = []
    seen: list[UserFunction] = [call_graph.origin]

    def carried(found: UserFunction) -> Adapted | None:
        if any(found.is_same(other) for other in seen):
            return next((other for other in out if found.is_same(other.function)), None)
        seen.append(found)
        body = Body(function_text(found.parsed))
        within = tuple(inside_of(body, syncs))
        unseen = tuple(inside_of(body, guards))
        renames, calls, leads = look(found)
        if not (within or unseen or leads):
            return None
        is_here = found.source.path == target.source.path
        known = call_graph.find(found.name, call_graph.origin)
        named = (is_here and not (found.detached or found.by_value or found.makes)) or (
            known and found.is_same(known)
        )
        if not named:
            found = replace(found, name=namespace.copy(found))
        if not found.is_apart:
            # Of what calls itself.
            calls.add(found.facts.name)
            if found.name != found.facts.name:
                renames[found.facts.name] = Substitute(found.name)
        aliases = {} if is_here else namespace.aliases(found, calls)
        imports = () if is_here else tuple(brought(found, aliases, calls))
        out.append(Adapted(found, body, within, unseen, renames, aliases, imports))
        return out[-1]

    def look(caller: UserFunction) -> tuple[dict[str, Substitute], set[str], bool]:
        """What stands for carried functions, the names that only mean such, and whether there are any."""
        namespace.enter(caller)
        renames: dict[str, Substitute] = {}
        names: set[str] = set()
        leads = False
        for called in call_graph.calls(caller):
            found = call_graph.find(called, caller)
            other = carried(found) if found is not None else None
            if other is None:
                continue
            leads = True
            # One that is called by two names is carried under the first.
            transformed, found = call_graph.transformed(called, caller), other.function
            if found.library:
                continue
            if transformed is not None:
                renames[called] = Substitute(
                    found.name, made=aliased(transformed.around(found.name), other.aliases)
                )
            elif found.makes:
                renames[called] = Substitute(found.name, made=found.made(called, found.name))
            elif found.by_value:
                original = aliased(found.qualified, other.aliases)
                renames[called] = Substitute(found.name, given=called, original=original)
            elif found.detached:
                receiver = call_graph.receiver(called, caller)
                renames[renamed(called, receiver)] = Substitute(found.name, receiver)
            else:
                names.add(called)
                if called != found.name or found.method_of:
                    renames[called] = Substitute(found.name)
        return renames, names, leads

    renames, _, _ = look(call_graph.origin)
    return out, renames
