"""jax-pmap: from a single-device JAX function to a multi-device one that is proved equal to it.

The names below are loaded on first use, so that ``import jax_pmap`` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_pmap.model import (
        Backend,
        Check,
        Devices,
        Evidence,
        Generated,
        Plan,
        Refusal,
        Request,
        Role,
        Span,
        Verified,
    )
    from jax_pmap.pipeline import generate, make_plan, verify

__all__ = [
    "Backend",
    "Check",
    "Devices",
    "Evidence",
    "Generated",
    "Plan",
    "Refusal",
    "Request",
    "Role",
    "Span",
    "Verified",
    "__version__",
    "generate",
    "make_plan",
    "verify",
]

#: As in pyproject.toml; asking `importlib.metadata` takes longer than writing a file.
__version__ = "0.1.0"

_PIPELINE = frozenset({"generate", "make_plan", "verify"})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module("jax_pmap.pipeline" if name in _PIPELINE else "jax_pmap.model")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
