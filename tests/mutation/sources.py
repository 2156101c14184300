"""The code that faults are planted into: what `gen` emits for the examples and the golden cases."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_pmap import options
from jax_pmap.config import Config
from jax_pmap.model import Devices, Evidence, Plan, RefusalError, Request

TESTS = Path(__file__).resolve().parents[1]
EXAMPLES = TESTS.parent / "examples"
#: Devices for a run without a derivation.
RUN_ALONE = 3
MARKER = re.compile(r"^# (output|refused)\b.*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A command line of `gen`, and the files it needs by name."""

    name: str
    words: tuple[str, ...]
    files: dict[str, str]


def sources() -> list[Source]:
    """Every golden case that is not refused, and every function of the examples."""
    found = []
    for path in sorted((TESTS / "cases").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        marker = MARKER.search(text)
        if marker is None or marker[1] == "refused" or "--no-run" in text.partition("\n")[0]:
            continue
        words = shlex.split(
            text.partition("\n")[0].removeprefix("# flags: ").replace("this::", f"{path.name}::")
        )
        if "::" not in words[1]:
            words[1] = f"{path.name}::{words[1]}"
        found.append(Source(path.stem, tuple(words[1:]), {path.name: text[: marker.start()]}))
    for path in (EXAMPLES / "metrics.py", EXAMPLES / "train.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE):
            inputs = "example_inputs" if path.stem == "train" else f"inputs_{name}"
            if f"def {inputs}(" in text and name not in ("ranks", inputs, "loss_fn"):
                for backend in ("pmap", "shard_map"):
                    words_ = (
                        f"{path.name}::{name}",
                        "--inputs",
                        f"{path.name}::{inputs}",
                        "--backend",
                        backend,
                    )
                    found.append(Source(f"{name}-{backend}", words_, {path.name: text}))
    return found


def devices(witness: str) -> Devices:
    """Those that code is emitted for: code for a chosen number is run and not derived."""
    return Devices(count=RUN_ALONE) if witness == "run" else Devices()


class Warm:
    """One source in a warm worker: its code, and the proof of any other code in its place."""

    def __init__(self, session: Any, target: Any, observed: Any, plan: Any, code: str, witness: str) -> None:
        self.session, self.target, self.observed, self.code = session, target, observed, code
        self.plan, self.witness = plan, witness

    def prove(self, code: str) -> Evidence:
        """The evidence for `code`.

        Raises:
            RefusalError: it is found wrong, or is not derived and no run was asked for.
            InMultiples: it is equal for fewer numbers of rows than it takes.
            OfForms: it is equal for fewer forms of inputs than it takes.
            OfMoreRows: it is not shown equal where a device has some few rows.
        """
        from jax_pmap.proof.prove import How, prove

        how = How(run_code=self.witness != "derivation")
        return prove(self.session, self.target, self.plan, self.observed, code, lambda _: None, how)


@contextlib.contextmanager
def warm_worker(source: Source, folder: Path, witness: str = "both") -> Iterator[Warm]:
    """Plan and emit a source in `folder`, and keep its worker."""
    from jax_pmap import pipeline
    from jax_pmap.emit.unit import emit
    from jax_pmap.inputs.load import load
    from jax_pmap.planning.search import find_plan
    from jax_pmap.proof.emitted import _narrowed

    for name, text in source.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    request = request_of(source.words, folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        with pipeline._session(request) as session:
            target = pipeline._read(request, session)
            loaded = load(session, target, request, lambda _: None)
            observed = find_plan(session, target, loaded, request, lambda _: None)

            def warm(plan: Plan) -> Warm:
                code = emit(target, plan, request, loaded.carried)
                return Warm(session, target, observed, plan, code, witness)

            plan = dataclasses.replace(observed.plan, devices=devices(witness))
            # Of a refusal whoever proves it hears.
            with contextlib.suppress(RefusalError):
                _, plan = _narrowed(lambda plan: warm(plan).prove(warm(plan).code), plan, target)
            yield warm(plan)
    finally:
        os.chdir(before)


def request_of(words: tuple[str, ...], folder: Path) -> Request:
    """The request that `gen` makes of its words."""
    from jax_pmap.cli import main

    context = main.commands["gen"].make_context("gen", list(words))
    made = options.request(context.params, Config())
    return dataclasses.replace(
        made, python=Path(sys.executable), timeout=7200.0, memory=64 << 30, directory=folder
    )


def verdict(source: Warm, code: str) -> str:
    """``"survived"``, ``"not applicable"``, or how the proof caught `code`: the refusal's reason."""
    from jax_pmap.proof.prove import InMultiples, OfForms, OfMoreRows

    try:
        source.prove(code)
    except (InMultiples, OfForms, OfMoreRows) as error:
        return f"equal for some inputs alone: {type(error).__name__} {error}"
    except RefusalError as error:
        reason = error.refusal.reason
        # Nothing to change there, or code for jit, which names no axis to plant a collective over.
        if re.search("NotImplementedError: not applicable|Found an unbound axis name", reason):
            return "not applicable"
        if re.search(r"NameError|SyntaxError|UnboundLocalError|AttributeError: module", reason):
            return f"survived as no code: {reason}"
        return reason
    return "survived"
