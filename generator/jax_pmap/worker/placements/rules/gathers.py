"""Operations that read and write at places that other operands hold: gathers, scatters, dynamic slices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...jaxpr.walk import SCATTERS
from ..equation import CUT_AGAIN, Equation, Result, Same, Sliced, Stuck, rule
from ..lattice import (
    WHOLE,
    Blocks,
    Copies,
    Extreme,
    Index,
    Labels,
    OwnKey,
    Partial,
    Placement,
    Positions,
    Power,
    Replicated,
    Sharded,
)
from .elementwise import common_power, describe, is_alike, no_powers, partial_power, power_of
from .shapes import groups_in, one_copy


@dataclass(frozen=True, slots=True)
class Addressing:
    """Which axes of the operand, of the indices and of the slices belong together.

    The slices are the result of a gather and the updates of a scatter. An axis of theirs is either one of
    a slice of the operand, or one of the array of indices.
    """

    #: Axis of the slices to axis of the operand, for the axes that a slice has.
    windows: "dict[int, int]"
    #: Axis of the indices to axis of the slices.
    rows: "dict[int, int]"
    #: Axis of the indices to the axis of the operand that goes along with it.
    batched: "dict[int, int]"
    #: Column of the indices to the axis of the operand along which it points.
    columns: Sequence[int]

    @staticmethod
    def of_gather(eq: Equation) -> "Addressing":
        """Those of a gather."""
        spec = eq.params["dimension_numbers"]
        return Addressing._of(
            eq,
            len(eq.out()),
            spec.offset_dims,
            spec.collapsed_slice_dims,
            spec.start_index_map,
            spec.start_indices_batching_dims,
        )

    @staticmethod
    def of_scatter(eq: Equation) -> "Addressing":
        """Those of a scatter."""
        spec = eq.params["dimension_numbers"]
        return Addressing._of(
            eq,
            len(eq.shape(2)),
            spec.update_window_dims,
            spec.inserted_window_dims,
            spec.scatter_dims_to_operand_dims,
            spec.scatter_indices_batching_dims,
        )

    @staticmethod
    def _of(
        eq: Equation,
        slices: int,
        window_axes: Sequence[int],
        dropped: Sequence[int],
        columns: Sequence[int],
        batched_indices: Sequence[int],
    ) -> "Addressing":
        """From what gathers and scatters name differently; `slices` is the rank of the slices."""
        batched = eq.params["dimension_numbers"].operand_batching_dims
        sliced = [axis for axis in range(len(eq.shape(0))) if axis not in dropped and axis not in batched]
        others = [axis for axis in range(slices) if axis not in window_axes]
        return Addressing(
            dict(zip(window_axes, sliced, strict=True)),
            dict(zip(range(len(eq.shape(1)) - 1), others, strict=True)),
            dict(zip(batched_indices, batched, strict=True)),
            tuple(columns),
        )


def own_rows(eq: Equation, at: Addressing, operand: Placement, indices: Placement) -> "int | None":
    """Along which axis of the indices each example reads or writes its own row of a sharded operand.

    Either the axis goes along with one of the operand, or a column of the indices holds the position of
    the row itself. None where neither is so.
    """
    if not isinstance(operand, Sharded) or power_of(indices):
        return None
    if isinstance(indices, Sharded) and indices.outer == operand.outer:
        return indices.axis if at.batched.get(indices.axis) == operand.axis else None
    fits = isinstance(indices, Positions) and indices.outer in (None, operand.outer)
    if isinstance(indices, Positions) and fits and indices.axis not in at.batched:
        column = indices.column
        if column is None and len(at.columns) == 1:
            column = 0
        pointed = column is not None and at.columns[column] == operand.axis
        # A slice of one row: with a longer one the rows of other examples are read as well.
        alone = operand.axis not in at.windows.values()
        if pointed and alone and indices.length == eq.whole_size(0, operand.axis):
            return indices.axis
    return None


def whole_indices(eq: Equation, operand: int, place: Placement) -> bool:
    """Whether an operand holds indices that are the same on all devices."""
    return isinstance(place, Replicated) and (not place.power or eq.is_zero(operand))


def filled(eq: Equation, x: Placement, mode: Any, fill_value: Any) -> None:
    """Raise `Stuck` where what is read outside of the operand would not fit its placement."""
    if "FILL" not in str(mode) or (not power_of(x) and not isinstance(x, Partial)):
        return
    if fill_value is not None:
        fits = fill_value == 0 or fill_value != fill_value
    else:
        # NaN for floats, the largest or the least of whole numbers.
        fits = eq.dtypes[0][:5] in ("float", "bfloa", "compl")
    if not fits:
        raise Stuck(
            "what is read outside of an array does not depend on the size of the share, but the array does"
        )


@rule("gather")
def gather(
    eq: Equation,
    x: Placement,
    indices: Placement,
    *,
    mode: Any = None,
    fill_value: Any = None,
    **_: Any,
) -> Result:
    """Examples that read of what is whole, or each its own row; or all devices the same places."""
    at = Addressing.of_gather(eq)
    filled(eq, x, mode, fill_value)
    if whole_indices(eq, 1, indices):
        if isinstance(x, (Replicated, Partial, Extreme, OwnKey)):
            return x
        if isinstance(x, Sharded):
            for window, axis in at.windows.items():
                if axis == x.axis and covers(eq, axis, "slice_sizes"):
                    return Sharded(window, x.power, x.outer)
            raise Stuck("all devices read at the same places of what is divided between them")
        raise Stuck(describe(x))
    if isinstance(x, Labels):
        row = own_rows(eq, at, Sharded(x.axis), indices)
        if row is not None and "FILL" not in str(mode):
            return replace(x, axis=at.rows[row])
    row = own_rows(eq, at, x, indices)
    if row is not None:
        assert isinstance(x, Sharded)
        return Sharded(at.rows[row], x.power, x.outer)
    if isinstance(x, Replicated) and isinstance(indices, Sharded) and not indices.power:
        if indices.axis in at.rows and indices.axis not in at.batched:
            return Sharded(at.rows[indices.axis], x.power, indices.outer)
    if isinstance(x, Sharded) and isinstance(indices, Sharded):
        raise Stuck("examples read rows of other examples")
    raise Stuck(describe(x if isinstance(x, (Partial, Extreme)) else indices))


def covers(eq: Equation, axis: int, sizes: str) -> bool:
    """Whether slices of the first operand have all of an axis, on any number of devices."""
    return all(
        params[sizes][axis] == shapes[0][axis] for params, shapes in zip(eq.every, eq.inputs, strict=True)
    )


@rule(*SCATTERS)
def scatter(
    eq: Equation,
    x: Placement,
    indices: Placement,
    updates: Placement,
    **params: Any,
) -> Result:
    """Writes of examples into their own rows; sums of all examples' updates are partial."""
    at = Addressing.of_scatter(eq)
    if eq.name == "scatter" and params.get("update_jaxpr") is not None:
        # `x.at[i].apply(f)`: any function.
        no_powers(eq, (x, updates))
        if any(isinstance(place, (Partial, Extreme)) for place in (x, updates)):
            raise Stuck("a function is applied to parts of a value that is not whole")
    if eq.name == "scatter_mul":
        no_powers(eq, (updates,))
        if isinstance(x, Partial) and isinstance(updates, Replicated) and whole_indices(eq, 1, indices):
            return x
    summed = eq.name in ("scatter_add", "scatter_sub")
    if whole_indices(eq, 1, indices):
        return everywhere(eq, at, x, updates)
    spread = (
        isinstance(indices, Sharded)
        and not indices.power
        and isinstance(updates, Sharded)
        and indices.outer == updates.outer
        and at.rows.get(indices.axis) == updates.axis
        and indices.axis not in at.batched
    )
    if spread and isinstance(x, (Replicated, Partial)):
        if summed:
            return Partial(joint_power(eq, x, updates))
        if eq.name in ("scatter_max", "scatter_min") and x == WHOLE and not power_of(updates):
            return Extreme(eq.name[-3:])
        raise Stuck("examples of several devices write to the same places")
    if spread and isinstance(x, Extreme) and eq.name == f"scatter_{x.op}" and not power_of(updates):
        return x
    if isinstance(x, Sharded) and isinstance(updates, Sharded) and is_alike(eq, 0, x.axis):
        x = replace(x, outer=updates.outer)
    row = own_rows(eq, at, x, indices)
    if row is not None and isinstance(x, Sharded) and isinstance(updates, Sharded):
        if updates.axis == at.rows[row] and updates.outer == x.outer:
            return Sharded(x.axis, common_of(eq, x, updates), x.outer)
    if row is not None and isinstance(x, Sharded) and isinstance(updates, Labels) and eq.is_zero(0):
        # So differentiation finds which of several writes to one place is the last.
        if eq.name == "scatter" and params.get("update_jaxpr") is None and updates.least > 0:
            if updates.axis == at.rows[row]:
                return replace(updates, axis=x.axis)
    if isinstance(x, (Partial, Extreme)):
        raise Stuck(describe(x))
    raise Stuck("examples write to rows of others")


