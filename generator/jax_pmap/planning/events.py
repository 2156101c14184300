"""What one run on the whole batch and on shards showed of a value, and the collectives tried so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax_pmap.emit.places import Expression, place
from jax_pmap.model import REDUCING, Refusal, Sync
from jax_pmap.worker.protocol import Row

#: Kinds of partial values, by what makes them whole.
PARTIAL = REDUCING


def in_groups(leaf: Row) -> bool:
    """Whether a device has rows of several groups of an array, as of two batches that are joined."""
    return leaf["kind"] == "grouped" or bool(leaf.get("joined"))


def has_offset(leaf: Row) -> bool:
    """Whether a device's rows of an array have a part of a sum over the devices added to them."""
    return bool(leaf["kind"] == "offset")


class Event:
    """The kinds of one tapped value.

    Rows that are divided into groups need nothing until something is done to each group by itself, and rows
    that a part of a sum is added to until they are more than added up. Leaves that are `lost` count as what
    no relation is known of.
    """

    def __init__(self, data: Row, lost: Callable[[Row], bool] | None = None) -> None:
        if lost is not None and any(map(lost, data["leaves"])):
            leaves = [{**leaf, "kind": "varying"} if lost(leaf) else leaf for leaf in data["leaves"]]
            data = {**data, "leaves": leaves}
        self.point: int = data["point"]
        #: How often the point was passed before.
        self.occurrence: int = data.get("occurrence", 0)
        self.unaligned = bool(data.get("unaligned"))
        #: Whether an object in it has methods that may do anything with what they are given.
        self.acts = bool(data.get("acts"))
        self.leaves: list[Row] = data["leaves"]
        self.tree: Any = data.get("tree")
        self.arrays = [
            leaf for leaf in self.leaves if not leaf.get("number") and leaf["category"] != "opaque"
        ]

    @property
    def varying(self) -> bool:
        """Whether some array in it is neither whole, nor a shard, nor partial."""
        return any(leaf["kind"] == "varying" for leaf in self.arrays)

    @property
    def is_known(self) -> bool:
        """Whether it holds arrays and nothing else, and of each of them is known what devices have of it."""
        return not self.unaligned and len(self.arrays) == len(self.leaves) > 0 and not self.varying

    @property
    def is_known_or_size(self) -> bool:
        """Whether what goes into it need not be known: all of it is, or it is sizes, as ``x.shape[0]`` is."""
        # `self.sow("loss", value)` gives a truth value, and keeps what it is given.
        sizes = bool(self.leaves) and all(leaf["category"] == "int" for leaf in self.leaves)
        return self.is_known or (sizes and not self.unaligned)

    @property
    def whole(self) -> bool:
        """Whether everything in it is the same on every device."""
        return not self.unaligned and all(leaf["kind"] == "replicated" for leaf in self.leaves)

    @property
    def alike(self) -> bool:
        """Whether it is arrays and numbers, no key among them, that are the same on every device."""
        return not self.unaligned and all(
            leaf["kind"] == "replicated" and leaf["category"] not in ("key", "opaque") for leaf in self.leaves
        )

    @property
    def floats(self) -> bool:
        """Whether it is arrays of floats alone."""
        return all(leaf["dtype"].startswith(("float", "bfloat", "complex")) for leaf in self.arrays)

    def partial(self, numbers: bool = False) -> list[Row]:
        """Its partial array leaves; with `numbers`, Python numbers too."""
        return [leaf for leaf in (self.leaves if numbers else self.arrays) if leaf["kind"] in PARTIAL]

    @property
    def updated(self) -> bool:
        """Whether something whole went into a partial array, as into ``w - 0.1 * grads``.

        The mean of that over the devices is the mean of the gradients, but for what the weights are rounded.
        """
        return any(leaf.get("updated") for leaf in self.partial())

    @property
    def is_container(self) -> bool:
        """Whether it is no single array or number, but holds some, or may."""
        return [leaf["path"] for leaf in self.leaves] != [""]

    @property
    def partly_whole(self) -> bool:
        """Whether some arrays in it are whole, and all others partial."""
        return {leaf["kind"] for leaf in self.arrays} - PARTIAL == {"replicated"} and bool(self.partial())

    @property
    def is_share(self) -> bool:
        """Whether it holds arrays, and all of them are this device's rows."""
        return bool(self.arrays) and all(leaf["kind"].startswith("sharded") for leaf in self.leaves)

    def whole_op(self, numbers: bool) -> str | None:
        """The one collective that mends every leaf, or None where leaves differ."""
        leaves = self.leaves if numbers else self.arrays
        kinds = {leaf["kind"] for leaf in leaves}
        return str(kinds.pop()) if len(kinds) == 1 and kinds <= PARTIAL else None

    def op_for_copies(self, partial: Sequence[Row]) -> str | None:
        """The one collective that mends the `partial` leaves and leaves the others as they are, or None.

        An average, maximum or minimum of equal copies is that copy; integers would change type.
        """
        ops = {leaf["kind"] for leaf in partial}
        whole = all(leaf["kind"] == "replicated" or leaf in partial for leaf in self.leaves)
        floats = all(leaf["dtype"].startswith(("float", "bfloat", "complex")) for leaf in self.leaves)
        return str(ops.pop()) if len(ops) == 1 and "psum" not in ops and whole and floats else None


