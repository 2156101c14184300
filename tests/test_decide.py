"""Which collectives follow from what a trace showed, decided from recorded answers: without jax.

``pytest --update-goldens`` records them anew, with a real worker.
"""

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from jax_pmap import model, pipeline
from jax_pmap.emit.callees import CallGraph
from jax_pmap.emit.places import Body
from jax_pmap.inputs.load import load
from jax_pmap.locate import locate
from jax_pmap.model import Refusal
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.observe import Observer
from jax_pmap.planning.roles import Roles
from jax_pmap.reading.target import read_target
from jax_pmap.syntax.text import function_text
from jax_pmap.worker.protocol import Request, encode

FOLDER = Path(__file__).parent / "decisions"
#: Of each function its arguments as `--arg` has them, those that hold the batch, and the collectives.
CASES = {
    "masked_mean": ("x=f32[24] mask=mask[24]", "x mask", ["psum total", "psum mask.sum()"]),
    "step": ("w=f32[3] x=f32[24,3] y=f32[24]", "x y", ["pmean loss", "pmean slope"]),
    "clipped": ("w=f32[3] x=f32[24,3] y=f32[24]", "x y", ["pmean slope"]),
    "weighted": (
        "w=f32[3] x=f32[24,3] weight=f32[24]>0",
        "x weight",
        ["psum weight.sum()", "psum jax.grad(error)(w)"],
    ),
    "judged": (
        "w=f32[3] x=f32[24,3] weight=f32[24]>0",
        "x weight",
        ["psum weight.sum()", "psum weight.sum()", "psum loss", "psum slope", "pmax (losses * weight).max()"],
    ),
    # Beside a penalty, the quotient is no part of a sum.
    "penalised": (
        "w=f32[3] x=f32[24,3] weight=f32[24]>0",
        "x weight",
        ["psum (losses * weight).sum()", "psum weight.sum()", "pmean jax.grad(error)(w)"],
    ),
    "descent": ("w=f32[3] x=f32[24,3] y=f32[24]", "x y", ["pmean slope"]),
    "scaled": ("x=f32[24,3]", "x", ["std jnp.std(x, axis=0)"]),
    "extremes": ("x=f32[24,3]", "x", ["pmin x.min()", "pmin x.min()", "pmax x.max()"]),
    "ranked": ("x=f32[24,3]", "x", ["all_gather x"]),
    "rows": ("x=f32[24,3]", "x", []),
    "shared": (
        "w=f32[3] x=f32[24,3] mask=mask[24]",
        "x mask",
        ["psum total", "psum mean", "psum rest", "psum slope"],
    ),
    # As without a map: one collective ahead of the loss, one behind it.
    "weighted_ensemble": (
        "w=f32[5,3] x=f32[24,3] weight=f32[24]>0",
        "x weight",
        ["psum weight.sum()", "psum loss", "psum slope"],
    ),
    "ensemble": ("w=f32[3,5] x=f32[24,3] y=f32[24]", "x y", ["pmean error", "pmean slope"]),
    "recurrent": (
        "w=f32[] x=f32[24,3] y=f32[24]",
        "x y",
        [
            "psum counted.sum()",
            "psum counted.sum()",
            "psum middle",
            "psum (state**2 * counted).sum()",
            "pmean jax.grad(of_states)(w, x, y)",
        ],
    ),
}


class Recorded:
    """A worker's answers, in the order in which they were given."""

    directory = FOLDER

    def __init__(self, path: Path, session: Any = None) -> None:
        self.path, self.session = path, session
        self.answers: list[Any] = [] if session is not None else json.loads(path.read_text(encoding="utf-8"))
        self.asked = 0

    def ask(self, request: Request[Any], doing: str) -> Any:
        if self.session is not None:
            self.answers.append(json.loads(encode(self.session.ask(request, doing))))
        self.asked += 1
        return request.read(self.answers[self.asked - 1])


@pytest.mark.parametrize("name", CASES)
def test_collectives_follow_from_what_a_trace_showed(name: str, update_goldens: bool) -> None:
    arguments, batch, wanted = CASES[name]
    request = model.Request(f"programs.py::{name}", directory=FOLDER, args=tuple(arguments.split()))
    target = read_target(locate(request.target, request.directory, request.instead), request)
    path = FOLDER / f"{name}.json"
    roles = Roles({argument: {0: 0} for argument in batch.split()}, (), frozenset(), {})

    def decided(session: Recorded) -> Observation | Refusal:
        body = Body(function_text(target.parsed))
        observer = Observer(
            session,  # type: ignore[arg-type]
            body,
            target.facts,
            "batch",
            lambda _: 4,
            lambda _: None,
            CallGraph(target),
        )
        return observer.observe(roles, {}, 8)

    if update_goldens:
        with pipeline.start(request) as worker:
            load(worker, target, request, lambda _: None)
            recorded = Recorded(path, worker)
            decided(recorded)
            text = json.dumps(recorded.answers, indent=1) + "\n"
            # Where packages are is the machine's affair.
            path.write_text(text.replace(sysconfig.get_path("purelib"), "site-packages"), encoding="utf-8")
    outcome = decided(Recorded(path))
    assert isinstance(outcome, Observation), outcome
    assert sorted(f"{sync.op} {sync.value}" for sync in outcome.syncs) == sorted(wanted)


def test_a_value_that_nothing_makes_whole_is_refused_where_it_stands() -> None:
    """The answers of a sort, its operand no share that could be gathered."""
    request = model.Request("programs.py::ranked", directory=FOLDER)
    target = read_target(locate(request.target, request.directory, request.instead), request)
    session = Recorded(FOLDER / "ranked.json")
    for event in session.answers[0]["events"]:
        for leaf in event["leaves"]:
            leaf["kind"] = "varying" if leaf["kind"].startswith("sharded") else leaf["kind"]
    observer = Observer(
        session,  # type: ignore[arg-type]
        Body(function_text(target.parsed)),
        target.facts,
        "batch",
        lambda _: 4,
        lambda _: None,
        CallGraph(target),
    )
    refusal = observer.observe(Roles({"x": {0: 0}}, (), frozenset(), {}), {}, 8)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "JP043"
    assert refusal.span is not None and refusal.span.line == 72