def common_of(eq: Equation, x: Placement, updates: Placement) -> Power:
    """The power that operand and updates of a scatter have in common; a product has that of its operand."""
    if eq.name == "scatter_mul":
        return power_of(x)
    powers = {power_of(place) for i, place in ((0, x), (2, updates)) if not eq.is_zero(i)}
    if len(powers) > 1:
        raise Stuck("numbers that depend on the size of the share in different ways are combined")
    return powers.pop() if powers else 0


def joint_power(eq: Equation, x: Placement, updates: Placement) -> Power:
    """The power of the partial sum that an operand and updates of examples make."""
    powers = {
        power
        for i, place in ((0, x), (2, updates))
        if (power := power_of(place) if isinstance(place, Sharded) else partial_power(eq, i, place))
        is not None
        and not eq.is_zero(i)
    }
    if len(powers) > 1:
        raise Stuck("a part of a sum over the batch is added to what is whole already")
    return powers.pop() if powers else 0


def everywhere(eq: Equation, at: Addressing, x: Placement, updates: Placement) -> Result:
    """All devices write at the same places."""
    if isinstance(x, Partial) or isinstance(updates, Partial):
        if eq.name not in ("scatter", "scatter_add", "scatter_sub"):
            raise Stuck(describe(x if isinstance(x, Partial) else updates))
        if not all(isinstance(place, (Partial, Replicated)) for place in (x, updates)):
            raise Stuck("all devices write rows of their own at the same places")
        return Partial(joint_power(eq, x, updates))
    if isinstance(x, Replicated) and isinstance(updates, Replicated):
        return Replicated(common_of(eq, x, updates))
    if isinstance(x, Sharded) and isinstance(updates, Sharded) and x.outer == updates.outer:
        full = all(shapes[0][x.axis] == shapes[2][updates.axis] for shapes in eq.inputs)
        if at.windows.get(updates.axis) == x.axis and full:
            return Sharded(x.axis, common_of(eq, x, updates), x.outer)
    for place in (x, updates):
        if not isinstance(place, (Replicated, Sharded)):
            raise Stuck(describe(place))
    raise Stuck("all devices write at the same places of what is divided between them")


