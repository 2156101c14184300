"""Sizes for people."""

from __future__ import annotations


def human_bytes(size: int) -> str:
    """``"512 B"``, ``"31.4 kB"``, ``"1.2 GB"``: powers of 1000, three digits."""
    if size < 1000:
        return f"{size} B"
    power = 1
    while power < 4 and size / 1000**power >= 999.5:
        power += 1
    return f"{size / 1000**power:.3g} {' kMGT'[power]}B"
