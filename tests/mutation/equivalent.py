"""Survivors that are no faults where they were planted: each with the argument that shows it."""

from __future__ import annotations

from jax_pmap.model import Plan
from mutation.faults import Mutant
from mutation.sources import Source


def why_equivalent(source: Source, mutant: Mutant, plan: Plan) -> str:
    """The argument, or ``""`` where there is none."""
    return ""
