"""The collectives in what XLA made of a function: what its devices really say to each other."""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax

from .server import Answer

COLLECTIVE = re.compile(
    r" = (?P<result>.*?) "
    r"(?P<kind>all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
ARRAY = re.compile(r"\b(?P<dtype>pred|bf16|[a-z]+?(?P<bits>\d+))\w*\[(?P<sizes>[\d,]*)\]")


def executables() -> list[Any]:
    """The programs for several devices that jax holds compiled; none where this jax does not tell."""
    try:
        return list(jax.devices()[0].client.live_executables())
    except (AttributeError, RuntimeError, NotImplementedError):
        return []


def collectives(before: Sequence[Any], batch: int) -> list[Answer] | None:
    """Those of what was compiled since `before`: ``[{"kind", "count", "bytes", "batch"}]``.

    ``"batch"`` says whether an array with an axis as long as the `batch` comes out whole. Of several
    programs, such as those that lay out arguments or results, that with most bytes. None where there is
    no program.
    """
    known = {id(each) for each in before}
    found = []
    for each in executables():
        if id(each) in known:
            continue
        try:
            texts = [module.to_string() for module in each.hlo_modules()]
        except (AttributeError, RuntimeError, NotImplementedError):
            continue
        found.append(read("\n".join(texts), batch))
    return max(found, key=lambda rows: sum(row["bytes"] for row in rows), default=None)


def read(text: str, batch: int) -> list[Answer]:
    """The collectives in the text of a compiled program, by kind."""
    rows: dict[str, Answer] = {}
    for match in COLLECTIVE.finditer(text):
        row = rows.setdefault(match["kind"], {"kind": match["kind"], "count": 0, "bytes": 0, "batch": False})
        row["count"] += 1
        for array in ARRAY.finditer(match["result"]):
            sizes = [int(size) for size in array["sizes"].split(",") if size]
            row["bytes"] += math.prod(sizes) * width(array["dtype"], array["bits"])
            row["batch"] |= batch in sizes
    return [rows[kind] for kind in sorted(rows)]


def width(dtype: str, bits: str | None) -> int:
    """Bytes of one number of a dtype as XLA writes it."""
    return 2 if dtype == "bf16" else max(int(bits or 8) // 8, 1)
