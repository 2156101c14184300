"""Decompositions and solutions of systems, of one matrix for each index of the axes ahead; transforms."""

from collections.abc import Sequence
from typing import Any

from ..equation import Equation, Result, Stuck, rule
from ..lattice import Partial, Placement, Replicated, Sharded
from .elementwise import describe, layout, no_powers, placed, power_of

#: How many axes of its first operand a decomposition works on; those ahead are a batch of matrices.
MATRICES = {
    "cholesky": 2,
    "eig": 2,
    "eigh": 2,
    "svd": 2,
    "schur": 2,
    "lu": 2,
    "lu_pivots_to_permutation": 1,
    "qr": 2,
    "geqrf": 2,
    "geqp3": 2,
    "householder_product": 2,
    "ormqr": 2,
    "hessenberg": 2,
    "tridiagonal": 2,
    "tridiagonal_solve": 1,
    "symmetric_product": 2,
}


@rule(*MATRICES)
def decomposition(eq: Equation, *places: Placement, **_: Any) -> Result:
    """One for each matrix; what a matrix is made of must be whole."""
    no_powers(eq, places)
    how = layout(eq, places)
    if how is None:
        return Replicated()
    if not isinstance(how, Sharded):
        raise Stuck(describe(how))
    if how.axis >= len(eq.shape(0)) - MATRICES[eq.name]:
        raise Stuck("a matrix is divided over the devices")
    if any(isinstance(place, Replicated) for place in places):
        raise Stuck("matrices of examples are combined with values that are whole on every device")
    return how


@rule("triangular_solve")
def triangular_solve(
    eq: Equation, a: Placement, b: Placement, *, left_side: bool, unit_diagonal: bool, **_: Any
) -> Result:
    """Linear in the right-hand side, of which each column, or each row, is solved for by itself."""
    if power_of(a) and unit_diagonal:
        # The ones that are put on the diagonal do not grow with the matrix.
        no_powers(eq, (a,))
    if not isinstance(a, (Replicated, Sharded)):
        raise Stuck(describe(a))
    power = power_of(b) - power_of(a)
    if isinstance(b, Partial):
        if isinstance(a, Replicated):
            return Partial(power)
        raise Stuck(describe(b))
    how = layout(eq, (a, b))
    if how is None:
        return Replicated(power)
    if not isinstance(how, Sharded):
        raise Stuck(describe(how))
    rank = len(eq.shape(1))
    alone = rank - 1 if left_side else rank - 2
    if isinstance(a, Replicated) and how.axis == alone:
        return placed(how, power)
    if isinstance(a, Sharded) and isinstance(b, Sharded) and how.axis < rank - 2:
        return placed(how, power)
    raise Stuck("a matrix is divided over the devices")


@rule("fft")
def fft(eq: Equation, x: Placement, *, fft_lengths: Sequence[int], **_: Any) -> Result:
    """Linear; along the last axes."""
    if isinstance(x, Partial):
        return x
    how = layout(eq, (x,))
    if how is None:
        return Replicated(power_of(x))
    if isinstance(how, Sharded) and how.axis < len(eq.shape(0)) - len(fft_lengths):
        return placed(how, power_of(x))
    raise Stuck("a transform goes over the examples")
