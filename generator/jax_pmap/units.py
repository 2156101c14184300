"""Sizes and lists for people."""

from __future__ import annotations

from collections.abc import Sequence


def human_bytes(size: int) -> str:
    """``"512 B"``, ``"31.4 kB"``, ``"1.2 GB"``: powers of 1000, three digits."""
    if size < 1000:
        return f"{size} B"
    power = 1
    while power < 4 and size / 1000**power >= 999.5:
        power += 1
    return f"{size / 1000**power:.3g} {' kMGT'[power]}B"


def first_few(words: Sequence[str], shown: int = 3) -> str:
    """``"a, b, c and 2 more"``: the first `shown` words, and how many there are besides."""
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more