@rule("dynamic_slice")
def dynamic_slice(
    eq: Equation, x: Placement, *starts: Placement, slice_sizes: Sequence[int], **_: Any
) -> Result:
    """The device's own part of what is whole, or the same part on all devices."""
    own = [axis for axis, start in enumerate(starts) if isinstance(start, Index)]
    if own:
        return own_part(eq, x, starts, own)
    groups = some_groups(eq, x, starts) if isinstance(x, Sharded) else None
    if groups is not None:
        return groups
    for axis, start in enumerate(starts):
        if not whole_indices(eq, axis + 1, start):
            raise Stuck(
                describe(start) if not isinstance(start, Replicated) else "a place depends on the share"
            )
    if isinstance(x, (Replicated, Partial, Extreme, OwnKey)) and not eq.varying():
        return x
    if isinstance(x, Sharded):
        # A slice as long as the axis begins at its beginning, whatever it is asked to.
        if covers(eq, x.axis, "slice_sizes"):
            return x
        raise Stuck("some of the examples are cut out of this device's share")
    if isinstance(x, Copies):
        # All copies are alike: no matter which one it is.
        lengths = [1 if axis == x.axis else size for axis, size in enumerate(eq.shape(0))]
        if list(slice_sizes) == lengths:
            return one_copy(eq, x, [0] * len(lengths), lengths, None)
    raise Stuck(describe(x))


