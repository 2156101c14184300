"""What names stand for in the file that copies of functions go into, and what copies call things there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from jax_pmap.emit.imports import import_statement
from jax_pmap.emit.names import ALIASES, Imported, bindings
from jax_pmap.model import Source
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.target import Target
from jax_pmap.worker.scopes import ALWAYS_THERE, names_of_its_own

if TYPE_CHECKING:
    from jax_pmap.emit.callees import UserFunction

#: What everybody calls a module.
CUSTOMARY = {**{meant: alias for alias, meant in ALIASES.items()}, Imported("jax.numpy"): "jnp"}
#: What each name of a file may stand for, in any of its scopes; of no module where it is not imported.
Bound = Mapping[str, Collection[Imported]]


class Namespace:
    """Names that are taken, and what for; each new one is a name for one thing."""

    def __init__(self, bound: Bound) -> None:
        self._bound = {name: set(meant) for name, meant in bound.items()}
        #: Names that functions bind which call others.
        self._local: set[str] = set()

    def enter(self, caller: UserFunction) -> None:
        """Give no copy the name of what a function that may call it has of its own."""
        self._local |= names_of_its_own(caller.parsed.definition)

    def copy(self, found: UserFunction) -> str:
        """A name for a copy of a function."""
        name = found.name
        if name in self._bound or name in self._local:
            name = f"{found.source.module.rpartition('.')[2]}_{name}"
        while name in self._bound or name in self._local:
            name += "_"
        self._bound[name] = {Imported("", name)}
        return name

    def aliases(self, found: UserFunction, carried: Collection[str]) -> dict[str, str]:
        """Other names for what a function of another file reads there and is not `carried` along."""
        own = names_of_its_own(found.parsed.definition)
        rows = needed(found.source, found.facts).items()
        named = {name: self._name(name, what, own) for name, what in rows if name not in carried}
        return {name: other for name, other in named.items() if name != other}

    def _name(self, wanted: str, what: Imported, own: Collection[str]) -> str:
        """`wanted` where it stands for `what` or for nothing yet; else a name that does, or a new one.

        The function that uses it has `own` names, which stand for something else.
        """
        known = (name for name, meant in self._bound.items() if meant == {what})
        for name in [wanted, *known, *filter(None, [CUSTOMARY.get(what)])]:
            if name not in own and self._bound.setdefault(name, {what}) == {what}:
                return name
        name = "_".join(what.dotted.split(".")[-2:])
        if (what.attribute or "").isupper():
            name = name.upper()  # A constant is called like one.
        while name in self._bound or name in own or name in ALWAYS_THERE:
            name += "_"
        self._bound[name] = {what}
        return name


def bound_by_target(target: Target) -> dict[str, set[Imported]]:
    """What the names stand for that the file emitted for a target may have of its module."""
    found = {name: {Imported("", name)} for name in target.facts.taken_names}
    found |= {(mapped := f"p_{target.facts.name}"): {Imported("", mapped)}}
    own = names_of_its_own(target.parsed.definition)
    for name, rows in target.parsed.top.imported.items():
        if name not in own:
            found[name] = {bindings(row.statement)[name] for row in rows}
    return found


def needed(source: Source, facts: FunctionFacts) -> dict[str, Imported]:
    """What the names stand for that a function reads of its module."""
    found = {row.name: bindings(row.statement)[row.name] for row in facts.imported if not row.typing_only}
    return found | {name: Imported(source.module, name) for name in facts.found_in_module}


def brought(found: UserFunction, aliases: Mapping[str, str], carried: Collection[str]) -> list[str]:
    """Import statements for what a function reads of its module and is not `carried` along."""
    rows = {row.statement: row.name for row in found.facts.imported if not row.typing_only}
    rows |= {f"from {found.source.module} import {name}": name for name in found.facts.found_in_module}
    return [
        import_statement(bindings(statement)[name], aliases[name]) if name in aliases else statement
        for statement, name in rows.items()
        if name not in carried
    ]
