"""Rules for calls, one file each: what a call makes of values of known kind.

A rule answers the kind of the result, or None where the call is not its business. The first answer counts.
"""

from __future__ import annotations

from collections.abc import Callable

from jax_pmap.planning.rules import (
    collectives,
    control,
    coupled,
    einsum,
    functions,
    gradients,
    linear,
    opaque,
    randomness,
    reductions,
    shapes,
    sizes,
)
from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import Value

Rule = Callable[[Call], Value | None]

#: In order; `opaque` answers everything and comes last.
RULES: tuple[Rule, ...] = (
    collectives.rule,
    gradients.rule,
    sizes.rule,
    randomness.rule,
    reductions.rule,
    einsum.rule,
    shapes.rule,
    coupled.rule,
    control.rule,
    functions.rule,
    linear.rule,
    opaque.rule,
)
