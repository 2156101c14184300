"""Hold the table of what jax removed against the jax of this interpreter: `python tests/removals_hold.py`.

Prints a line for every row that the installed version contradicts, and ends with 1 where there is one.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings

import jax

from jax_pmap.checking import removals


def version(text: str) -> tuple[int, ...]:
    """``"0.7.1"`` as ``(0, 7, 1)``."""
    return tuple(int(part) for part in text.split("."))


INSTALLED = version(jax.__version__)


def resolve(name: str) -> object | None:
    """What a dotted name stands for, None where jax has no such thing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found
    return None


def has_parameter(name: str) -> bool:
    """Whether ``"jax.shard_map(check_rep)"`` can be given."""
    function, _, parameter = name.rstrip(")").partition("(")
    return parameter in inspect.signature(resolve(function)).parameters


def has_attribute(name: str) -> bool:
    """Whether ``"jax.typeof().vma"`` is there, of an array of no axes."""
    function, _, attribute = name.partition("().")
    return hasattr(resolve(function)(jax.numpy.zeros(())), attribute)


def contradictions() -> list[str]:
    """What the installed jax does not do as the table says."""
    asked = [(row, resolve(row.name) is not None) for row in removals.NAMES]
    asked += [(row, has_parameter(row.name)) for row in removals.PARAMETERS]
    asked += [(row, has_attribute(row.name)) for row in removals.ATTRIBUTES]
    asked += [(row, row.name in jax.config.values) for row in removals.OPTIONS]
    found = [
        f"{row.name} is {'there' if there else 'gone'} in jax {jax.__version__}; gone: {row.gone or 'never'}"
        for row, there in asked
        if there is bool(row.gone and version(row.gone) <= INSTALLED)
    ]
    found += [
        f"{row.same}, the cure of {row.name}, is not in jax {jax.__version__}"
        for row in removals.NAMES
        if row.gone and row.same and version(row.gone) <= INSTALLED and resolve(row.same) is None
    ]
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    wrong = contradictions()
    print("\n".join(wrong) or f"{len(removals.NAMES)} names hold on jax {jax.__version__}")
    sys.exit(1 if wrong else 0)
