"""A parallel function and its reference, traced and derived equal; and what is said where that ends."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from .. import arguments
from ..jaxpr.trace import Traced
from ..placements.derive import derive, derive_from_parallel
from ..protocol import Ending, Multiple, Shown
from .claims import Claim, Inputs, OtherForm, Untraced
from .traces import everywhere


def compared(claim: Claim, inputs: Inputs, counts: Sequence[int], *, or_on_all: bool = True) -> Shown:
    """What is derived on some counts of devices, or on the mesh that there is; see `everywhere`.

    Raises:
        Untraced: one of the two cannot be traced, or their results differ in form.
    """
    original = claim.original(inputs)
    try:
        rows = everywhere(claim.functions, inputs, counts, claim.mesh, or_on_all=or_on_all)
    except Untraced as problem:
        if original and len(problem.programs) > 1:
            with contextlib.suppress(OtherForm):
                problem.found = derived(claim, inputs, [*original, problem.programs])
        raise
    return derived(claim, inputs, [*original, *rows])


def derived(claim: Claim, inputs: Inputs, rows: Sequence[Sequence[Traced]]) -> Shown:
    """What is derived of the traces of a reference and of a parallel function.

    Raises:
        OtherForm: their results differ in form.
    """
    references, programs = rows
    for reference, program in zip(itertools.cycle(references), programs, strict=False):
        if why := _other_form(reference, program):
            raise OtherForm(why, programs)
    wanted, given = ([each.jaxpr for each in row] for row in rows)
    if claim.reference is not None:
        return derive_from_parallel(wanted, given, inputs.names)
    found = derive(wanted[0], given, inputs.names)
    if claim.mesh is None:
        return found
    # Those of parts of other arrays hold on the mesh that there is, as it was traced.
    conditions, unmet = (
        tuple(each for each in some if each.axis == claim.mesh.along)
        for some in (found.conditions, found.unmet)
    )
    return dataclasses.replace(found, conditions=conditions, unmet=unmet)


def _other_form(reference: Traced, program: Traced) -> str:
    """How the results differ in structure, shapes or dtypes; ``""`` where they do not."""
    results, wanted = program.jaxpr.out_avals, reference.jaxpr.out_avals
    if program.tree != reference.tree or len(results) != len(wanted):
        return "its result has another structure"
    for got, want in zip(results, wanted, strict=True):
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return f"a result is {got.str_short()}, and {want.str_short()} in the original"
    same = all(arguments.same_constant(a, b) for a, b in zip(program.rest, reference.rest, strict=True))
    return "" if same else "its result has other constants"


def ended(why: object) -> Shown:
    """A derivation that ended before any operation."""
    return Shown(0, (Ending(0, str(why)),))


def only_there(found: Shown, there: str) -> Shown:
    """A derivation; of one that ended, with words ahead of why that say in which case it did."""
    if found.complete:
        return found
    first = found.endings[0]
    return dataclasses.replace(
        found, endings=(dataclasses.replace(first, why=f"{there}, and there {first.why}"),)
    )


def multiple_of(conditions: Sequence[Multiple], size: int) -> int:
    """What the rows on a device must be a multiple of for conditions from traces with a batch of `size`."""
    # So many rows of what each is about come with one example.
    each = ((one.multiple / Fraction(one.length, size)).numerator for one in conditions)
    return math.lcm(*each)


def in_multiples(found: Shown, needed: int, multiple: int) -> Shown:
    """A derivation that holds for shares of `needed` rows; it ends where code takes others of `multiple`."""
    if not found.complete or multiple % needed == 0:
        return found
    why = f"it holds only where each device has a multiple of {needed} rows, and others are not refused"
    first = next(iter(found.conditions), None)
    ending = Ending(0, why, first.primitive if first else "", first.places if first else ())
    return dataclasses.replace(found, endings=(ending,))
