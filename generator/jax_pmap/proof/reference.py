"""A reference that may be parallel itself: the object by its name, and how that is called."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from jax_pmap.locate import locate_object, object_span
from jax_pmap.model import Refusal, RefusalError, Request, Source
from jax_pmap.problems import Answer, WorkerProblem, error_span, first_line
from jax_pmap.proof.layouts import layout_words
from jax_pmap.reading.decorators import MAPPERS, SHARD_MAPS
from jax_pmap.reading.target import Target
from jax_pmap.session import Session

Found = Mapping[int, Sequence[Answer]]


class Reference:
    """The object that the reference's name stands for, called as its own callers call it.

    The function that it maps over devices, which `target` is, says what one device returns.
    """

    def __init__(self, target: Target, request: Request, layout: str | None) -> None:
        self.target, self.request, self.layout = target, request, layout
        #: None where only a run of the program has it.
        self.source: Source | None = None
        #: Whether it runs on several devices itself.
        self.parallel = False
        #: Device counts that it does not run on, with the reason.
        self.unable: dict[int, str] = {}
        if request.run is None:
            with contextlib.suppress(RefusalError):
                self.source = locate_object(request.target, request.directory)

    @property
    def name(self) -> str:
        """What it is called."""
        return (self.source or self.target.source).qualname

    @property
    def mapped(self) -> bool:
        """Whether its text says that it is mapped over devices."""
        binding = self.target.source.binding
        names = {each.name for each in self.target.facts.decorators}
        names |= {name for name, _, _ in binding.calls} if binding else set()
        return bool(names & (MAPPERS | SHARD_MAPS))

    def calls(
        self, session: Session, devices: int, question: Answer, layouts: list[dict[str, str]] | None
    ) -> list[Answer]:
        """How calls on so many devices end, in some layouts or in all, up to the first that runs."""
        assert self.source is not None
        try:
            answer = session.ask(
                "try_reference",
                f"calling `{self.source.qualname}` on {devices} devices",
                **{**question, "reference": self._object(), "count": devices, "layouts": layouts},
            )
        except WorkerProblem as problem:
            if problem.kind not in ("import", "inputs"):
                raise
            return []
        tried: list[Answer] = answer["tried"]
        return tried

    def _object(self) -> Answer:
        assert self.source is not None
        source = self.source
        return {
            "path": str(source.path),
            "module": source.module,
            "root": str(source.root),
            "name": source.qualname,
        }

    def chosen(self, found: Found) -> dict[str, str] | None:
        """The layout in which it runs on most device counts; of some that run on as many, the first."""
        counts: dict[str, int] = {}
        layouts: dict[str, dict[str, str]] = {}
        for calls in found.values():
            for each in calls:
                if each["ends"] == "runs":
                    key = repr(each["layout"])
                    layouts[key] = each["layout"]
                    counts[key] = counts.get(key, 0) + 1
        return layouts[max(counts, key=lambda key: counts[key])] if counts else None

    def found(self, found: Found, layout: Mapping[str, str] | None) -> Answer | None:
        """What a request says of a reference that is called in `layout`; None where it is not parallel.

        Raises:
            RefusalError: JP021, it is parallel and cannot be called.
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
        if not any(each is not None and each["mapped"] for each in ran.values()):
            return None
        self.parallel = True
        self.unable = {
            count: f"not on {count} devices: `{self.name}` does not run there"
            for count, each in ran.items()
            if each is None
        }
        return {**self._object(), "layout": dict(layout or {}), "named": one["named"]}

    def _not_called(self, found: Found) -> Refusal:
        """Why it could not be called."""
        assert self.source is not None
        said: dict[str, str] = {}
        first: Answer = {}
        for calls in found.values():
            for each in calls:
                error = each.get("error", {})
                first = first or error
                why = (
                    f"{error['type']}: {first_line(error['message'])}" if error else "results of another form"
                )
                said.setdefault(layout_words(each["layout"]), why)
        shown = [f"{words}: {why}" for words, why in list(said.items())[:4]]
        return Refusal(
            "JP021",
            f"`{self.source.qualname}`, the reference, fails in every way of calling it that was tried",
            "Give inputs as one device takes them, and say how it is called: --against-layout "
            "drop-in|stacked|batch, or --against-layout NAME=devices,…",
            error_span(first, self.request.directory, self.target.source) or object_span(self.source),
            ("\n".join(shown),),
        )


def runs_in(call: Answer, layout: Mapping[str, str]) -> bool:
    """Whether a call is one in `layout`, and ran."""
    return bool(call["ends"] == "runs" and call["layout"] == layout)
