"""Names of the emitted file that are ours, kept apart from the user's."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """What an import binds a name to: a module, or an attribute of one.

    ``import flax.linen as nn`` and ``from flax import linen as nn`` bind the same, and are equal.
    """

    module: str
    attribute: str | None = None

    @property
    def dotted(self) -> str:
        """One name for it, whichever statement binds it."""
        return self.module if self.attribute is None else f"{self.module}.{self.attribute}"

    def __eq__(self, other: object) -> bool:  # noqa: D105
        return isinstance(other, Imported) and self.dotted == other.dotted

    def __hash__(self) -> int:  # noqa: D105
        return hash(self.dotted)


#: By alias, everything that emitted code imports for itself.
ALIASES = {
    "collections": Imported("collections"),
    "contextlib": Imported("contextlib"),
    "functools": Imported("functools"),
    "hashlib": Imported("hashlib"),
    "jax": Imported("jax"),
    "np": Imported("numpy"),
    "sys": Imported("sys"),
    "types": Imported("types"),
    "Mesh": Imported("jax.sharding", "Mesh"),
    "NamedSharding": Imported("jax.sharding", "NamedSharding"),
    "P": Imported("jax.sharding", "PartitionSpec"),
    "multihost_utils": Imported("jax.experimental", "multihost_utils"),
    "eqx": Imported("equinox"),
    "nnx": Imported("flax", "nnx"),
    "nn": Imported("flax.linen"),
    "hk": Imported("haiku"),
    "numpyro": Imported("numpyro"),
}


@dataclass(frozen=True, slots=True)
class Words:
    """What woven code calls things that are not the user's."""

    #: Source of the axis name, and what jax is imported as.
    axis: str = "AXIS"
    jax: str = "jax"
    #: Helpers that take a device's part of a whole value, and of a number of rows.
    own_share: str = "own_share"
    own_size: str = "own_size"
    #: Helpers that gather batches that are joined, put parts together, and divide a sum into such.
    gather_joined: str = "gather_joined"
    gathered: str = "gathered"
    scattered: str = "scattered"
    #: Helpers that fold the keys inside objects while the body runs, that sum up what statements add to
    #: objects, and that raise in place of the side of an expression that a guard stands for.
    own_draws: str = "own_draws"
    summed: str = "summed"
    unseen: str = "unseen"


USUAL = Words()


@dataclass(frozen=True, slots=True, kw_only=True)
class Names(Words):
    """What the emitted file calls its own things; weaving and rendering both ask here."""

    #: The function on one device's share.
    mapped: str
    #: Table of what was proved of the batch's arrays, and helpers that hold an array to it; the second one
    #: says besides whether an earlier call has split it.
    proved: str
    check: str
    is_split: str
    #: Cached function that says where arrays go, and the helper that puts those of the batch there.
    sharding: str
    shard: str
    #: Helper that makes one batch of minibatches.
    merged: str
    #: Helper that puts what a call gets back from the one before it on all devices.
    replicate: str
    unshard: str
    place: str
    #: Helper that makes arrays of all processes from the rows of this one.
    assemble: str
    #: Cached function that holds all processes to as many rows.
    same_rows: str
    devices_in_use: str
    #: Cached function that makes the mesh.
    mesh: str
    #: Table of how arrays lie on the mesh, cached function that looks up a tree in it, and one that puts an
    #: argument there.
    specs: str
    shardings: str
    put: str
    #: Helper that says how arrays in parts lie.
    specs_of: str
    #: Cached function that compiles `mapped` for chosen devices.
    compiled: str
    #: Modules and classes as they are bound in the emitted file.
    collections: str
    contextlib: str
    functools: str
    hashlib: str
    np: str
    sys: str
    types: str
    Mesh: str
    NamedSharding: str
    P: str
    multihost_utils: str
    eqx: str
    nnx: str
    nn: str
    hk: str
    numpyro: str
    #: What the mapped function left of the arguments it changes.
    changed: str
    #: Helpers that take an argument apart into arrays and constants, and put it together.
    partition: str
    combine: str
    #: Helpers that make an uneven batch even, and take added rows off results.
    fit: str
    cut: str
    #: Helper that says whether objects have a variable in common.
    overlap: str
    #: Helper that puts a copy in the place of a function that a value holds.
    in_place_of: str
    #: Helper that makes the error for inputs other than those of the proof.
    unproved: str
    #: Helpers that say in which mode Flax NNX objects are, and modules whose flags are leaves.
    modes: str
    flags: str
    #: Helper that refuses inputs of other forms than those of the proof.
    as_proved: str
    #: Helper that says what a constant is, and class that makes one a static argument that has no hash.
    contents: str
    #: Helper that has layers take the statistics of a batch over all devices.
    over_devices: str
    Constant: str
    #: Constant that holds how many microbatches there are, and helpers that divide a share into them and add
    #: up what a function makes of each.
    groups: str
    microbatches: str
    accumulated: str


#: Those of our own things that are constants.
CONSTANTS = {"axis": "AXIS", "specs": "SPECS", "proved": "PROVED", "groups": "MICROBATCHES"}
FIELDS = tuple(each.name for each in fields(Names))
#: What our own things are called where that name is free: helpers as their field.
OWN = {field: CONSTANTS.get(field, field) for field in FIELDS if field not in {"mapped", *ALIASES}}


def bindings(statement: str) -> dict[str, Imported]:
    """What the names stand for that import statements bind."""
    bound: dict[str, Imported] = {}
    for node in ast.parse(statement).body:
        if isinstance(node, ast.Import):
            for item in node.names:
                top = item.name.partition(".")[0]
                bound[item.asname or top] = Imported(item.name if item.asname else top)
        elif isinstance(node, ast.ImportFrom):
            for item in node.names:
                module = "." * node.level + (node.module or "")
                bound[item.asname or item.name] = Imported(module, item.name)
    return bound


def names_for(
    name: str,
    taken: frozenset[str],
    *,
    imports: Iterable[str] = (),
    bound: Iterable[str] = (),
) -> Names:
    """Choose the names for the file emitted for function `name`.

    Args:
        name: the target's own name, which the drop-in keeps.
        taken: every name the user's module binds or the function uses.
        imports: import statements the emitted file carries for the body and the annotations.
        bound: other names the emitted file binds to the user's things: parameters, copied
            definitions, names imported from the user's modules.

    Our own names get a trailing underscore when `taken`, imported ones only when the
    emitted file binds them to something else: that the user's module imports numpy too
    is no reason for ``np_``.
    """
    foreign = {each: Imported("", each) for each in bound}
    for statement in imports:
        foreign |= bindings(statement)

    def own(wanted: str) -> str:
        return own(wanted + "_") if wanted in taken or wanted in foreign else wanted

    def imported(alias: str) -> str:
        wanted = alias
        if alias in ("eqx", "nnx", "nn", "hk", "numpyro"):
            # What the user's own import calls it.
            wanted = next((name for name, what in foreign.items() if what == ALIASES[alias]), alias)
        while foreign.get(wanted, ALIASES[alias]) != ALIASES[alias]:
            wanted += "_"
        return wanted

    return Names(
        mapped=own(f"p_{name}"),
        **{field: own(wanted) for field, wanted in OWN.items()},
        **{alias: imported(alias) for alias in ALIASES},
    )
