"""NumPy arrays that traced functions hold, in both precisions.

Since 0.9, jax remembers by the identity of a NumPy array what it made of it, whichever 64-bit mode was on: a
``MEAN = np.array([0.5, 0.2])`` that a program in float32 holds stays float32 in one that is traced in float64
while the first is kept, and the second does not compile.
"""

import weakref
from typing import Any

import jax
import numpy as np


def _mode_is_forgotten() -> bool:
    """Whether jax gives an array the type it had in the other 64-bit mode."""
    try:
        from jax._src import dtypes
    except ImportError:
        return False
    canonical = getattr(dtypes, "canonicalize_value", None)
    if canonical is None:
        return False
    before, array, seen = jax.config.jax_enable_x64, np.zeros(1), []
    try:
        for mode in (False, True):
            jax.config.update("jax_enable_x64", mode)
            seen.append(canonical(array))
    finally:
        jax.config.update("jax_enable_x64", before)
    return bool(seen[1].dtype != np.float64)


def tell_modes_apart() -> None:
    """Let what jax remembers of a NumPy array be that of the 64-bit mode; where it is so, nothing is done."""
    if not _mode_is_forgotten():
        return
    from jax._src import dtypes, literals

    known: dict[tuple[int, bool], tuple[weakref.ref[Any], weakref.ref[Any]]] = {}

    def typed(array: Any) -> Any:
        key = id(array), bool(jax.config.jax_enable_x64)
        if key in known:
            source, made = (reference() for reference in known[key])
            if source is array and made is not None:
                return made
        made = literals.TypedNdArray(np.asarray(array, dtypes.canonicalize_dtype(array.dtype)))
        known[key] = weakref.ref(array, lambda _: known.pop(key, None)), weakref.ref(made)
        return made

    dtypes.register_canonicalize_value_handler(np.ndarray, typed)
