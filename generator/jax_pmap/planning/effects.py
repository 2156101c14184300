"""What a function does besides computing: calls of Python, which every device makes, and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jax_pmap.model import Span, refused
from jax_pmap.problems import shown_file
from jax_pmap.reading.target import Target
from jax_pmap.worker.protocol import Site


def callback_notes(target: Target, directory: Path, callbacks: Sequence[Site]) -> tuple[str, ...]:
    """What is said of prints and the like, which come once from each device.

    Raises:
        RefusalError: JP049 for an `io_callback`, which is there to change something, and would N times;
            JP068 for what names the devices of another mesh.
    """
    notes = []
    for row in callbacks:
        where = Span(shown_file(row.file, directory), row.line) if row.file else target.facts.span
        if row.what == "io_callback":
            raise refused(
                "JP049",
                f"`{target.facts.name}` calls Python by `io_callback`; every device would, with its share, "
                "where the original does it once",
                "Return what the callback is given and call it after the step, or try --backend jit, where "
                "nothing is mapped",
                where,
            )
        if row.what.endswith("with_sharding_constraint"):
            raise refused(
                "JP068",
                f"`{row.what}` says which devices of a mesh hold what of a value, and jax.pmap and "
                "jax.shard_map, whose devices have their own part, take none inside",
                "Leave it out of the function for one device, where it changes no number",
                where,
            )
        notes.append(
            f"`{row.what}` ({where.file}:{where.line}) runs on every device: what it shows comes once "
            "from each, and of that one's share where no collective made it whole"
        )
    return tuple(notes)
