"""Paths of leaves: as Python source in plans, as keys with dots between them in rules and emitted code."""

from __future__ import annotations

import ast
import re

#: A step of a path: ``.kernel`` or ``['dense']``.
STEP = re.compile(r"\.(\w+)|\[((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]'\"])*)\]")


def keys_of(path: str) -> tuple[str, ...]:
    """``"params['dense'].kernel"`` as ``("params", "dense", "kernel")``, as jax writes keys by themselves."""
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    return (root, *map(_key, STEP.finditer(path[len(root) :])))


def _key(step: re.Match[str]) -> str:
    if step[1] is not None:
        return step[1]
    flat = re.fullmatch(r"<flat index (\d+)>", step[2])
    if flat:
        return flat[1]
    try:
        return str(ast.literal_eval(step[2]))
    except (ValueError, SyntaxError):
        return step[2]


def dotted(path: str) -> str:
    """The form of a leaf's path that patterns are held against: ``"params.dense.kernel"``."""
    return ".".join(keys_of(path))
