"""The rules, by family. Importing this package registers them."""

from . import collectives, contractions, elementwise, gathers, linalg, random, reductions, shapes, windows

__all__ = [
    "collectives",
    "contractions",
    "elementwise",
    "gathers",
    "linalg",
    "random",
    "reductions",
    "shapes",
    "windows",
]
