"""Derivation as a witness: a parallel function is shown equal to its reference, for all inputs."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from . import arguments, protocol, prove
from .budget import fitting
from .budget import size as operations
from .equality.batches import otherwise_with, suiting, with_many_rows
from .equality.claims import Claim, Untraced
from .equality.compare import compared, ended, in_multiples, multiple_of, only_there
from .equality.counts import on_others, to_run_besides
from .equality.other_forms import other_forms
from .equality.padding import where_counted
from .equality.traces import FEW, everywhere
from .exceptions import summary
from .following import traced_as
from .jaxpr.trace import LCM, Traced, counts_for, leaf_names, sizes_for
from .leaves import is_abstract
from .own_derivatives import not_linear
from .placements.derive import describe
from .protocol import Affordable, FixedForm, Problem

#: Multiples that shares are tried in, where a rule asks for one.
MOST_MULTIPLE = 64


def witness(claim: Claim, zeros: Collection[str] | None = None) -> protocol.Derivation:
    """What deriving shows of a parallel function; see `derive.describe`.

    It is complete only where `Claim.multiple` is a multiple of what the rows on each device must be one of,
    and would be with what is asked for in its place. Where it is shown equal, it says which run the second
    witness can afford.

    Where the reference is one program for all sizes of the batch, it is derived for those that tell of all,
    in place of the given one, if it is shown equal for them; else for the given one and those besides.
    ``"unshown"`` are those for which it is not, where it is for the given one.

    Where the code adds rows to uneven batches, with `zeros` in these leaves, it is complete only where they
    do not count.
    """
    multiple = claim.multiple
    answer = _ended(f"a batch of {claim.rows} is too small to be divided in two ways")
    # Sizes of two things may be equal in the given batch alone, which then says less than one in which not.
    generic = [rows // multiple for rows in claim.telling(0)] if claim.uniform else []
    with prove.x64(claim.question.x64):
        for size in (*generic, *_sizes(claim)):
            answer, asked = _of_size(claim, size * multiple)
            if claim.reference is None and multiple < asked <= MOST_MULTIPLE:
                # On shares that a rule asks for, more can be said.
                answer, _ = _of_size(claim, size * asked)
            if answer.batch and (answer.complete or size not in generic):
                break
        if answer.complete and size not in generic:
            answer = _with_others(claim, answer)
        if claim.foreign and claim.reference is None and not answer.complete and not answer.elsewhere:
            answer = dataclasses.replace(answer, beside=to_run_besides(claim))
        if is_abstract(claim.question.data[0]):
            run = Affordable(0, (), "the inputs are shapes alone", 0.0)
            answer = dataclasses.replace(answer, run=run)
        if zeros is not None and answer.complete:
            for rows in (answer.batch, *claim.telling(0)):
                why = where_counted(claim, rows, zeros)
                if why is not None:
                    return dataclasses.replace(answer, endings=(why,))
    return answer


def _sizes(claim: Claim) -> list[int]:
    """Sizes of the batch to trace in place of the given one, the most telling first."""
    base = claim.rows
    if claim.reference is not None:
        return sizes_for(base)
    if isinstance(claim.axes, arguments.MadeInside):
        return [base]
    if claim.mesh is not None:
        return [max(base // claim.mesh.shares, 1) * claim.mesh.shares]
    # Of shares as large as the given batch the function surely takes each.
    return [*sizes_for(base), LCM * base]


def _of_size(claim: Claim, size: int) -> tuple[protocol.Derivation, int]:
    """The answer of `witness` for one size of the batch, and the multiple of rows that rules ask for.

    Its batch is 0 where that is not traced.
    """
    inputs, multiple, mesh = claim.inputs(size), claim.multiple, claim.mesh
    try:
        original = traced_as(inputs.function, inputs.packed, inputs.leaves)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        name = "the original" if claim.reference is None else "the reference"
        return _ended(f"{name} is not traced for a batch of {size}: {summary(error)}"), 0
    inputs = dataclasses.replace(inputs, known=original)
    # What is done otherwise on one number of devices shows on that one alone.
    small = operations(original.jaxpr) <= FEW
    usual = counts_for(size, most=4 if small else 2) if mesh is None else [mesh.devices]
    try:
        found = compared(claim, inputs, usual, or_on_all=claim.foreign)
    except Untraced as problem:
        # What is shown on some counts of devices tells what rules ask for.
        some = problem.found
        asked = multiple_of((*some.unmet, *some.conditions), size) if some is not None else 1
        return _ended(str(problem)), math.lcm(asked, multiple)
    asked, needed = (multiple_of(each, size) for each in (found.unmet, found.conditions))
    elsewhere: tuple[int, ...] = ()
    if found.complete and claim.axes and claim.foreign:
        found, elsewhere = on_others(claim, found, usual, small=small)
    if found.complete and claim.axes and not claim.uniform:
        larger, hidden = with_many_rows(claim, inputs, usual, math.lcm(needed, multiple))
        needed = math.lcm(needed, hidden if found.axes else 1)
        for many, counts in larger:
            # A slice that takes all of a small batch is another program on a large one.
            try:
                found = compared(claim, many, counts)
            except Untraced as problem:
                told = claim.reference is not None or (not claim.foreign and claim.telling(0))
                if many is not larger[-1][0] or told:
                    continue  # Whoever calls it with so many is told; others that tell are asked about.
                return _ended(f"with a batch of {many.rows} {problem}"), 0
            found = only_there(
                found, f"a batch of {many.rows} is worked on in another way than one of {size}"
            )
            needed = math.lcm(needed, multiple_of(found.conditions, many.rows))
            break
    known, forms = math.lcm(needed, multiple), dict[FixedForm, None]()
    if found.complete and claim.axes and claim.reference is None and (claim.foreign or found.axes):
        for form, there in other_forms(claim, inputs, usual, known, small=small):
            if claim.foreign:
                found = there
                break
            forms |= dict.fromkeys(form.given)
    answer = describe(
        in_multiples(found, needed, multiple),
        counts=tuple(usual),
        batch=size,
        multiple=needed,
        # What code that checks its batch would be equal for.
        asked=known if found.complete else 0,
        run=fitting(
            claim.packed,
            claim.axes,
            original.jaxpr,
            claim.rows,
            (size, usual[:2]),
            claim.room,
            claim.seconds,
            multiple,
            mesh.shares if mesh is not None else 0,
        ),
        forms=tuple(forms),
        elsewhere=elsewhere,
        own_gradients=() if claim.foreign else not_linear(original.jaxpr),
    )
    return answer, math.lcm(asked, multiple) if asked > 1 else 0


def _with_others(claim: Claim, answer: protocol.Derivation) -> protocol.Derivation:
    """A complete answer, with what is derived for the other sizes of the batch that tell more."""
    for rows in claim.telling(answer.operations):
        why = otherwise_with(claim, rows)
        if why is None:
            continue
        unshown = (*answer.unshown, rows)
        answer = dataclasses.replace(answer, endings=(why,), unshown=unshown)
        share = answer.batch // max(answer.counts)
        suits = suiting(claim, rows, share // claim.multiple)
        if suits is not None:
            # Code that checks its batch would be equal.
            return dataclasses.replace(answer, asked=claim.multiple * suits)
    return answer


def _ended(why: str) -> protocol.Derivation:
    """The answer where nothing could be derived at all."""
    return describe(ended(why), counts=(), batch=0, multiple=1, asked=0, run=None)


def programs_of(claim: Claim) -> tuple[Sequence[Traced], list[str]]:
    """A parallel function traced on some numbers of devices, and what its inputs are called.

    Its batch is like the given one. There are no traces where it cannot be traced.
    """
    for size in sizes_for(claim.rows)[::-1]:
        inputs = claim.inputs(size)
        try:
            with prove.x64(claim.question.x64):
                [programs] = everywhere(claim.functions, inputs, counts_for(size))
        except Untraced:
            continue
        return programs, inputs.names
    return (), leaf_names(claim.packed)
