"""Other counts of devices than the usual ones, on which a function may work in another way."""

import math
from collections.abc import Sequence
from typing import Any

from ..arguments import MadeInside
from ..indices import first_unlike
from ..jaxpr.coincidences import alike, program_of
from ..jaxpr.trace import COUNTS, LCM, Traced
from ..jaxpr.versions import primitive_name
from ..jaxpr.walk import equations
from ..placements.derive import mesh_axes
from ..placements.interpreter import Apart
from ..protocol import Shown
from .claims import Claim, OtherForm, Untraced
from .compare import compared, derived, ended, only_there
from .traces import FEW, on_meshes, traced_on

#: Counts of devices whose batches need not be even: most that are tried else are multiples of 24.
ODD = (3, 5)
#: Counts tried with one that the code names: of those it may have a table of powers of 2.
COMPANIONS = (ODD, (2, 4))
#: Counts on which code is traced that may have limits of its own: more devices than a machine has, say.
UNUSUAL = (3, 5, 64)
#: Counts that are beyond most limits: what is another program on few devices may be one on these.
BEYOND = (64, 128)
#: Sizes of an axis where the others have two, the longest first: what is another program on a few devices
#: along it may be one with these. How many there can be, arrays say that are divided along it.
LONG = (64, 32, 24, 16, 12, 8, 6, 5)
#: Counts that a run tells of where nothing is derived, and each count has a program of its own: an even one
#: that is no power of 2, and more devices than a machine has. And one where each device has its own: more
#: devices than a machine has, which share hardly any array evenly.
RUN_BESIDES = (6, 16)
INDEXED = (11,)
#: A count of few devices that share few arrays evenly, which a run tells of where the numbers of a program
#: do not go on there as on others; how many of those that the code names, and the largest of these.
FEWER, MOST_NAMED, MOST_RUN = 5, 2, 64
#: Counts at which code that takes only some may be asked about, where its index decides beyond those.
LARGE = (16, 24, 32, 48, 64, 128, 256, 512, 1024)
#: Counts that a run tells of where a function is traced on no others besides.
MOST_UNTOLD = 2


def on_others(
    claim: Claim, found: Shown, usual: Sequence[int], *, small: bool
) -> tuple[Shown, tuple[int, ...]]:
    """Where deriving ends on other counts of devices, else what was `found`; and the counts that a run tells.

    Those that the code names, and meshes of other shapes, are looked at for `small` programs.
    """
    named = [count for count in claim.counts if count not in (*UNUSUAL, *usual)] if small else []
    found, told = _on_many(claim, found, named)
    if found.complete and found.axes > 1 and small:
        found, more = _on_long_axes(claim, found)
        told = (*told, *more)
    return found, told


def _on_many(claim: Claim, found: Shown, named: Sequence[int]) -> tuple[Shown, tuple[int, ...]]:
    """`on_others` with one axis of devices.

    A run tells the counts on which it may work in another way than on the usual ones: the derivation ends
    there, or the function takes the largest alone, which tells nothing of how numbers depend on how many
    there are. They are `UNUSUAL` ones and those that the code has `named`, of whose companions the first are
    taken that it takes. ``min(jax.device_count(), 8)`` is the number of devices up to 8, and
    ``{6: 0.5}.get(n, 1)`` mostly 1.
    """
    unlike: dict[int, None] = {}
    untold: dict[int, None] = {}
    ways = [[UNUSUAL], *([(*companions, count) for companions in COMPANIONS] for count in named)]
    for several in ways:
        largest, counts = max(several[0]), several[0]
        taken, there = False, None
        for counts in several:
            takes, there = _on(claim, counts)
            taken = taken or takes
            if there is not None:
                break
        if there is None:
            untold |= {largest: None} if taken else {}
            continue
        if there.complete:
            continue
        beyond = _on(claim, tuple(dict.fromkeys((*BEYOND, largest))))[1] if unlike else None
        if beyond is None or not beyond.complete:
            unlike |= dict.fromkeys(counts)
        if found.complete:
            said = f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"
            found = only_there(there, f"on {said} devices it works in another way")
    more = [count for count in untold if count > max(COUNTS)]
    return found, (*unlike, *more[:MOST_UNTOLD])


def _on(claim: Claim, counts: Sequence[int]) -> tuple[bool, Shown | None]:
    """Whether the functions take the largest of `counts`, and what is derived where they take all of them."""
    inputs = claim.inputs(claim.multiple * math.lcm(*counts))
    try:
        claim.original(inputs)
        largest = [traced_on(each, inputs, max(counts)) for each in claim.functions.values()]
    except Untraced:  # Whoever calls it so is told.
        return False, None
    try:
        if any(len(mesh_axes([each.jaxpr])) > 1 for each in largest):
            return True, None  # It would be derived on sizes of a mesh by themselves.
        return True, compared(claim, inputs, counts, or_on_all=False)
    except (Apart, OtherForm) as problem:
        return True, ended(problem)
    except Untraced:
        return True, None


