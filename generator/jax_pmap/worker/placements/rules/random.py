"""Random numbers: which keys are whose, and what is drawn with them.

A key folded with the device's index is that device's own. What is drawn with it row by row is equal in
distribution to the rows that the whole-batch program draws with the one key, and is called their share.
"""

from typing import Any

from ..equation import Equation, Result, Same, Stuck, rule
from ..lattice import Downward, Index, OwnKey, OwnKeys, Placement, Replicated, Sharded
from .elementwise import describe, power_of

#: Of numbers for what is divided, the examples or a parameter.
DRAWN_ALIKE = "every device draws the numbers of its part with the same key, and so the same numbers"


@rule("rng_uniform")
def stateful(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Numbers that depend on what the device has drawn before."""
    raise Stuck("random numbers are drawn without a key")


@rule("random_fold_in")
def fold_in(eq: Equation, key: Placement, data: Placement, **_: Any) -> Result:
    """Folding the device's index into a key makes it the device's own."""
    plain = isinstance(data, Downward) or (isinstance(data, Index) and data.length == 0)
    if plain and key == Replicated():
        return Same(OwnKey())
    return keyed(eq, key, data)


@rule(
    "random_bits",
    "random_split",
    "random_wrap",
    "random_unwrap",
    "random_seed",
    "random_gamma",
    "threefry2x32",
    "rng_bit_generator",
)
def keyed(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Numbers drawn for examples need a key of the device's own, and numbers for everybody one for all."""
    for place in places:
        if not isinstance(place, (Replicated, OwnKey, Sharded)) or power_of(place):
            raise Stuck(describe(place))
    if eq.name == "random_gamma" and isinstance(places[0], OwnKey):
        places = tuple(place for place in places if not isinstance(place, Sharded))
    elif eq.name == "random_gamma" and any(isinstance(place, Sharded) for place in places):
        if not isinstance(places[0], Sharded):
            raise Stuck(DRAWN_ALIKE)
    sharded = {place for place in places if isinstance(place, Sharded)}
    results = range(len(eq.outputs[0]))
    if sharded:
        if len(sharded) > 1 or any(isinstance(place, OwnKey) for place in places):
            raise Stuck("keys that are divided over the devices are combined with others")
        return next(iter(sharded))
    own = any(isinstance(place, OwnKey) for place in places)
    found: list[Placement | Same] = []
    for result in results:
        axis = eq.split(result) if own else split_or_keys(eq, result)
        if isinstance(axis, OwnKeys):
            found.append(Same(axis))
        elif axis is not None and not own:
            raise Stuck(DRAWN_ALIKE)
        elif axis is None and own and eq.name in ("random_bits", "random_gamma"):
            raise Stuck("random numbers for all devices are drawn with a key of this device's own")
        else:
            found.append(eq.drawn(axis, result) if axis is not None else OwnKey() if own else Replicated())
    return tuple(found)


def split_or_keys(eq: Equation, result: int) -> Any:
    """The sharded axis of a result; of a key that is split into as many as there are devices, `OwnKeys`."""
    axes = eq.varying(result)
    if eq.name == "random_split" and len(axes) == 1:
        if all(shapes[result][axes[0]] == count for shapes, count in zip(eq.outputs, eq.counts, strict=True)):
            return OwnKeys(axes[0])
    return eq.split(result)
