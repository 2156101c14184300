"""Parallel functions written by hand, with faults planted into them, each judged by `jax-pmap verify`."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jax_pmap.model import Devices, Evidence, Refusal, RefusalError, Request
from mutation.faults import Mutant, mutants

WRITTEN = Path(__file__).with_name("written")
#: What stands between the reference, with its inputs, and the parallel function.
MARKER = re.compile(r"^# parallel: (\w+)\n", re.MULTILINE)
#: Device counts of the proof: with one alone, a factor of that count would be no fault.
COUNTS = (2, 4)


@dataclass(frozen=True)
class Written:
    """A file of `written/`."""

    name: str
    text: str
    reference: str
    parallel: str
    #: A module with the parallel function alone; it imports the rest.
    code: str


def written(folder: Path = WRITTEN) -> list[Written]:
    found = []
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        marker = MARKER.search(text)
        assert marker is not None, path
        functions = re.findall(r"^def (\w+)\(", text[: marker.start()], re.MULTILINE)
        imports = f"import functools\n\nimport jax\nimport numpy as np\n\nfrom {path.stem} import *\n\n\n"
        code = imports + text[marker.end() :]
        found.append(Written(path.stem, text, functions[functions.index("inputs") - 1], marker[1], code))
    return found


class Verified:
    """One file in warm workers, and the proof of any other code in the place of its parallel function."""

    def __init__(self, source: Written, folder: Path, counts: tuple[int, ...]) -> None:
        from jax_pmap.session import Session

        self.source, self.folder, self.number = source, folder, 0
        (folder / f"{source.name}.py").write_text(source.text, encoding="utf-8")
        python = Path(sys.executable)
        self.sessions = {count: Session(python, folder, count, 7200.0, 64 << 30) for count in counts}
        self.code = source.code
        #: How the right one is called, and so the wrong ones: by themselves, they could be right otherwise.
        self.layout: str | None = None

    def prove(self, code: str) -> Evidence:
        """Raises: RefusalError, when `code` is found wrong."""
        from jax_pmap import pipeline
        from jax_pmap.proof import verify
        from jax_pmap.proof.layouts import Layouts

        self.number += 1
        module = f"{self.source.name}_{self.number}.py"
        (self.folder / module).write_text(code, encoding="utf-8")
        request = Request(
            f"{self.source.name}.py::{self.source.reference}",
            inputs=f"{self.source.name}.py::inputs",
            python=Path(sys.executable),
            directory=self.folder,
            timeout=7200.0,
            memory=64 << 30,
            devices=Devices(),
        )

        def start(count: int) -> contextlib.AbstractContextManager[object]:
            self.sessions[count].renew()
            return contextlib.nullcontext(self.sessions[count])

        before, verify.COUNTS = verify.COUNTS, tuple(self.sessions)
        try:
            parallel = f"{module}::{self.source.parallel}"
            answer = pipeline.answered(
                lambda: verify.verify(parallel, Layouts(self.layout), request, start, lambda _: None)
            )
        finally:
            verify.COUNTS = before
        if isinstance(answer, Refusal):
            raise RefusalError(answer)
        # Equal, but `verify` says that nothing shows it to be parallel.
        alone = [note for note in answer.evidence.notes if "lies on one device" in note]
        if alone:
            raise RefusalError(Refusal("JP045", alone[0], ""))
        self.layout = ",".join(f"{name}={form}" for name, form in answer.layout) or "drop-in"
        return answer.evidence


def planted(source: Written, most: int = 1 << 30) -> Iterator[Mutant]:
    """`most` mutants of each fault that can differ on `COUNTS`."""
    for mutant in mutants(source.code, most=most):
        only = (
            re.search(r"psum\(1, .*\) == (\d)", mutant.code)
            if mutant.fault == "dropped_on_one_count"
            else None
        )
        if only is None or int(only[1]) in COUNTS:
            yield mutant


@contextlib.contextmanager
def verified(source: Written, folder: Path, counts: tuple[int, ...] = COUNTS) -> Iterator[Verified]:
    """Workers for a file, ended afterwards."""
    kept = Verified(source, folder, counts)
    try:
        yield kept
    finally:
        for session in kept.sessions.values():
            session.close()
