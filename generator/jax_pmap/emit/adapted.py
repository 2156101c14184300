"""The user's functions that an emitted file carries, with collectives in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax_pmap.emit.function import Intercepted
from jax_pmap.emit.names import Names
from jax_pmap.emit.places import Body, inside, place
from jax_pmap.emit.source import wrapped_f_string
from jax_pmap.emit.weave import inside_of, name_node, weave, with_first
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
    #: What stands for carried functions it calls as ``module.name``.
    renames: Mapping[str, Substitute]

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
        made = woven_with(names, self.body, self.syncs, renames, self.guards)
        checked = self.function.owner and not self.function.library
        return with_first(made, self._check()) if checked else made

    def _check(self) -> str:
        """The statement that rejects objects whose method is another one."""
        name, receiver = f".{self.facts.name}", self.facts.receiver
        method = f"{self.function.owner}{name}"
        said = f"`{{type({receiver}).__name__}}{name}` is not `{method}`, which this code was proved with; "
        said += "to allow it, generate again with inputs that use it"
        lines = re.sub(r'" (?=f?")', '"\n        ', wrapped_f_string(said))
        return f"if type({receiver}){name} is not {method}:\n    raise TypeError(\n        {lines}\n    )"

    def definition(self, names: Names) -> str:
        """Source of the copy, in a file that has these names."""
        woven = self.woven(names, self.renames)
        made = self.body.definition(woven.with_changes(name=name_node(self.name)))
        return "\n".join([*decorated(self.facts), made])


def is_substituted(renames: Mapping[str, Substitute], adapted: Sequence[Adapted]) -> bool:
    """Whether a copy stands in for a function that a value holds."""
    every = [renames, *(other.renames for other in adapted)]
    return any(stand.given for each in every for stand in each.values())


def intercepted(
    adapted: Sequence[Adapted], copies: Mapping[str, str] | None = None
) -> tuple[Intercepted, ...]:
    """The methods of modules that have copies, under their own names or those of `copies`."""
    return tuple(
        Intercepted(
            each.function.library,
            f"{each.function.owner}.{each.facts.name}",
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
) -> cst.FunctionDef:
    """A function with collectives in it, for a file that has these names; see `weave`."""
    return weave(
        body,
        syncs,
        guards,
        axis=names.axis,
        result=result,
        jax=names.jax,
        renames={called: stand.source(names) for called, stand in renames.items()},
        own_share=names.own_share,
        own_size=names.own_size,
        gather_joined=names.gather_joined,
        own_draws=names.own_draws,
        unseen=names.unseen,
        parts=(names.gathered, names.scattered),
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
    target: Target, syncs: Sequence[Sync], guards: Sequence[Guard] = (), callees: Sequence[Callee] = ()
) -> tuple[list[Adapted], Mapping[str, Substitute]]:
    """The functions that syncs or guards outside the target stand in, and those that call them.

    `callees` are methods that running the target has shown. A function comes before its callers. With them,
    what stands for those that the target calls as ``module.name``.
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
    out: list[Adapted] = []
    seen: list[UserFunction] = [call_graph.origin]

    def carried(found: UserFunction) -> bool:
        if any(found.is_same(other) for other in seen):
            return any(found.is_same(other.function) for other in out)
        seen.append(found)
        body = Body(function_text(found.parsed))
        within = tuple(inside_of(body, syncs))
        unseen = tuple(inside_of(body, guards))
        renames, calls = look(found)
        if within or unseen or calls:
            out.append(Adapted(found, body, within, unseen, renames))
        return bool(within or unseen or calls)

    def look(caller: UserFunction) -> tuple[dict[str, Substitute], bool]:
        renames: dict[str, Substitute] = {}
        calls = False
        for called in call_graph.calls(caller):
            found = call_graph.find(called, caller)
            if found is not None and carried(found):
                calls = True
                # One that is called by two names is carried under the first.
                found = next(other.function for other in out if other.function.is_same(found))
                held = call_graph.transformed(called, caller)
                if found.library:
                    continue
                if held is not None:
                    renames[called] = Substitute(found.name, made=held.around(found.name))
                elif found.by_value:
                    renames[called] = Substitute(found.name, given=called, original=found.facts.name)
                elif found.detached:
                    receiver = call_graph.receiver(called, caller)
                    renames[renamed(called, receiver)] = Substitute(found.name, receiver)
                elif called != found.name or found.method_of:
                    renames[called] = Substitute(found.name)
        return renames, calls

    renames, _ = look(call_graph.origin)
    return out, renames
