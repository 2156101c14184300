"""What devices have exchanged, and what each has of its own: choices between these, and results of these."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from .jaxpr.forward import Forward, union
from .jaxpr.raising import raises
from .jaxpr.versions import inner_jaxpr, named_axes, opened, primitive_name, shard_map_specs
from .placements.interpreter import COLLECTIVES

#: What is known of a value, as bits: it comes of an exchange; around the devices, it is repeated, as what is
#: given to all of them is; it went from one device to another, or tells them apart, and may be alike again.
#: The bits from `OWN` on: along that mesh axis, each device may have another one.
EXCHANGED, COPIES, PASSED, OWN = 1, 2, 4, 8
#: Collectives that give all devices the same.
ALIKE = frozenset({"psum", "pmax", "pmin", "all_gather"})
#: Equations by their `id`, each behind those around it.
Chosen = frozenset[tuple[int, ...]]


def is_own(fact: int) -> bool:
    """Whether each device may have another value, along some mesh axis."""
    return fact >= OWN


def kept_apart(jaxpr: Any) -> tuple[Chosen, list[Any]]:
    """Where a program goes on with what each device has of its own in the place of what they exchanged.

    Returns:
        The equations that take one of two values by what all devices agree on: an exchanged one, or their
        own. ``where(step % 1000 == 999, gradient, pmean(gradient))`` is a branch without a mean. And those
        that make what is given as one result of all devices, and is made of what each has of its own:
        ``pmean(gradient) * (1 - gate) + gradient * gate``. By this rule jax refuses with `check_vma`; here
        what devices pass on one by one may be alike in the end, as in a ring.
    """
    found = _Exchanged()
    found.run(jaxpr, [0] * len(jaxpr.in_avals))
    return frozenset(found.apart), found.kept


class _Exchanged(Forward[int]):
    def __init__(self) -> None:
        super().__init__()
        self.around: tuple[int, ...] = ()
        #: Bits of the mesh axes that were met.
        self.axes: dict[str, int] = {}
        #: Those of the maps around.
        self.within = 0
        self.apart: set[tuple[int, ...]] = set()
        self.kept: list[Any] = []

    def constant(self, value: Any) -> int:
        return 0

    def join(self, one: int, other: int) -> int:
        return one | other

    def under(self, fact: int, choice: int) -> int:
        return fact | choice

    def equation(self, equation: Any, facts: list[int]) -> list[int]:
        before, self.around = self.around, (*self.around, id(equation))
        try:
            return super().equation(equation, facts)
        finally:
            self.around = before

    def cond(self, equation: Any, facts: list[int]) -> list[int]:
        if any(map(raises, equation.params["branches"])):
            facts = [0, *facts[1:]]  # One way there are no results.
        return super().cond(equation, facts)

    def along(self, names: Iterable[str]) -> int:
        """The bits of mesh axes of several devices."""
        return union(self.axes.get(name, 0) for name in names)

    def mapped(self, equation: Any, facts: list[int]) -> list[int]:
        params = equation.params
        sizes = dict(params["mesh"].shape) if "mesh" in params else {params["axis_name"]: 2}
        for name in (name for name, size in sizes.items() if size > 1):
            self.axes.setdefault(name, OWN << len(self.axes))
        if "mesh" in params:
            inward, outward = ([tuple(each) for each in specs] for specs in shard_map_specs(params))
        else:
            mapped = (params[name] for name in ("in_axes", "out_axes"))
            inward, outward = ([() if axis is None else (*sizes,) for axis in axes] for axes in mapped)
        # What another map gave is whole again.
        known = self.within and self.within | PASSED
        given = [
            0 if fact & COPIES else fact & known | self.along(spec)
            for fact, spec in zip(facts, inward, strict=True)
        ]
        body, before = opened(inner_jaxpr(params))[0], self.within
        self.within |= self.along(sizes)
        made = self.inside(0, inner_jaxpr(params), given)
        self.within = before
        if self.settled:
            by = {variable: each for each in body.eqns for variable in each.outvars}
            for fact, spec, variable in zip(made, outward, body.outvars, strict=True):
                if is_own(fact & ~self.along(spec) & ~before) and not fact & PASSED:
                    self.kept.append(by.get(variable, equation))
        return made

    def operation(self, equation: Any, facts: list[int]) -> list[int]:
        name = primitive_name(equation)
        made = union(facts)
        if name == "broadcast_in_dim" and not self.axes:
            made = COPIES
        elif name == "axis_index":
            made = self.along(named_axes(equation.params)) | PASSED
        elif name in COLLECTIVES:
            along = self.along(named_axes(equation.params))
            if name in ALIKE and equation.params.get("axis_index_groups") is None:
                left = made & ~along
                made = left | EXCHANGED if is_own(left) else EXCHANGED
            else:
                made |= along | EXCHANGED | PASSED
        elif name == "select_n" and len(facts) == 3 and equation.invars[0].aval.dtype == np.bool_:
            by, *ways = facts
            if not is_own(by) and EXCHANGED in ways and any(map(is_own, ways)):
                self.apart.add(self.around)
        return [made] * len(equation.outvars)
