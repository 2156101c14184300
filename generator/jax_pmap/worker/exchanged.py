"""Choices between what devices have exchanged and what each has of its own."""

from typing import Any

import numpy as np

from .jaxpr.forward import Forward, union
from .jaxpr.versions import named_axes, primitive_name, shard_map_specs
from .placements.interpreter import COLLECTIVES

#: What is known of a value, as bits: each device may have another one; it comes of an exchange; around the
#: devices, it is repeated, as what is given to all of them is.
OWN, EXCHANGED, COPIES = 1, 2, 4
#: Collectives that give all devices the same.
ALIKE = frozenset({"psum", "pmax", "pmin", "all_gather"})
#: Equations by their `id`, each behind those around it.
Chosen = frozenset[tuple[int, ...]]


def chosen_apart(jaxpr: Any) -> Chosen:
    """The equations that take one of two values by what all devices agree on: an exchanged one, or their own.

    ``where(step % 1000 == 999, gradient, pmean(gradient))`` is a branch without a mean.
    """
    found = _Choices()
    found.run(jaxpr, [0] * len(jaxpr.in_avals))
    return frozenset(found.apart)


class _Choices(Forward[int]):
    def __init__(self) -> None:
        super().__init__()
        self.around: tuple[int, ...] = ()
        self.axes: frozenset[str] = frozenset()
        self.apart: set[tuple[int, ...]] = set()

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

    def share(self, equation: Any, facts: list[int]) -> list[int]:
        params = equation.params
        if "mesh" not in params:
            return [0 if fact & COPIES else OWN for fact in facts]
        self.axes |= {name for name, size in dict(params["mesh"].shape).items() if size > 1}
        specs = shard_map_specs(params)[0]
        return [OWN if spec and not fact & COPIES else 0 for spec, fact in zip(specs, facts, strict=True)]

    def operation(self, equation: Any, facts: list[int]) -> list[int]:
        name = primitive_name(equation)
        made = union(facts)
        if name == "broadcast_in_dim" and not self.axes:
            made = COPIES
        elif name == "axis_index":
            made = OWN
        elif name in COLLECTIVES:
            whole = name in ALIKE and self.axes <= set(named_axes(equation.params))
            made = EXCHANGED if whole else made | OWN | EXCHANGED
        elif name == "select_n" and len(facts) == 3 and equation.invars[0].aval.dtype == np.bool_:
            by, *ways = facts
            if not by & OWN and EXCHANGED in ways and any(way & OWN for way in ways):
                self.apart.add(self.around)
        return [made] * len(equation.outvars)
