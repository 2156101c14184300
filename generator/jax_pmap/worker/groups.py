"""Which devices of a mesh talk to each other in a collective, as XLA writes it: along which axes."""

import itertools
import math
import re
from collections.abc import Mapping

import numpy as np

#: What stands for the devices of a collective: lists, numbers counted up and transposed, or axes of a mesh.
LISTED = re.compile(r"replica_groups=\{(?P<groups>\{[\d,{} ]*\})\}")
COUNTED = re.compile(
    r"replica_groups=\[(?P<groups>[\d,]+)\]<=\[(?P<sizes>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
)
NAMED = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\]"
    r"(?:, device_ids=\(\[(?P<sizes>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?\))?"
    r" \{(?P<axes>[^}]*)\}"
)
PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>[\d,{} ]*)\}")


def along(text: str, mesh: Mapping[str, int]) -> "list[str] | None":
    """The axes of `mesh` along which the collective in a line of a compiled program goes.

    None where it goes between other groups of devices, or in a form that is not known.
    """
    pairs = PAIRS.search(text)
    if pairs:
        return _of_pairs(_lists(pairs["pairs"]), mesh)
    groups = _groups(text, math.prod(mesh.values()))
    if groups is None:
        return None
    wanted = {frozenset(group) for group in groups}
    ids = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    names = list(mesh)
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, size):
            kept = [names.index(name) for name in names if name not in chosen]
            own = [names.index(name) for name in chosen]
            rows = ids.transpose(*kept, *own).reshape(-1, math.prod(mesh[name] for name in chosen))
            if {frozenset(row) for row in rows.tolist()} == wanted:
                return list(chosen)
    return None


def _groups(text: str, number: int) -> "list[list[int]] | None":
    """The groups of devices in a line of a compiled program."""
    if "replica_groups={}" in text:
        return [list(range(number))]
    if (listed := LISTED.search(text)) is not None:
        return _lists(listed["groups"])
    if (counted := COUNTED.search(text)) is not None:
        shape = _numbers(counted["groups"])
        found: list[list[int]] = _counted(counted["sizes"], counted["order"]).reshape(shape).tolist()
        return found
    named = NAMED.search(text)
    if named is None:
        return None
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named["mesh"])}
    axes = [each.strip().strip("'") for each in named["axes"].split(",")]
    if not all(axis in sizes for axis in axes):
        return None  # A part of an axis.
    ids = np.arange(math.prod(sizes.values()))
    if named["sizes"]:
        ids = _counted(named["sizes"], named["order"])
    ids = ids.reshape(tuple(sizes.values()))
    names = list(sizes)
    order = [i for i, name in enumerate(names) if name not in axes] + [names.index(name) for name in axes]
    rows: list[list[int]] = ids.transpose(order).reshape(-1, math.prod(sizes[name] for name in axes)).tolist()
    return rows


def _of_pairs(pairs: "list[list[int]]", mesh: Mapping[str, int]) -> "list[str] | None":
    """The axes along which senders and receivers are apart."""
    sizes = tuple(mesh.values())
    places = [[np.unravel_index(device, sizes) for device in pair] for pair in pairs if len(pair) == 2]
    apart = [name for i, name in enumerate(mesh) if any(one[i] != other[i] for one, other in places)]
    return apart or None


def _lists(text: str) -> "list[list[int]]":
    return [_numbers(each) for each in re.findall(r"\{([\d, ]*)\}", text)]


def _numbers(text: str) -> "list[int]":
    return [int(each) for each in text.split(",") if each.strip()]


def _counted(sizes: str, order: "str | None") -> np.ndarray:
    """Numbers counted up, in an array of these sizes whose axes are put in another order."""
    ids = np.arange(math.prod(_numbers(sizes))).reshape(_numbers(sizes))
    return (ids.transpose(_numbers(order)) if order else ids).reshape(-1)
