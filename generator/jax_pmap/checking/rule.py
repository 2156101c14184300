"""A rule of `check`: what it finds, and the registry of them all."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax_pmap.diagnostics.base import Diagnostic

if TYPE_CHECKING:
    from jax_pmap.checking.findings import Finding
    from jax_pmap.checking.mapped import Mappings
    from jax_pmap.checking.module import Module

Find = Callable[["Module", "Mappings"], Iterator["Finding"]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One mistake that can be seen without running."""

    diagnostic: Diagnostic
    find: Find

    @property
    def code(self) -> str:
        """``"JP101"``."""
        return self.diagnostic.code


def rule(
    code: str,
    title: str,
    find: Find,
    *,
    meaning: str,
    why: str,
    cure: str,
    example: str,
    fixed: str,
) -> Rule:
    """A rule and its diagnostic: it finds one thing in the example, and nothing in what is `fixed`."""
    diagnostic = Diagnostic(
        code=code,
        title=title,
        exit_code=1,
        meaning=meaning,
        why=why,
        cure=cure,
        example=example,
        command="jax-pmap check train.py",
        fixed=fixed,
    )
    return Rule(diagnostic, find)


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Every rule, in the order of the codes: one file each in `rules/`; adding a file registers it."""
    from jax_pmap.checking import rules as package

    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    loaded = (importlib.import_module(f"{package.__name__}.{name}") for name in names if name[2:].isdigit())
    return tuple(module.RULE for module in loaded)


def chosen(codes: Iterable[str], select: tuple[str, ...], ignore: tuple[str, ...]) -> frozenset[str]:
    """Those of `codes` that ``--select`` and ``--ignore`` leave; both take prefixes such as ``JP1``."""
    kept = (code for code in codes if not select or code.startswith(select))
    return frozenset(code for code in kept if not ignore or not code.startswith(ignore))
