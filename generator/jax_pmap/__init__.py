"""jax-pmap: from a single-device JAX function to a multi-device one that is proved equal to it.

The names below are loaded on first use, so that ``import jax_pmap`` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from jax_pmap.version import VERSION

if TYPE_CHECKING:
    from jax_pmap.checking.findings import Finding
    from jax_pmap.checking.run import CheckReport, CheckRequest, check
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
    "CheckReport",
    "CheckRequest",
    "Devices",
    "Evidence",
    "Finding",
    "Generated",
    "Plan",
    "Refusal",
    "Request",
    "Role",
    "Span",
    "Verified",
    "__version__",
    "check",
    "generate",
    "make_plan",
    "verify",
]

__version__ = VERSION

#: Name -> module, for what is not a record of `jax_pmap.model`.
_ELSEWHERE = {
    "CheckReport": "jax_pmap.checking.run",
    "CheckRequest": "jax_pmap.checking.run",
    "Finding": "jax_pmap.checking.findings",
    "check": "jax_pmap.checking.run",
    "generate": "jax_pmap.pipeline",
    "make_plan": "jax_pmap.pipeline",
    "verify": "jax_pmap.pipeline",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_ELSEWHERE.get(name, "jax_pmap.model"))
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