def some_groups(eq: Equation, x: Sharded, starts: Sequence[Placement]) -> "Sharded | None":
    """Whole groups of a device's rows, from where one of them begins; None where it is something else.

    The place is as many times smaller than in the whole batch as the groups are.
    """
    groups = groups_in(eq, x, [params["slice_sizes"][x.axis] for params in eq.every])
    others = all(whole_indices(eq, i + 1, start) for i, start in enumerate(starts) if i != x.axis)
    begins = starts[x.axis] == Replicated(1) or eq.is_zero(x.axis + 1)
    size = eq.whole_size(0, x.axis) // x.outer
    if groups and others and begins and eq.terms.is_multiple(eq.operands[x.axis + 1].term, size):
        return Sharded(x.axis, x.power, groups)
    return None


def own_part(eq: Equation, x: Placement, starts: Sequence[Placement], own: Sequence[int]) -> Result:
    """A slice as long as a share, from where this device's share begins."""
    start = starts[own[0]]
    assert isinstance(start, Index)
    if isinstance(x, Blocks) and own == [x.axis] and start.length == 0:
        return own_block(eq, x, starts)
    axis = eq.split()
    whole = [i for i in range(len(starts)) if i != axis]
    ok = (
        len(own) == 1
        and own[0] == axis
        and isinstance(x, (Replicated, Sharded))
        and all(whole_indices(eq, i + 1, starts[i]) and covers(eq, i, "slice_sizes") for i in whole)
        and all(
            shapes[0][axis] == start.length == out[0][axis] * count
            for shapes, out, count in zip(eq.inputs, eq.outputs, eq.counts, strict=True)
        )
    )
    if ok and isinstance(x, Replicated) and axis is not None:
        if eq.operands[0].sliced is Sliced.MOVED:
            raise Stuck(CUT_AGAIN)
        return Same(Sharded(axis, x.power))
    if isinstance(x, Replicated) and start.length == 0:
        # One row for each device: the rows are N.
        raise Stuck("the device's index is used as a position")
    raise Stuck(describe(start))


def own_block(eq: Equation, x: Blocks, starts: Sequence[Placement]) -> Result:
    """The block of this device, of an array that was divided into one for each."""
    axis, given = x.axis, eq.terms[eq.operands[0].term].shape
    others = [i for i in range(len(starts)) if i != axis]
    ok = all(shapes[0][axis] == 1 for shapes in eq.outputs) and all(
        whole_indices(eq, i + 1, starts[i]) and covers(eq, i, "slice_sizes") for i in others
    )
    if ok and given is not None:
        return Same(Sharded(axis + 1, x.power), 0, (*given[:axis], 1, *given[axis:]))
    raise Stuck(describe(x))


@rule("dynamic_update_slice")
def dynamic_update_slice(
    eq: Equation, x: Placement, update: Placement, *starts: Placement, **_: Any
) -> Result:
    """The same part on all devices, of whole axes."""
    for axis, start in enumerate(starts):
        if not whole_indices(eq, axis + 2, start):
            raise Stuck(
                describe(start) if not isinstance(start, Replicated) else "a place depends on the share"
            )
    if isinstance(x, Partial) or isinstance(update, Partial):
        powers = {p for i, place in ((0, x), (1, update)) if (p := partial_power(eq, i, place)) is not None}
        if len(powers) > 1:
            raise Stuck("a part of a sum over the batch is put into what is whole already")
        return Partial(powers.pop() if powers else 0)
    if isinstance(x, Replicated) and isinstance(update, Replicated):
        return Replicated(common_power(eq, (x, update)))
    if isinstance(x, Extreme) and update == x:
        return x
    if isinstance(x, OwnKey) and isinstance(update, OwnKey):
        return x
    if isinstance(x, Sharded) and isinstance(update, Sharded):
        full = all(shapes[0][x.axis] == shapes[1][x.axis] for shapes in eq.inputs)
        if (x.axis, x.outer) == (update.axis, update.outer) and full:
            return Sharded(x.axis, common_power(eq, (x, update)), x.outer)
    for place in (x, update):
        if not isinstance(place, (Replicated, Sharded)):
            raise Stuck(describe(place))
    raise Stuck("some of the examples of this device's share are written over")
