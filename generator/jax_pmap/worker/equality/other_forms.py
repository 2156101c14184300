"""Inputs of other forms than the given one, which a function may work on in another way."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..jaxpr.coincidences import Program, alike, coincidences
from ..jaxpr.trace import LCM, resized
from ..narrowed import only_wraps_elsewhere
from ..protocol import FixedForm, Shown
from .claims import Claim, Inputs, OtherForm, Untraced
from .compare import compared, ended, in_multiples, multiple_of, only_there
from .forms import Other, others


def other_forms(
    claim: Claim, given: Inputs, usual: Sequence[int], multiple: int, *, small: bool
) -> Iterator[tuple[Other, Shown]]:
    """Inputs of other forms than `given` for which the derivation ends, and where it ends.

    It is known for shares of a multiple of `multiple` rows. A form that the function does not take is left
    out: whoever calls it so is told.
    """
    known: list[Program] = []
    covering: dict[int, bool] = {}
    fixed: set[FixedForm] = set()
    for ways in others(claim, given, claim.question.sources if small and not claim.foreign else ()):
        for way in ways:
            if claim.foreign and not way.hides:
                continue  # Code that was written is for the forms it is called with, but for hidden columns.
            if way.in_parts and fixed.issuperset(way.given):
                break
            if way.settles:
                yield way, ended(f"with {way.said} it may be another function")
                break
            if way.covers:
                if id(way) not in covering:
                    found = _of_form(claim, given, known, way, usual)
                    covering[id(way)] = found is not None and found[0].complete
                if covering[id(way)]:
                    break
                continue
            found = _of_form(claim, given, known, way, usual)
            if found is None and way.decides:
                found = ended("the original is not traced"), given.rows
            if found is None:
                continue  # The function does not take it, or code that is made of its text raises.
            there, rows = found
            there = in_multiples(there, multiple_of(there.conditions, rows), multiple)
            if not there.complete:
                fixed.update(way.given)
                yield way, only_there(there, f"with {way.said} it is worked on in another way")
            break


def _of_form(
    claim: Claim, given: Inputs, known: list[Program], way: Other, usual: Sequence[int]
) -> tuple[Shown, int] | None:
    """What deriving shows for inputs of another form, and for how many rows; None where these are not taken.

    `known` are programs of the reference for other forms for which it is shown equal, of as many rows as the
    given one; one that is found is added.
    Shares of few rows may not suit another width: where they do not, they have as many as surely do.
    """
    size = given.rows
    for rows in (size, LCM * size) if claim.mesh is None and not way.of_rows else (size,):
        inputs = _inputs(claim, way, way.leaves, rows)
        if inputs.traced is None:
            return None
        if way.covers and inputs.program.operations != given.program.operations:
            return None
        if rows == size and way.in_parts:
            # Of an array in parts devices see another size than the original, which may decide a number.
            if _covers(given.program, inputs.program) and _as_columns_grow(claim, given, way, inputs):
                return Shown(0, ()), rows
        elif rows == size and any(_covers(each, inputs.program) for each in (given.program, *known)):
            return Shown(0, ()), rows
        if rows == size and way.bits and only_wraps_elsewhere(given.jaxpr, inputs.jaxpr, way.bits):
            return Shown(0, ()), rows
        try:
            found = compared(claim, inputs, usual[:2])
            known += [inputs.program] if found.complete and rows == size else []
            return found, rows
        except OtherForm as problem:
            return ended(problem), rows
        except Untraced:
            continue
    # Devices with one row each do take it, for that row.
    return (ended("no device has several rows"), size) if way.of_rows else None


def _inputs(claim: Claim, way: Other, leaves: Sequence[Any], rows: int) -> Inputs:
    """Inputs of another form with a batch of `rows`."""
    axes = way.packed.axes(way.axes or claim.axes)
    sized = [resized(leaf, axis, rows) for leaf, axis in zip(leaves, axes, strict=True)]
    return Inputs(claim.question.traceable, way.packed, sized, rows)


def _as_columns_grow(claim: Claim, given: Inputs, way: Other, inputs: Inputs) -> bool:
    """Whether the numbers of the reference are in proportion to the columns of a form, or to a power of them.

    The `inputs` of that form have as many rows as the given ones.
    """
    before, columns = way.columns
    size, leaves = way.third
    third = _inputs(claim, way, leaves, given.rows)
    return third.traced is not None and alike(
        dataclasses.replace(given.program, rows=before),
        dataclasses.replace(third.program, rows=size),
        dataclasses.replace(inputs.program, rows=columns),
    )


def _covers(one: Program, other: Program) -> bool:
    """Whether programs have the same operations, and sizes that are equal in `one` are in the `other`.

    What is shown of the first holds for any sizes of which these are equal, also where others happen to be.
    """
    if one.operations != other.operations or one.numbers.shape != other.numbers.shape:
        return False
    numbers = np.array([0, 1, *other.numbers])
    return bool(np.array_equal(numbers, numbers[coincidences(one)], equal_nan=True))
