"""What is said where a parallel function of the user's is not equal to its reference, and what to do."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jax_pmap.locate import object_span
from jax_pmap.model import Refusal, Source
from jax_pmap.problems import error_details, error_line
from jax_pmap.proof.causes import likeliest_cause, output_name
from jax_pmap.proof.layouts import layout_words
from jax_pmap.proof.reference import Reference
from jax_pmap.proof.runs import LAYOUTS, Run
from jax_pmap.reading.target import Target
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Layout

#: What to do where a parallel function differs only on some inputs; see `Failure.on`.
MENDED_BY = {
    protocol.REFILLED: (
        "Keep no array by which object it was made of: that may have other numbers in the next call, and "
        "where it is gone, another may have its `id`"
    ),
    protocol.REORDERED: (
        "What jax returns has its keys sorted, and what it is given need not: go through dicts with "
        "`jax.tree.map`, or by their keys"
    ),
    protocol.SEVERAL: "Mend what `{}` does with several, or have it raise for these",
    protocol.LONGER: "Mend what `{}` does with these, or have it raise for them",
}
#: The inputs that need no mention; see `Question.described`.
GIVEN = "the given inputs"


@dataclass(frozen=True, slots=True)
class Unequal:
    """What `verify` says of a parallel function that differs from its reference, or fails."""

    source: Source
    target: Target
    reference: Reference
    #: How it is called, as asked for; None where that was found out.
    layout: str | None
    #: Arguments that the reference changes in place.
    mutated: Sequence[str]
    #: What was derived of it.
    answer: protocol.Derivation

    @property
    def name(self) -> str:
        """What it is called."""
        return self.source.qualname

    def failure(self, failed: list[Run], able: list[Run], layout: Layout, mode: str = "") -> Refusal:
        """What the first difference says to the user, on the count with the clearest cause.

        `mode` is a constant that another one was put in the place of, such as ``train=False``.
        """
        run, check, failure = failed[0], failed[0].checks[-1], failed[0].checks[-1].failure
        assert failure is not None
        where = f"on {run.devices} devices" + (f", call {failure.step + 1}" if failure.step else "")
        where += f" with a batch of {check.batch}" if check.resized or check.uneven else ""
        where += f" with `{mode}`" if mode else ""
        # What failed was not compared.
        code, verb, details = "JP045", "differs", tuple[str, ...]()
        if failure.error is not None:
            code, verb, details = "JP021", "fails", error_details(failure.error)
        elif failure.what == "value":
            details = (f"parallel:  {failure.got}", f"reference: {failure.want}")
        reason = self._said(check, failure, where)
        if failure.what == "value":
            differing, size = failure.differing
            reason += (
                f". {differing} of its {size} elements differ{'s' * (differing == 1)}"
                if differing < size
                else ""
            )
            reason += self._repeated()
        own = self.reference.parallel and failure.what == "shape"
        if own and failure.want == with_devices(failure.got, run.devices):
            reason += f": each device of `{self.reference.name}` has one of its own there, and they differ"
        if (on := failure.on) and on != GIVEN and failure.what not in ("draws", "keys"):
            reason += f". It shows on {on}"
        if failure.defaults:
            reason += f". It was called without what the inputs leave out: {failure.defaults}"
        others = [str(other.devices) for other in failed if other is not run]
        equal = [str(count) for count in sorted(other.devices for other in able if other not in failed)]
        if others:
            reason += f". It {verb} on {_listed(others)} devices too"
        # Some runs are made on one count alone.
        if equal and not check.alone:
            reason += f". It is equal on {_listed(equal)} devices"
        return Refusal(code, reason, self._way_out(failure, run, layout), object_span(self.source), details)

    def _said(self, check: protocol.Check, failure: protocol.Failure, where: str) -> str:
        """What is wrong, in a clause."""
        name = self.name
        output = f"`{output_name(self.target.parsed.definition, failure.path, self.mutated)}`"
        cause = likeliest_cause(failure, check.precision, check.devices)
        if failure.error is not None:
            return f"`{name}` fails {where}: {error_line(failure.error)}"
        if failure.what == "changed":
            return (
                f"`{name}` changes its argument `{failure.argument}` in place, which the reference leaves as "
                "it is: a caller that uses it again gets something else"
            )
        if failure.what == "deleted":
            return (
                f"`{name}` takes the arrays of `{failure.argument}` with it (`donate_argnums`), which the "
                "reference leaves to its caller: one that uses them again gets an error"
            )
        if failure.what in ("draws", "keys"):
            return f"the random numbers of `{name}` are wrong: {where} {failure.why}"
        if failure.what == "replicas":
            said = f"{output} is not the same on every device: {where} {failure.why}"
            return said + (f"; {cause}" if cause else "")
        if failure.what != "value":
            found = f"{failure.got}, the reference's is {failure.want}"
            return f"{output} has another {failure.what} {where}: {found}"
        if cause and cause.startswith("it is "):
            said = f"{output} is {_on(cause.removeprefix('it is '), where)}"
        else:
            said = f"{output} differs {where}{f': {cause}' if cause else ''}"
        if math.isfinite(failure.off):
            said += f" (error {failure.off:.1e} of its size, bound {failure.tolerance:.1e})"
        return said

    def _way_out(self, failure: protocol.Failure, run: Run, layout: Layout) -> str:
        """What to do about a failure."""
        if failure.what == "keys":
            hint = (
                "Draw for examples and for all devices with keys of their own: `jax.random.split` gives both"
            )
        elif failure.what == "deleted":
            hint = (
                "Take it out of `donate_argnums`, or donate it in the reference too; where callers give it "
                f"up, say so: --donate {failure.argument}"
            )
        elif failure.cause == "kept" and self.mutated and (at := re.match(r"\[1\]\[(\d+)\]", failure.path)):
            hint = (
                f"The reference changes `{self.mutated[int(at[1])]}` in place, as it is called. Where no "
                "caller relies on that, verify against `jax.jit` of it, which does not"
            )
        elif failure.on in MENDED_BY:
            hint = MENDED_BY[failure.on].format(self.name)
        elif (check := run.checks[-1]).resized or check.uneven:
            rows, left = divmod(check.batch, run.devices)
            share = "" if left else f" ({rows} row{'s' if rows > 1 else ''} on each device)"
            hint = (
                f"Mend what `{self.name}` does with a batch of {check.batch}{share}, or have it raise for "
                "batches that it is not meant for"
            )
        else:
            hint = self._called_otherwise(run, layout)
        if self.reference.parallel:
            hint += f". The reference was called {layout_words(self.reference.called)}: --against-layout"
        return hint

    def _repeated(self) -> str:
        """What to say of sums over devices of what is whole on every device already; ``""``."""
        own = sorted({each.line for each in self.answer.repeated if Path(each.file) == self.source.path})
        if not own:
            return ""
        lines = f"line{'s' if len(own) > 1 else ''} {' and '.join(map(str, own))}"
        said = (
            f". The collective of {lines} is taken of what is the same on every device already: a psum "
            "multiplies it by the number of devices, a pmean changes nothing"
        )
        if self.answer.summed:
            said += (
                ". shard_map with check_vma=True, its default, has summed the gradients of replicated "
                "parameters by then: average the loss inside the differentiated function, or divide by the "
                "number of devices"
            )
        return said

    def _called_otherwise(self, run: Run, layout: Layout) -> str:
        """How the function was called, and how else it could be."""
        equal_as = next(
            (each.layout for each in run.tried if each.ends == "equal" and each.layout != layout),
            None,
        )
        if equal_as is not None:
            return (
                f"`{self.name}` was called {layout_words(layout)}; called {layout_words(equal_as)} it gives "
                "the reference's results. If that is how your program calls it, say so with --layout"
            )
        said = f"`{self.name}` was called {layout_words(layout)}"
        return said if self.layout is not None else f"{said}; another way of calling it: {LAYOUTS}"


def with_devices(shape: str, devices: int) -> str:
    """A shape as text, ``"(8,)"``, with an axis of devices in front: ``"(2, 8)"``."""
    return str((devices, *ast.literal_eval(shape)))


def _listed(words: Sequence[str]) -> str:
    """``"3, 4 and 8"``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _on(cause: str, where: str) -> str:
    """`cause` with the device count behind its first clause."""
    clause = re.search(r"[:,] ", cause)
    end = clause.start() if clause else len(cause)
    return f"{cause[:end]} {where}{cause[end:]}"
