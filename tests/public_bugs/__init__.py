"""Silent errors of data-parallel training that were reported in public, each as a right and a wrong function.

A file of `pairs/` holds `reference`, on one device, `inputs`, `right` and `wrong`; what stands below the
line ``# wrong`` belongs to the wrong one. Its docstring says where the error was reported, and its class.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jax_pmap import pipeline
from jax_pmap.model import Backend, Refusal, Request, Verified

PAIRS = Path(__file__).with_name("pairs")
#: What was found when this was last run: `python -m public_bugs --record`.
RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "public-bugs.md"
#: Between these lines of the page stands `table`.
BEGIN, END = "<!-- table of: make bugs -->\n", "<!-- end of table -->\n"
HEADER = re.compile(r'"""(.+?)\n\nsource: (\S+)\nclass: (.+?)\n"""', re.S)


@dataclass(frozen=True)
class Pair:
    """One error."""

    name: str
    title: str
    source: str
    kind: str
    path: Path


@dataclass(frozen=True)
class Found:
    """What the tool says of a pair; "proved", or the code of a refusal."""

    #: `verify` of the right function, and of the wrong one.
    right: str
    wrong: str
    #: What `verify` says of the wrong function.
    says: str
    #: Codes that `check` reports in the right function, and in the wrong one, without running anything.
    check_right: tuple[str, ...]
    check_wrong: tuple[str, ...]
    #: `gen` for the reference.
    gen: str

    @property
    def verified(self) -> bool:
        """Whether `verify` is right about both."""
        return self.right == "proved" and self.wrong == "JP045"


def pairs(names: Sequence[str] = ()) -> list[Pair]:
    """All of them, or those that are named, by class and name."""
    found = []
    for path in sorted(PAIRS.glob("*.py")):
        header = HEADER.match(path.read_text(encoding="utf-8"))
        assert header is not None, f"{path}: the docstring says no source and class"
        found.append(Pair(path.stem, header[1], header[2], header[3], path))
    unknown = set(names) - {pair.name for pair in found}
    if unknown:
        raise SystemExit(f"no such pair: {', '.join(sorted(unknown))}")
    return sorted((p for p in found if not names or p.name in names), key=lambda p: (p.kind, p.name))


class Judge:
    """Warm workers, one for each device count, that every pair is asked of."""

    def __init__(self) -> None:
        self.sessions: dict[int, pipeline.Session] = {}

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()

    def session(self, request: Request, devices: int) -> pipeline.Session:
        if devices not in self.sessions:
            self.sessions[devices] = pipeline._session(request, devices)
        else:
            self.sessions[devices].renew()
        return self.sessions[devices]

    def judge(self, pair: Pair) -> Found:
        """Ask `verify`, `check` and `gen`."""
        right, _ = self.verify(pair, "right")
        wrong, says = self.verify(pair, "wrong")
        found, below = checked(pair)
        return Found(right, wrong, says, found, below, self.gen(pair))

    def verify(self, pair: Pair, name: str) -> tuple[str, str]:
        from jax_pmap.proof import verify
        from jax_pmap.proof.layouts import Layouts

        request = request_of(pair)

        @contextlib.contextmanager
        def start(count: int) -> Iterator[pipeline.Session]:
            yield self.session(request, count)

        asked = f"{pair.path.name}::{name}"
        answer = pipeline.answered(lambda: verify.verify(asked, Layouts(), request, start, lambda _: None))
        if isinstance(answer, Verified):
            return "proved", ""
        return answer.code, answer.reason

    def gen(self, pair: Pair) -> str:
        request = request_of(pair)
        answer = pipeline.generate(request, session=self.session(request, pipeline.WORKER_DEVICES))
        return answer.code if isinstance(answer, Refusal) else "proved"


def request_of(pair: Pair) -> Request:
    return Request(
        f"{pair.path.name}::reference",
        inputs=f"{pair.path.name}::inputs",
        backend=Backend.PMAP,
        python=Path(sys.executable),
        directory=pair.path.parent,
        timeout=600.0,
    )


def checked(pair: Pair) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Codes of `check` above and below the line that divides right from wrong."""
    from jax_pmap.checking.run import check_text

    text = pair.path.read_text(encoding="utf-8")
    line = text.splitlines().index("# wrong") + 1
    findings = check_text(text, pair.path.name)
    above = {found.code for found in findings if found.span.line < line}
    below = {found.code for found in findings if found.span.line >= line}
    return tuple(sorted(above)), tuple(sorted(below))


def judged(names: Sequence[str], say: Callable[[Pair, Found], None]) -> dict[str, Found]:
    judge, found = Judge(), {}
    try:
        for pair in pairs(names):
            found[pair.name] = judge.judge(pair)
            say(pair, found[pair.name])
    finally:
        judge.close()
    return found


def recorded() -> dict[str, Found]:
    """What was found when this was last recorded."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {
        name: Found(
            **{**each, "check_right": tuple(each["check_right"]), "check_wrong": tuple(each["check_wrong"])}
        )
        for name, each in document.items()
    }


def record(found: Mapping[str, Found]) -> None:
    """Write what was found, and the table of the page."""
    kept = {name: each for name, each in recorded().items() if RESULTS.exists()} if RESULTS.exists() else {}
    known = {pair.name for pair in pairs()}
    every = {name: each for name, each in sorted({**kept, **found}.items()) if name in known}
    document = {name: asdict(each) for name, each in every.items()}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + table(every) + END + after, encoding="utf-8")


def score(found: Mapping[str, Found]) -> str:
    """The sentence that is also in the README."""
    number = len(found)
    wrong = sum(each.wrong == "JP045" for each in found.values())
    right = sum(each.right == "proved" for each in found.values())
    missed = sum(each.wrong == "proved" for each in found.values())
    made = sum(each.gen == "proved" for each in found.values())
    seen = sum(bool(each.check_wrong) for each in found.values())
    alarms = sum(bool(each.check_right) for each in found.values())
    return (
        f"of {number} wrong functions `verify` refuses {wrong} and passes {missed}, of the {number} right "
        f"ones it proves {right}; `check`, which reads only, reports {seen} of the wrong and {alarms} of the "
        f"right; `gen` writes {made} of the {number} proved from the function on one device"
    )


def table(found: Mapping[str, Found]) -> str:
    """The rows of the page."""
    lines = ["| error | `verify` right | wrong | `check` | `gen` |", "|---|---|---|---|---|"]
    kind = None
    for pair in pairs():
        each = found[pair.name]
        if pair.kind != kind:
            kind = pair.kind
            lines.append(f"| **{kind}** | | | | |")
        codes = ", ".join(each.check_wrong) or "–"
        if each.check_right:
            codes += f" (in the right one: {', '.join(each.check_right)})"
        file = f"[{pair.name}](../tests/public_bugs/pairs/{pair.name}.py)"
        lines.append(
            f"| {pair.title} {file}, [reported]({pair.source}) | {_shown(each.right, 'proved')} | "
            f"{_shown(each.wrong, 'JP045')} | {codes} | {_shown(each.gen, each.gen)} |"
        )
    counts = Counter(each.wrong for each in found.values())
    assert sum(counts.values()) == len(found)
    return "\n".join([*lines, "", score(found)[0].upper() + score(found)[1:] + ".", ""])


def _shown(code: str, expected: str) -> str:
    """A code with its meaning, in bold where it is not what it should be."""
    words = {"JP045": "not equal"}.get(code, code)
    return words if code == expected else f"**{words}**"