def _on_long_axes(claim: Claim, found: Shown) -> tuple[Shown, tuple[int, ...]]:
    """`on_others` with a mesh of several axes, each of which is long by itself.

    Along each it has the first of `LONG` sizes that the functions take, and those that the code names.
    """
    functions = list(claim.functions.values())
    inputs = claim.inputs(claim.multiple * math.lcm(LCM, LONG[0]))
    lengths = {size for leaf in inputs.leaves for size in getattr(leaf, "shape", ())}
    first = [2] * found.axes

    def may_divide(size: int) -> bool:
        return size == LONG[0] or any(length > size and length % size == 0 for length in lengths)

    def traced(sizes: Sequence[int]) -> list[Traced] | None:
        try:
            programs = [traced_on(each, inputs, math.prod(sizes), sizes) for each in functions]
            axes = mesh_axes([each.jaxpr for each in programs])
        except (Untraced, Apart):  # Whoever calls it so is told.
            return None
        # A mesh that is written down has the sizes it has.
        return programs if max(map(max, axes.values()), default=0) == max(sizes) else None

    try:
        original = claim.original(inputs)
    except Untraced:
        return found, ()
    start = traced(first)
    if start is None:
        return found, ()
    usual = on_meshes(functions, inputs, [[each] for each in start], [math.prod(first)])
    if len(usual[0]) == 1:
        return found, ()
    others = [[size] for size in claim.counts if 4 < size < LONG[0] and may_divide(size)]
    for at in range(found.axes):
        for several in ([*filter(may_divide, LONG)], *others):
            shapes = ([*first[:at], size, *first[at + 1 :]] for size in several)
            long = next(((sizes, made) for sizes in shapes if (made := traced(sizes)) is not None), None)
            if long is None:
                continue
            sizes, made = long
            rows = [[*row, program] for row, program in zip(usual, made, strict=True)]
            try:
                there = derived(claim, inputs, [*original, *rows])
            except OtherForm as problem:
                there = ended(problem)
            if not there.complete:
                said = f"on a mesh of {' × '.join(map(str, sizes))} devices it works in another way"
                return only_there(there, said), (math.prod(sizes),)
    return found, ()


def to_run_besides(claim: Claim) -> tuple[int, ...]:
    """Counts of devices besides the usual ones that are to be run, where each has a program of its own.

    What holds for a few of them says little of others then: a ring has a step for each device, and a group of
    8 is all devices up to 8. So has each device where its index decides: ``axis_index & 7`` is that index up
    to 8 devices, and a slice of what they share evenly reaches beyond no end. So it may be on a count that
    the code names, and on one that shares nothing evenly: ``len(w) // devices * devices``. Where an index
    that none of these has decides otherwise, as 37 does in ``index == 37``, a count that has it is the last.
    Shares have as many rows on all of them.
    """
    if not claim.axes or isinstance(claim.axes, MadeInside):
        return ()

    def traced(count: int) -> Any:
        try:
            return traced_on(claim.parallel, claim.inputs(LCM * count), count).jaxpr
        except Untraced:  # Whoever calls it so is told.
            return None

    def form(program: Any) -> list[Any]:
        return [
            (primitive_name(each), *(repr(each.params.get(name)) for name in ("perm", "axis_index_groups")))
            for each in equations(program)
        ]

    usual = [traced(count) for count in (4, 8)]
    if usual[0] is None or usual[1] is None:
        return ()
    few, many = map(form, usual)
    indexed = any(name == "axis_index" for name, *_ in few)
    asked = RUN_BESIDES if few != many else INDEXED if indexed else ()
    others = {count: traced(count) for count in asked}
    if few == many:
        named = [count for count in claim.counts if 8 < count <= MOST_RUN and count not in asked]
        on_four, on_eight = program_of(usual[0], 4), program_of(usual[1], 8)
        for count in (FEWER, *named[:MOST_NAMED]):
            program = traced(count)
            if program is not None and not alike(on_four, on_eight, program_of(program, count)):
                others[count] = program
    found = [count for count, program in others.items() if program is not None and len(form(program)) <= FEW]
    tried = max(8, *found) if found else 8
    unlike = [index + 1 for index in first_unlike(usual[1], tried)] if indexed else []
    for count in sorted({*unlike, *(each for each in LARGE if unlike and each > min(unlike))}):
        # What is decided by an index beyond all devices, as ``index < devices`` is, is decided on none.
        program = traced(count)
        if program is not None and first_unlike(program, tried, count):
            found = [each for each in found if each <= tried] + [count]
            if count >= max(unlike):
                break
    return tuple(found)
