"""Batches that the devices do not share evenly: what is added or left out, and where that is allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jax_pmap.emit.axes import collapse, used_axes
from jax_pmap.model import GATHERED, SCATTERED, Backend, Leaf, Plan, Span, refused

#: What is made whole by sums alone; those of a mask, or with one, leave out the rows in which it is zero.
SUMS = frozenset(
    {"psum", "pmean", "mean", "average", "var", "std", "norm", "vector_norm", *SCATTERED.values()}
)
#: What people call an array that says how much each example counts.
_WEIGHTS = re.compile(r"(.*_)?(masks?|weights?|valid|padding_mask|w)(_.*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Remainder:
    """How an uneven batch is made even."""

    #: ``"pad"``: rows are added at the end; ``"drop"``: rows at the end are left out.
    mode: str
    #: The batch axis that all split arguments share.
    axis: int
    #: Paths of the leaves that are zero in added rows, which leaves them out of every sum.
    zeros: tuple[str, ...] = ()

    def said(self) -> str:
        """A line for the header."""
        if self.mode == "drop":
            return "Uneven batch: its last rows are DROPPED, so that the devices share the rest evenly"
        how = f", with {', '.join(self.zeros)} zero in them" if self.zeros else ", which are cut off again"
        return f"Uneven batch: rows are added{how}; proved on such batches"


def remainder_of(plan: Plan, mode: str, backend: Backend, span: Span) -> Remainder | None:
    """How `mode` is carried out for `plan`, or None where uneven batches are errors.

    Raises:
        RefusalError: JP060 where added rows would count, or where the batch has no one axis.
    """
    if mode == "error":
        return None
    if plan.multiple_of > 1:
        raise refused(
            "JP060",
            f"the function is right where each device has a multiple of {plan.multiple_of} rows, and "
            f"--remainder {mode} makes batches that the devices share evenly, and no more",
            "Leave --remainder out: other batches are then errors",
            span,
        )
    split = [argument for argument in plan.arguments if used_axes(argument.axes)]
    trees = {
        collapse(argument.axes) if isinstance(collapse(argument.axes), int) else None for argument in split
    }
    axis = trees.pop() if len(trees) == 1 else None
    leaves = [leaf for argument in split for leaf in argument.leaves if leaf.axis is not None]
    sizes = {leaf.shape[leaf.axis] for leaf in leaves if leaf.axis is not None}
    if not isinstance(axis, int) or len(sizes) > 1:
        raise refused(
            "JP060",
            f"--remainder {mode} needs one batch axis and one batch size in all split arguments",
            "Give every array of the batch the same leading axis, and pass what is not split as an argument "
            "of its own",
            span,
        )
    if any(argument.partition for argument in split):
        raise refused(
            "JP060",
            f"--remainder {mode} takes a batch of arrays alone",
            "Pass what is no array as an argument of its own",
            span,
        )
    if mode == "drop":
        return Remainder(mode, axis)
    return Remainder(mode, axis, _zeros(plan, leaves, backend, span))


def _zeros(plan: Plan, leaves: list[Leaf], backend: Backend, span: Span) -> tuple[str, ...]:
    """The leaves to fill with zeros, so that added rows do not count; none where no rows are combined."""
    # Of parameters in parts, and among devices that have the same rows, no rows are combined.
    syncs = [sync for sync in plan.syncs if "" in sync.along and sync.op != GATHERED]
    if not syncs:
        if backend is Backend.JIT:
            raise refused(
                "JP060",
                "--remainder pad with --backend jit: nothing shows that the rows do not touch each other",
                "Use --backend pmap or shard_map, or --remainder drop",
                span,
            )
        return ()
    folded = next((sync for sync in syncs if sync.op == "fold_in"), None)
    if folded is not None:
        raise refused(
            "JP060",
            f"`{folded.value}` draws numbers for the rows, and draws others where rows are added",
            "Use --remainder drop, or pass one key for each row",
            folded.span,
        )
    extreme = next((sync for sync in syncs if sync.op not in SUMS), None)
    if extreme is not None:
        raise refused(
            "JP060",
            f"`{extreme.value}` is made whole by {extreme.op}, and a weight of zero leaves rows out of "
            "sums alone",
            "Use --remainder drop",
            extreme.span,
        )
    names = {leaf.path: re.sub(r"['\"\]]", "", re.split(r"[.\[]", leaf.path)[-1]) for leaf in leaves}
    zeros = tuple(path for path, name in names.items() if _WEIGHTS.fullmatch(name))
    if not zeros:
        sync = syncs[0]
        raise refused(
            "JP060",
            f"`{sync.value}` counts every row of the batch ({sync.op}), so rows added to an uneven one "
            "would change it",
            "Take a mask or weights beside the batch, 0 for rows that do not count, and divide by its sum; "
            "it is known by its name: `mask`, `weights`, `valid` or `w`, or as in `loss_mask`. Or use "
            "--remainder drop",
            sync.span,
        )
    return zeros
