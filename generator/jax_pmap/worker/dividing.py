"""Whether a parallel function divides by itself what it is given whole."""

from collections.abc import Sequence
from typing import Any

from .jaxpr.forward import Sources, union
from .jaxpr.versions import primitive_name, shard_map_specs
from .jaxpr.walk import equations

#: What is known of a value: that rows of the batch are in it, or the index of the device.
BATCH, INDEX = 1, 2
#: Operations by which a device takes a part of what it has whole, if it knows its index.
TAKING = frozenset({"dynamic_slice", "dynamic_update_slice", "gather", "mul", "select_n"})
#: What gives each device a part of what all have, and what has the compiler do so.
SCATTERING = frozenset({"all_to_all", "reduce_scatter", "sharding_constraint"})


def is_divided(traced: Any, batch: Sequence[bool]) -> bool:
    """Whether a program divides any of the inputs that are of the `batch`, which are its rows.

    With `in_axes=None` for them every device has all rows, and nothing is asked of what it does with a part.
    True of a program that is not mapped: where its arrays lie is up to the compiler.
    """
    if not any(each.primitive.name in ("shard_map", "xla_pmap") for each in equations(traced)):
        return True
    walk = _Divided()
    walk.run(traced, [BATCH if each else 0 for each in batch])
    return walk.found


class _Divided(Sources):
    """Looks for what divides rows of the batch over the devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def operation(self, equation: Any, facts: list[int]) -> list[int]:
        name = primitive_name(equation)
        known = union(facts)
        if name == "axis_index":
            known = INDEX
        elif name.startswith(("random", "threefry", "rng")):
            known &= BATCH  # Noise of its own is no part.
        self.found |= name in SCATTERING and bool(known & BATCH)
        self.found |= name in TAKING and known == BATCH | INDEX
        return [known] * len(equation.outvars)

    def under(self, fact: int, choice: int) -> int:
        return fact | choice

    def share(self, equation: Any, facts: list[int]) -> list[int]:
        if primitive_name(equation) == "shard_map":
            divided: Sequence[Any] = shard_map_specs(equation.params)[0]
        else:
            divided = [axis is not None for axis in equation.params.get("in_axes", ())]
        self.found |= any(
            bool(axes) and bool(fact & BATCH) for axes, fact in zip(divided, facts, strict=False)
        )
        return facts
