"""A function ready to be emitted."""

from __future__ import annotations

from dataclasses import dataclass

from jax_pmap.emit.names import Names, names_for
from jax_pmap.emit.remainder import Remainder
from jax_pmap.emit.source import assigned_names
from jax_pmap.reading.facts import Parameter


@dataclass(frozen=True, slots=True)
class Intercepted:
    """A method of a module that a copy runs in place of, wherever the library runs it."""

    #: ``"flax.linen"``, ``"haiku"``.
    library: str
    #: Its source, ``"Centre.__call__"``, and the name of the copy.
    method: str
    copy: str


@dataclass(frozen=True, slots=True)
class EmitUnit:
    """A function with its signature as written and its body woven, and what it needs around it."""

    name: str
    parameters: tuple[Parameter, ...]
    #: Source of the return annotation.
    returns: str | None
    #: Source of the docstring, quotes and all.
    docstring: str | None
    #: Dedented source of the body behind the docstring, collectives woven in (for the
    #: backends that need them), comments kept.
    body: str
    #: Import statements that body, defaults and annotations need, outside the user's modules.
    imports: tuple[str, ...] = ()
    #: (module, names) pairs to import from the user's modules.
    user_imports: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: The statements that take what the function holds of the one that made it from the user's object.
    enclosed: str = ""
    #: Source of definitions copied into the file, in order.
    definitions: tuple[str, ...] = ()
    #: Every name the user's module binds or the function uses.
    taken_names: frozenset[str] = frozenset()
    #: Names of modules that the body binds itself, so that it needs ours by other names.
    shadowed: frozenset[str] = frozenset()
    #: Helpers asked for: ``"place"``, ``"devices"``.
    helpers: tuple[str, ...] = ()
    #: (name, source of the arguments) of what `partial` makes of the function; None where nothing does.
    bound: tuple[str, str] | None = None
    #: How an uneven batch is made even; None: it is an error.
    remainder: Remainder | None = None
    #: Whether it runs in several processes, each with its own rows.
    processes: bool = False
    #: Whether its mesh has jax's explicit axes, by which shardings are a part of the types of arrays.
    explicit: bool = False
    #: Modules that `definitions` were copied from: nothing is imported from them.
    copied_from: frozenset[str] = frozenset()
    #: The user's module that is imported before the others, which it puts the folders of on ``sys.path``.
    first: str = ""
    #: Settings of jax that the target's module makes when it is imported, where the file does not import it.
    settings: tuple[tuple[str, str], ...] = ()
    #: The file whose settings they are.
    set_by: str = ""
    #: Whether copies stand in for functions that values hold.
    is_substituted: bool = False
    #: Whether something is kept of one microbatch, beside the sums of all.
    keeps: bool = False
    #: Methods of modules that copies stand in for while the mapped function runs.
    intercepted: tuple[Intercepted, ...] = ()
    #: The names to use where the code goes into a file that has names of its own.
    chosen_names: Names | None = None

    @property
    def names(self) -> Names:
        """The names of the emitted file; weaving the body must have used the same."""
        if self.chosen_names is not None:
            return self.chosen_names
        defined = {name for source in (self.enclosed, *self.definitions) for name in assigned_names(source)}
        from_user = {name for _, names in self.user_imports for name in names}
        return names_for(
            self.name,
            self.taken_names,
            imports=self.imports,
            bound=sorted(defined | from_user | {p.name for p in self.parameters} | self.shadowed),
        )