def uneven(events: Sequence[Event]) -> frozenset[int]:
    """Points whose values are a sum over the shards one time and a mean the next, say."""
    ops: dict[int, set[str]] = {}
    for event in events:
        kinds = {leaf["kind"] for leaf in event.partial(numbers=True)}
        if kinds:
            ops.setdefault(event.point, set()).add(" ".join(sorted(kinds)))
    return frozenset(point for point, found in ops.items() if len(found) > 1)


def is_part(path: str, of: str) -> bool:
    """Whether a path leads to a part of what another leads to, or to it: ``"['a'].w"`` is of ``"['a']"``."""
    return path.startswith(of) and path[len(of) : len(of) + 1] in ("", "[", ".")


def children(node: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container by what leads to them, none of a leaf; None where it cannot be made again."""
    if isinstance(node, int) or node is None:
        return []
    kind = node["kind"]
    if kind == "dict":
        keys = [f"[{key}]" for key in node["keys"]]
    elif kind in ("tuple", "list"):
        keys = [f"[{i}]" for i in range(len(node["children"]))]
    elif kind in ("namedtuple", "dataclass"):
        keys = [f".{key}" for key in node["keys"]]
    else:
        return None
    return list(zip(keys, node["children"], strict=True))


def largest_parts(event: Event, chosen: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The largest parts of a value whose leaves are all among some and of one kind, with their leaves.

    Of gradients by ``{"net": …, "target": …}`` that is ``"['net']"``, where those by the target are zeros.
    """
    found: list[tuple[str, list[Row]]] = []

    def walk(node: Any, prefix: str) -> None:
        leaves = [leaf for leaf in event.leaves if is_part(leaf["path"], prefix)]
        own = [leaf for leaf in leaves if leaf in chosen]
        if own and len(own) == len(leaves) and len({leaf["kind"] for leaf in own}) == 1:
            found.append((prefix, own))
        elif (parts := children(node)) is None:
            found.extend((leaf["path"], [leaf]) for leaf in own)
        elif own:
            for key, child in parts:
                walk(child, prefix + key)

    walk(event.tree, "")
    return found


def containers_above(paths: Sequence[str], tree: Any) -> tuple[tuple[str, str], ...] | None:
    """Kinds of the containers above the parts at `paths`, or None if one cannot be made again."""
    found: dict[str, str] = {}

    def walk(node: Any, prefix: str) -> bool:
        if not any(is_part(path, prefix) and path != prefix for path in paths):
            return True
        parts = children(node)
        if not parts:
            return parts is not None
        what = {
            "tuple": f" {len(parts)}",
            "list": f" {len(parts)}",
            "dataclass": "".join(k for k, _ in parts),
        }
        found[prefix] = node["kind"] + what.get(node["kind"], "")
        return all(walk(child, prefix + key) for key, child in parts)

    if tree is None or not walk(tree, ""):
        return None
    return tuple(found.items())


@dataclass(slots=True)
class Rescue:
    """Ways to let an expression run that fails on shares beside gathered values."""

    point: int
    #: Sets of operands still to be gathered, each operand with the axis it is a share along.
    sets: list[list[tuple[Expression, int]]]
    #: Syncs of the set that is tried.
    added: list[Sync] = field(default_factory=list)


@dataclass(slots=True)
class Attempts:
    """How far the gathering of values has got."""

    #: Expressions made whole that are one share without that, by point, with the axis of the
    #: share and how many rows there are in all.
    awaited: dict[int, tuple[Expression, int, int]] = field(default_factory=dict)
    #: Of an expression whose operands are gathered one by one: how many were, and the gathers under trial.
    tried: dict[int, int] = field(default_factory=dict)
    trial: tuple[tuple[Sync, ...], int] | None = None
    #: What is gathered where the function fails beside gathered values.
    rescue: Rescue | None = None
    #: Expressions for which that was tried since the function last ran.
    failed: set[int] = field(default_factory=set)
    #: Statements whose sizes were made those of the whole batch because they failed beside gathered values,
    #: since then.
    resized: set[int] = field(default_factory=set)
    #: For which expression each value is gathered, by the place of that value.
    coupling: dict[tuple[int, int, int, int], Expression] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """The collectives in place while the rounds go on."""

    syncs: list[Sync] = field(default_factory=list)
    #: Syncs that were tried and did not help.
    blocked: set[tuple[str, tuple[int, int, int, int], str]] = field(default_factory=set)
    #: Calls that are looked into: the scope of the function, and the point of the call.
    opened: set[tuple[int, int]] = field(default_factory=set)
    #: Scopes of functions whose result goes into their next run.
    loops: set[int] = field(default_factory=set)
    #: Those of them of whose result, a pair, the first part does, and the second one is stacked.
    stacking: set[int] = field(default_factory=set)
    #: Those of them whose result decides whether there is another round.
    deciding: set[int] = field(default_factory=set)
    #: Statements with a varying value nothing helps: what stands there, if the result depends on it.
    hopeless: dict[int, Refusal] = field(default_factory=dict)
    #: Whether rows that are divided into groups are to be gathered, and whether there were such.
    gather_groups: bool = False
    grouped: bool = False
    #: What is called and was not found when it was to be looked into; and why, where that is known.
    closed: dict[str, str] = field(default_factory=dict)
    #: Of methods that have a copy, another one that objects were seen to have, by the scope.
    others: dict[int, str] = field(default_factory=dict)
    attempts: Attempts = field(default_factory=Attempts)
    #: What stays partial in what is differentiated, whether anything may, and whether anything did: see
    #: `Mending.deferred`.
    deferred: list[Expression] = field(default_factory=list)
    defers: bool = True
    has_deferred: bool = False
    #: Whether calls that change an argument are looked into for that, and whether any was.
    opens_changes: bool = True
    has_opened_changes: bool = False
    #: Maxima and minima over the devices of which jax takes a derivative, and has none, with their points.
    without_derivative: list[tuple[Sync, int]] = field(default_factory=list)
    #: Points that are passed several times with values partial in other ways, which no one collective serves.
    uneven: frozenset[int] = frozenset()
    #: Syncs added in the last round, with the point whose value they must have mended.
    fresh: list[tuple[Sync, int]] = field(default_factory=list)

    def add(self, sync: Sync, point: int) -> bool:
        """Put a collective in place, unless it is there or was of no help; whether that was done.

        A point that is passed with a sum one time and a mean the next gets none.
        """
        if (
            identity(sync) in self.blocked
            or point in self.uneven
            or any(identity(sync) == identity(other) for other in self.syncs)
        ):
            return False
        self.syncs.append(sync)
        self.fresh.append((sync, point))
        return True

    def allow(self, syncs: Iterable[Sync]) -> None:
        """Have collectives tried again that were of no help alone."""
        self.blocked -= {identity(sync) for sync in syncs}

    def forget(self, sync: Sync) -> None:
        """Take a collective away that may be tried again."""
        self.syncs.remove(sync)
        self.fresh = [entry for entry in self.fresh if entry[0] is not sync]

    def take_back(self, sync: Sync) -> None:
        """Take a collective away for good."""
        self.forget(sync)
        self.blocked.add(identity(sync))


def identity(sync: Sync) -> tuple[str, tuple[int, int, int, int], str]:
    """What makes two syncs the same."""
    return (
        sync.where,
        place(sync.span),
        f"{sync.value}{''.join(sync.paths)}{sync.op}{sync.axis}{sync.constant}",
    )
