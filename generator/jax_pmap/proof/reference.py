"""A reference that may be parallel itself: the object by its name, and how that is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jax_pmap.inputs.module import module_of
from jax_pmap.locate import as_others_import, locate, locate_object, object_span
from jax_pmap.model import Binding, Refusal, RefusalError, Request, Source, Span
from jax_pmap.problems import error_line, error_span
from jax_pmap.proof.layouts import layout_words
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.syntax.library import MAPPERS, SHARD_MAPS
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Call, Layout, Problem, unless

Found = Mapping[int, Sequence[Call]]


def locate_reference(request: Request, session: Callable[[], Session]) -> tuple[Source, RefusalError | None]:
    """The function that the reference's name stands for, through what compiles it or maps it over devices.

    What reading does not follow, as ``p_step = parallelised(step)``, is imported, and looked into. What else
    is done on the way to that function is not known: it says of what form results are, and the refusal that
    comes with it holds unless the object is parallel.

    Raises:
        RefusalError: as `locate` does.
    """
    try:
        named = locate(request.target, request.directory, mapped=True)
        return as_others_import(named, request), None
    except RefusalError as error:
        found = None if request.run is not None else _behind(request, session)
        if found is None:
            raise error from None
        return found, error


def _behind(request: Request, session: Callable[[], Session]) -> Source | None:
    """The function that an object calls in the end, where that has a place in a file."""
    try:
        made = locate_object(request.target, request.directory)
        behind = session().ask(protocol.FindBehind(object_of(made)), f"importing `{made.shown_path}`")
        if behind is None:
            return None
        found = locate("::".join(behind), request.directory)
    except (RefusalError, Problem):
        return None
    text = f"{made.qualname} of {made.shown_path}"
    span = object_span(made) or Span(made.shown_path, 1)
    live = found.path == made.path
    binding = Binding(made.qualname, text, span, live=live)
    return replace(found, target=request.target, binding=binding)


def object_of(source: Source, made: protocol.Made | None = None) -> protocol.Object:
    """An object that is imported, or that a program has `made`, as the worker is told of it."""
    return protocol.Object(module_of(source), source.qualname, made)


class Reference:
    """The object that the reference's name stands for, called as its own callers call it.

    The function that it maps over devices, which `target` is, says what one device returns.
    """

    def __init__(
        self, target: Target, request: Request, layout: str | None, unknown: RefusalError | None = None
    ) -> None:
        self.target, self.request, self.layout = target, request, layout
        #: Why it is no reference on one device, where it was imported to be found.
        self.unknown = unknown
        #: None where only a run of the program has it.
        self.source: Source | None = None
        #: Whether it runs on several devices itself, and how it is called then.
        self.parallel = False
        self.called: Mapping[str, str] = {}
        #: Device counts that it does not run on, with the reason.
        self.unable: dict[int, str] = {}
        if request.run is None:
            with contextlib.suppress(RefusalError):
                made = locate_object(request.target, request.directory)
                self.source = as_others_import(made, request)

    @property
    def name(self) -> str:
        """What it is called."""
        return (self.source or self.target.source).qualname

    @property
    def mapped(self) -> bool:
        """Whether its text says that it is mapped over devices, or does not say what is made of it."""
        binding = self.target.source.binding
        names = {each.name for each in self.target.facts.decorators}
        names |= {name for name, _, _ in binding.calls} if binding else set()
        return bool(names & {*MAPPERS, *SHARD_MAPS}) or self.unknown is not None

    def calls(
        self, session: Session, devices: int, roles: protocol.Roles, layouts: tuple[Layout, ...] | None
    ) -> Sequence[Call]:
        """How calls on so many devices end, in some layouts or in all, up to the first that runs."""
        assert self.source is not None
        asked = protocol.TryReference(roles, object_of(self.source), devices, layouts)
        what = f"calling `{self.source.qualname}` on {devices} devices"
        answer = unless(("import", "inputs"), session.ask, asked, what)
        return () if answer is None else answer.tried

    def chosen(self, found: Found) -> Layout | None:
        """The layout in which it runs on most device counts; of some that run on as many, the first."""
        counts: dict[str, int] = {}
        layouts: dict[str, Layout] = {}
        for calls in found.values():
            for each in calls:
                if each.ends == "runs":
                    key = repr(each.layout)
                    layouts[key] = each.layout
                    counts[key] = counts.get(key, 0) + 1
        return layouts[max(counts, key=lambda key: counts[key])] if counts else None

    def found(self, found: Found, layout: Layout | None) -> protocol.Called | None:
        """What a request says of a reference that is called in `layout`; None where it is not parallel.

        Raises:
            RefusalError: JP021, it is parallel and cannot be called; what `locate` raised, where it is not
                parallel and had to be imported to be found.
        """
        ran = {
            count: next((each for each in calls if layout is not None and runs_in(each, layout)), None)
            for count, calls in found.items()
        }
        self.parallel = False
        one = next((each for each in ran.values() if each is not None), None)
        if one is None:
            if (self.mapped or self.layout is not None) and any(found.values()):
                raise RefusalError(self._not_called(found))
            return None
        if not any(each is not None and each.mapped for each in ran.values()):
            if self.unknown is not None:
                raise self.unknown
            return None
        assert self.source is not None
        self.parallel, self.called = True, dict(layout or {})
        self.unable = {
            count: f"not on {count} devices: `{self.name}` does not run there"
            for count, each in ran.items()
            if each is None
        }
        return protocol.Called(object_of(self.source), dict(layout or {}), one.named)

    def _not_called(self, found: Found) -> Refusal:
        """Why it could not be called."""
        assert self.source is not None
        said: dict[str, str] = {}
        first: protocol.Raised | None = None
        for calls in found.values():
            for each in calls:
                first = first or each.error
                why = error_line(each.error) if each.error is not None else "results of another form"
                said.setdefault(layout_words(each.layout), why)
        shown = [f"{words}: {why}" for words, why in list(said.items())[:4]]
        return Refusal(
            "JP021",
            f"`{self.source.qualname}`, the reference, fails in every way of calling it that was tried",
            "Give inputs as one device takes them, and say how it is called: --against-layout "
            "drop-in|stacked|batch, or --against-layout NAME=devices,…",
            error_span(first, self.request.directory, self.target.source) or object_span(self.source),
            ("\n".join(shown),),
        )


def runs_in(call: Call, layout: Layout) -> bool:
    """Whether a call is one in `layout`, and ran."""
    return bool(call.ends == "runs" and call.layout == layout)
